"""What a step asks of a device and of NCCL, without either: meta tensors in a group that is faked.

A meta tensor holds no numbers, so what mixes it with one of the CPU, or reads it back, raises as it
would hold up a GPU. The group takes every message and brings none.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from hydraplan.executor import decoder, step
from hydraplan.executor.data import CPU, load_slot
from hydraplan.executor.groups import World, create_groups, inner_ranges
from hydraplan.executor.moved import moved_work
from hydraplan.executor.prepare import prepare
from hydraplan.executor.settings import Settings
from hydraplan.executor.stage import build_stage
from hydraplan.executor.step import Worker, run_batch
from hydraplan.executor.transport import Transport
from hydraplan.kernels import link
from hydraplan.kernels.attention import KERNELS
from hydraplan.kernels.packing import rank_layout
from hydraplan.migration import NO_MOVES, HeadMove, Moves, RowMove
from hydraplan.planner.pipeline.deadlock import find_deadlock
from hydraplan.planner.pipeline.lowering import Step
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.pipeline.wait_graph import EVERY_LANE
from tests.builders import Place
from tests.plans import tiny_model, write_test_plan

META = torch.device("meta")
MIXED = [
    Place(37, 0, 2, 2), Place(3, 0, 4, 1), Place(64, 2, 1, 2), Place(9, 3), Place(40, 0, 4, 1, 1),
    Place(17, 2, 1, 1, 1), Place(2, 0, 1, 1, 2), Place(21, 2, 2, 1, 3), Place(5, 0, 1, 4, 3),
]  # fmt: skip
"""4 lanes, 4 microbatches, rings, inner groups and both nested; lanes without rows."""


@pytest.fixture
def faked():
    """Join a world of which no other rank exists; call again to be another."""

    def join(rank, size):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("cpu:fake,meta:fake", rank=rank, world_size=size, store=FakeStore())

    yield join
    dist.destroy_process_group()


def plan_of(folder, pipeline, places, ranks, pp=2, dtype="bfloat16"):
    schedule = SCHEDULES[pipeline]
    chunks = schedule.chunks or 2
    path = write_test_plan(
        folder / f"{pipeline}.plan", [places], pp=pp, ranks=ranks,
        model=tiny_model(8, 2, pp * chunks, dtype), make=partial(schedule.make, num_chunks=chunks),
        num_chunks=chunks, route=schedule.route,
    )  # fmt: skip
    return prepare(path, [0], Settings(timeout_s=9.0))


MOVES = Moves(
    rows=(RowMove(0, 0, 2, 3, 32), RowMove(0, 1, 2, 0, 16), RowMove(1, 1, 2, 0, 16)),
    heads=(HeadMove(0, 0, 3, 2, 3), HeadMove(0, 1, 2, 3, 8), HeadMove(1, 1, 2, 3, 8)),
)


def run(job, world, device, kernel, moves=NO_MOVES):
    """One step of one worker; its stage."""
    header, (batch,) = job.header, job.batches
    placed, route = batch.sequences.placed(), header.cost_model().route
    compute = getattr(torch, job.dtype)
    stage = build_stage(
        header.model, header.layers, route, world.stage, 0, compute, device, job.recompute
    )
    groups = create_groups(world, inner_ranges([placed]), 9.0, ordered=device == META)
    worker = Worker(groups, route, stage, KERNELS[kernel], False, device)
    slots = [
        load_slot(rank_layout(placed, m, world.lane), placed, job.tokens, device)
        for m in range(batch.num_microbatches)
    ]
    tokens = np.zeros((2, batch.num_microbatches))
    moved = moved_work(moves, placed, header.model, groups, stage.gradients, tokens)
    run_batch(worker, job.steps[0][world.stage], slots, 100, moved)
    return stage


@pytest.mark.parametrize(("pipeline", "logits"), [("1f1b", 64), ("zb-v", 2**22)])
def test_a_step_keeps_to_its_device_and_reads_nothing_back_before_its_end(
    pipeline, logits, faked, tmp_path, monkeypatch
):
    monkeypatch.setattr(decoder, "LOSS_CHUNK_ELEMENTS", logits)
    read_back = []
    monkeypatch.setattr(step, "_added", lambda losses, _: float(read_back.append(len(losses)) or 0))
    job = plan_of(tmp_path, pipeline, MIXED, ranks=4)
    for rank in (0, 6):  # with most of the rings and groups, and with rows in two microbatches
        faked(rank, 8)
        stage = run(job, World(rank, 2, 4), META, "cuda", MOVES)
        for weight in stage.weights.values():
            assert (weight.grad.device.type, weight.grad.dtype) == ("meta", torch.float32)
    assert read_back == ([4, 0] if pipeline == "zb-v" else [0, 4])


def issued(job, faked, device, monkeypatch):
    """What every stage of one lane issues, as steps, and the lowered list."""
    monkeypatch.setattr(step, "_added", lambda losses, _: 0.0)
    start, done = Transport._start, step._Batch._done
    found = []
    for rank in range(len(job.steps[0])):
        faked(rank, len(job.steps[0]))
        steps = []

        def started(transport, kind, tensor, peer, message, steps=steps, **about):
            steps.append(Step(kind, message=message))
            return start(transport, kind, tensor, peer, message, **about)

        def ran(batch, op, incoming_TC, steps=steps):
            steps.append(Step("compute", op=op))
            return done(batch, op, incoming_TC)

        monkeypatch.setattr(Transport, "_start", started)
        monkeypatch.setattr(step._Batch, "_done", ran)
        run(job, World(rank, len(job.steps[0]), 1), device, "cuda" if device == META else "cpu")
        found.append(tuple(steps))
    return tuple(found)


@pytest.mark.parametrize("pipeline", ["1f1b", "interleaved", "zb-h2", "zb-v"])
def test_without_tags_what_is_issued_is_the_list_that_is_proven(
    pipeline, faked, tmp_path, monkeypatch
):
    """NCCL runs messages in the order in which both sides issue them, so no other will do."""
    job = plan_of(tmp_path, pipeline, [Place(5 + m, 0, 1, 1, m) for m in range(7)], 1, pp=3)
    assert issued(job, faked, META, monkeypatch) == job.steps[0]
    route = job.header.cost_model().route
    assert find_deadlock({EVERY_LANE: job.steps[0]}, route, "blocking", 1) == ""


def test_without_tags_both_ends_of_moved_work_post_the_same_messages_in_the_same_order(
    faked, tmp_path, monkeypatch
):
    job, posted = plan_of(tmp_path, "zb-v", MIXED, ranks=4), {}
    job = replace(job, settings=replace(job.settings, recompute="full"))
    monkeypatch.setattr(step, "_added", lambda losses, _: 0.0)
    for rank in range(4):
        faked(rank, 8)

        def noted(name, tensor, peer, group, tag, rank=rank):
            pair = (rank, peer) if name == "isend" else (peer, rank)
            posted.setdefault((rank, peer), []).append((pair, tensor.numel(), tag))
            return getattr(dist, name)(tensor, peer, group, tag)

        calls = {name: partial(noted, name) for name in ("isend", "irecv")}
        monkeypatch.setattr(link, "dist", SimpleNamespace(**calls))
        run(job, World(rank, 2, 4), META, "cuda", MOVES)
    assert set(posted) == {(0, 2), (2, 0), (2, 3), (3, 2)}
    assert posted[0, 2] == posted[2, 0]
    assert posted[2, 3] == posted[3, 2]
    assert {tag for messages in posted.values() for *_, tag in messages} == {0}
    layers, passes = 2, 3  # of a stage; forward, again in backward, backward
    assert len(posted[2, 3]) == 3 * 2 * layers * passes  # moves, ways


@pytest.mark.parametrize("pipeline", ["1f1b", "zb-v"])
def test_receives_posted_ahead_are_safe_by_tag_and_would_not_be_in_order(
    pipeline, faked, tmp_path, monkeypatch
):
    places = [Place(5 + m, 0, 1, 1, m) for m in range(9)]
    job = plan_of(tmp_path, pipeline, places, 1, pp=3, dtype="float32")
    steps, route = issued(job, faked, CPU, monkeypatch), job.header.cost_model().route
    assert steps != job.steps[0]
    assert find_deadlock({EVERY_LANE: steps}, route, "tagged", 1) == ""
    assert "in a circle (ordered" in find_deadlock({EVERY_LANE: steps}, route, "ordered", 1)


def test_a_gpu_is_waited_for_at_both_ends_of_an_op_on_its_own_stream_and_nowhere_else(monkeypatch):
    waited = []

    class Stream:
        def __init__(self, device):
            self.device = device

        def synchronize(self):
            waited.append(self.device)

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    step._settle(CPU)
    assert waited == []
    step._settle(torch.device("cuda", 1))
    assert waited == [torch.device("cuda", 1)]


def test_the_loss_adds_up_in_the_order_of_forwards():
    losses = [torch.tensor(x, dtype=torch.float64) for x in (0.1, 0.2, 0.3)]
    assert step._added(losses, 4) == 0.1 / 4 + 0.2 / 4 + 0.3 / 4
    assert step._added([], 4) == 0.0
