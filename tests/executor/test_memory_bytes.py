"""Bytes that `hydraplan.memory` predicts against torch's allocator in real worker processes."""

import gc
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.autograd import profiler

from hydraplan.config import ModelShape
from hydraplan.executor import decoder, transport
from hydraplan.executor.launch import run_workers
from hydraplan.executor.optimizer import sharded_adamw, update
from hydraplan.executor.prepare import Job, prepare
from hydraplan.executor.settings import Settings
from hydraplan.executor.stage import build_stage
from hydraplan.executor.worker import run_step, set_up
from hydraplan.memory import LOSS_CHUNK_ELEMENTS, MESSAGES_AHEAD, group_bytes, stage_bytes
from hydraplan.memory_cap import MISSED, fullest, largest_cap
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.slots import slot_rows
from tests.builders import Place
from tests.plans import plan_header, write_test_plan

TIMEOUT_S = 60.0


class Case(NamedTuple):
    """A step of one pipeline; `vocab_size` 20000 needs more logits than are kept."""

    pipeline: str
    recompute: str
    dtype: str = "float32"
    vocab_size: int = 512


def shape_of(case: Case, num_layers: int) -> ModelShape:
    """A model whose activations weigh more than its weights."""
    return ModelShape(
        name="test", num_layers=num_layers, hidden_size=128, num_heads=8, num_kv_heads=2,
        head_dim=16, ffn_hidden_size=320, vocab_size=case.vocab_size, dtype=case.dtype,
    )  # fmt: skip


def peaks(folder: Path, jobs: dict[str, Job], world):
    """The most that torch held at once of each job's second step, all since its first weight."""
    first = next(iter(jobs.values()))
    worker = set_up(world, first)
    run_step(worker, first, first.batches[0])  # what torch sets up once is not measured
    for name, job in jobs.items():
        worker = replace(worker, route=job.cost.route, stage=None)
        gc.collect()  # else what an earlier job held would count as freed by this one
        peak = peak_of(worker, job, world)
        (folder / f"{name}.{world.rank}.json").write_text(json.dumps(peak))


def peak_of(worker, job: Job, world) -> int:
    """Steps are two, since gradients and moments are not there before the first one ends."""
    header, dtype = job.header, getattr(torch, job.dtype)
    with profiler.profile(profile_memory=True, use_kineto=True) as profile:
        stage = build_stage(
            job.model, header.layers, worker.route, world.stage, 7, dtype, None, job.recompute
        )
        worker = replace(worker, stage=stage)
        optimizer = sharded_adamw(stage.weights, worker.groups, 1e-3)
        for _ in range(2):
            began_ns = time.time_ns()
            run_step(worker, job, job.batches[0])
            update(optimizer)
            optimizer.zero_grad(set_to_none=True)
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    held = np.cumsum([event.nbytes() for event in events])
    when = np.array([event.start_ns() for event in events])
    return int(held[when >= began_ns].max())


def compare(folder: Path, pp: int, ranks: int, cases: list[Case], places: list[Place]):
    """Predicted over measured bytes of each case and stage."""
    jobs = {}
    for case in cases:
        name, pipeline = "-".join(map(str, case)), SCHEDULES[case.pipeline]
        chunks = pipeline.chunks or 1
        write_test_plan(
            folder / f"{name}.plan", [places], pp=pp, ranks=ranks,
            model=shape_of(case, 2 * pp * chunks), make=partial(pipeline.make, num_chunks=chunks),
            num_chunks=chunks, route=pipeline.route, recompute=case.recompute,
        )  # fmt: skip
        settings = Settings(7, dtype=case.dtype, recompute=case.recompute, timeout_s=TIMEOUT_S)
        jobs[name] = prepare(folder / f"{name}.plan", [0], settings)
    run_workers(partial(peaks, folder, jobs), pp, ranks, TIMEOUT_S)
    found = {}
    for name, job in jobs.items():
        batch, size = job.batches[0], job.batches[0].num_microbatches
        placed = batch.sequences.placed()
        rows, groups = slot_rows(placed, ranks, size), group_bytes(job.cost, placed, size)
        predicted = stage_bytes(job.cost, batch.schedule, rows, groups=groups).sum(axis=0)
        files = [folder / f"{name}.{rank}.json" for rank in range(pp * ranks)]
        measured = np.array([json.loads(file.read_text()) for file in files]).reshape(pp, ranks)
        found[name] = (predicted / measured.max(axis=1)).round(3).tolist()
    return found


def alone(num_microbatches: int, rows: int = 256) -> list[Place]:
    """A sequence of its own in every microbatch."""
    return [Place(rows, 0, 1, 1, m) for m in range(num_microbatches)]


def test_core_knows_the_constants_of_the_executor():
    assert LOSS_CHUNK_ELEMENTS == decoder.LOSS_CHUNK_ELEMENTS
    assert MESSAGES_AHEAD == transport.RECEIVES_AHEAD == transport.SENDS_AHEAD


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize(
    ("pp", "ranks", "cases", "places"),
    [
        (
            1, 2,
            [Case("1f1b", "none"), Case("1f1b", "full", "bfloat16"), Case("zb-h1", "selective")],
            [Place(768, 0, 2, 1, 0), Place(700, 0, 1, 2, 1), Place(300, 1, 1, 1, 1)],
        ),
        (
            2, 1,
            [
                Case("1f1b", "none"), Case("zb-h1", "full"), Case("zb-v", "none", "bfloat16"),
                Case("1f1b", "selective", "float32", 20_000),
                Case("interleaved", "selective", "bfloat16"),
            ],
            alone(4),
        ),
        (
            4, 1,
            [
                Case("1f1b", "full"), Case("zb-h1", "none"), Case("zb-h2", "none", "bfloat16"),
                Case("gpipe", "selective"),
            ],
            alone(6),
        ),
    ],
)  # fmt: skip
def test_twelve_combinations_are_within_a_tenth(tmp_path, pp, ranks, cases, places):
    found = compare(tmp_path, pp, ranks, cases, places)
    for name, ratios in found.items():
        assert ratios == pytest.approx([1] * pp, abs=0.1), name


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize(
    "case", [Case("1f1b", "none"), Case("zb-h1", "full"), Case("zb-h2", "none", "bfloat16")]
)
def test_full_slots_at_the_derived_cap_fill_the_budget_and_do_not_pass_it(tmp_path, case):
    budget, schedule = 40e6, SCHEDULES[case.pipeline].make(2, 4, 1)
    header = plan_header(shape_of(case, 4), 2, 1, 1)
    cost = replace(header.cost_model(), recompute=case.recompute)
    cap = largest_cap(cost, fullest(cost, [schedule]), (1 - MISSED) * budget, on_gpu=False)
    (ratios,) = compare(tmp_path, 2, 1, [case], alone(4, cap)).values()
    predicted = stage_bytes(cost, schedule, np.full((1, 4), cap)).sum(axis=0)
    measured = (predicted / ratios).max()
    assert 0.9 * budget < measured <= budget
