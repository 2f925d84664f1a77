"""A worker from its first collective to the end of a step, for `execute` and `verify` alike.

Workers agree on what they were asked for, create their groups in one order and draw the weights of
their stage; a step is proven to be the same on all of them before it runs.
"""

import hashlib
import os

import torch
import torch.distributed as dist

from hydraplan.errors import StalePlan
from hydraplan.executor.data import count_labels, load_slot
from hydraplan.executor.device import take_device
from hydraplan.executor.groups import World, create_groups, inner_ranges, warm_up
from hydraplan.executor.memory import check_device_memory
from hydraplan.executor.moved import moved_work
from hydraplan.executor.pace import Pace
from hydraplan.executor.prepare import Job
from hydraplan.executor.record import Measured, collect
from hydraplan.executor.resume import Start
from hydraplan.executor.same_step import check_same_step
from hydraplan.executor.stage import build_stage
from hydraplan.executor.step import Worker, run_batch
from hydraplan.files.runfile import RunHeader
from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.glue import choose_glue
from hydraplan.kernels.packing import rank_layout
from hydraplan.migration import NO_MOVES, Moves, check_moves, head_splits
from hydraplan.model import BatchPlan
from hydraplan.moved_work import moved_tokens
from hydraplan.slots import slot_rows


def set_up(
    world: World, job: Job, run: RunHeader | None = None, start: Start | None = None
) -> Worker:
    """Check that all workers were asked for the same run, create groups and weights."""
    agree(world, _asked(job, run, start))
    placed = [batch.sequences.placed() for batch in job.batches]
    device = take_device(world.device)
    groups = create_groups(
        world,
        inner_ranges(placed, job.header.options.max_groups),
        job.settings.timeout_s,
        ordered=job.transport == "ordered",
        batched_hops=job.settings.ring_hops == "batched",
    )
    warm_up(groups, device)
    compute = getattr(torch, job.dtype)
    header, route = job.header, job.header.cost_model().route
    stage = build_stage(
        job.model, header.layers, route, world.stage, job.seed, compute, device, job.recompute
    )
    if device.type == "cuda":
        weights_bytes = sum(weight.nbytes for weight in stage.weights.values())
        check_device_memory(weights_bytes, world.ranks, torch.cuda.mem_get_info(device)[0])
    kernel = choose_kernel(device, compute, job.attention)
    if job.settings.paced:
        pace = stage.gradients.pace = Pace(job.cost)
        kernel = pace.paced(kernel)
    choose_glue(device, compute)  # tried here, so that no op of the first step waits for it
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    is_one_host = local_size == os.environ.get("WORLD_SIZE")
    checked = job.digest if job.settings.debug_messages else None
    return Worker(groups, route, stage, kernel, is_one_host, device, checked)


def run_step(
    worker: Worker, job: Job, batch: BatchPlan, moves: Moves = NO_MOVES, slow: float = 1.0
) -> Measured | None:
    """Forward and backward of one batch; what was measured on rank 0, gradients on all.

    `moves` are the same on all workers; `slow`: how many times as long this one takes, on purpose.

    Raises:
        InputError: Moves do not belong to the batch.
        StalePlan: Another worker holds another batch or other moves.
        RunFailed: A peer died or did not answer in time; the op is named.
    """
    world, model = worker.groups.world, worker.stage.model
    placed = batch.sequences.placed()
    rows = slot_rows(placed, world.ranks, batch.num_microbatches)
    check_moves(moves, model.num_heads, placed, rows, world.pp)
    splits = head_splits(moves.shares, model, world.stage)
    layouts = [
        rank_layout(placed, m, world.lane, splits.get(m)) for m in range(batch.num_microbatches)
    ]
    slots = [load_slot(layout, placed, job.tokens, worker.device) for layout in layouts]
    check_same_step(world, batch, layouts, moves)
    is_checked = worker.plan_digest is not None
    gradients = worker.stage.gradients
    tokens = moved_tokens(job.cost, placed, moves, batch.num_microbatches)[
        :, world.stage, world.lane
    ]
    moved = moved_work(moves, placed, model, worker.groups, gradients, tokens, is_checked)
    valid_tokens = count_labels(placed, batch.batch)
    result = run_batch(
        worker, job.steps[batch.batch][world.stage], slots, valid_tokens, moved, slow
    )
    return collect(world, batch.schedule, result)


def _asked(job: Job, header: RunHeader | None, start: Start | None) -> dict[str, object]:
    """What all workers must have been told alike; under torchrun every host is told apart."""
    asked: dict[str, object] = {
        "plan": job.digest,
        "seed": job.seed,
        "dtype": job.dtype,
        "recompute": job.recompute,
        "data": job.data,
        "device": job.device,
        "attention": job.attention,
        "timeout": job.settings.timeout_s,
        "transport": (job.transport, job.settings.debug_messages, job.settings.ring_hops),
        "injected": job.settings.injected,
        "pace": job.settings.paced,
    }
    if header is not None:
        asked |= {
            "steps": header.steps,
            "learning rate": header.learning_rate,
            "largest gradient norm": header.clip_grad,
            "correction": (header.correction, header.migration, header.replays),
        }
    if start is not None:
        asked["steps done"] = start.steps
        asked["checkpoint"] = None if start.saved is None else start.saved.about
    return asked


def agree(world: World, asked: dict[str, object]) -> None:
    """Refuse to start unless all workers were asked for the same.

    Raises:
        StalePlan: A worker was told something else than rank 0.
    """
    digests = [hashlib.sha256(repr(value).encode()).digest() for value in asked.values()]
    mine = torch.tensor([list(digest) for digest in digests], dtype=torch.uint8)
    everyone = [torch.empty_like(mine) for _ in range(world.pp * world.ranks)]
    dist.all_gather(everyone, mine)
    for rank, other in enumerate(everyone):
        for name, same in zip(asked, (other == everyone[0]).all(dim=1).tolist(), strict=True):
            if not same:
                raise StalePlan(
                    f"{world.describe(rank)} was given another {name} than rank 0"
                    f" (this worker has {asked[name]})",
                    "start every host with the same plan folder and options",
                )
