"""The step loop: each step runs one batch of the plan on all workers and is recorded.

Steps walk through the plan's batches and begin again after the last. Rank 0 keeps the run
folder. Before the first step all workers prove that they hold the same plan.
"""

import hashlib
import math
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from hydraplan.activations import Recompute
from hydraplan.config import DType
from hydraplan.errors import InputError, RunFailed, StalePlan
from hydraplan.executor.data import count_labels, load_slot
from hydraplan.executor.folder import run_folder
from hydraplan.executor.groups import World, create_groups, inner_ranges, warm_up
from hydraplan.executor.launch import run_workers
from hydraplan.executor.optimizer import clip_gradients, sharded_adamw, update
from hydraplan.executor.predicted import Predicted, predict
from hydraplan.executor.prepare import Job, RingHops, TransportName, prepare
from hydraplan.executor.record import Measured, collect
from hydraplan.executor.same_step import check_same_step
from hydraplan.executor.share_plan import share_plan
from hydraplan.executor.stage import build_stage
from hydraplan.executor.step import Worker, run_batch
from hydraplan.files.memoryfile import Peaks
from hydraplan.files.opsfile import StepOps
from hydraplan.files.parquet import refuse_existing
from hydraplan.files.planfile import open_plan
from hydraplan.files.runfile import (
    Run,
    RunHeader,
    Step,
    create_run,
    open_run,
    our_files,
    recorder,
)
from hydraplan.files.trafficfile import Traffic
from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.packing import rank_layout
from hydraplan.model import BatchPlan
from hydraplan.version import __version__
from hydraplan.views.console import note

DEVICE = torch.device("cpu")
"""What real execution runs on so far."""

PUT_OFF = (signal.SIGTERM, signal.SIGINT)
"""Signals that the launcher, torchrun or a terminal sends to end a worker."""


def execute(
    path: Path,
    *,
    steps: int | None,
    seed: int,
    data: Path | None,
    output: Path | None,
    force: bool,
    learning_rate: float,
    clip_grad: float,
    timeout_s: float,
    transport: TransportName = "tagged",
    debug_messages: bool = False,
    ring_hops: RingHops = "batched",
    dtype: DType | None = None,
    recompute: Recompute | None = None,
) -> Run | None:
    """Train `steps` steps (default: every batch once) and return the run.

    Gradients whose norm is above `clip_grad` are scaled down to it, 0 for none. `dtype` and
    `recompute` None are those of the plan. Without `output`
    the run folder is gone when this returns. Under torchrun only rank 0
    returns a run, the others None.

    Raises:
        HydraplanError: Whatever `prepare` refuses, or `RunFailed` when a worker ends early.
    """
    if output is not None:
        refuse_existing(output, force, our_files(output))
    for name, value in (("learning rate", learning_rate), ("largest gradient norm", clip_grad)):
        if not math.isfinite(value):
            raise InputError(f"{name} {value} is not a finite number")
    num_batches = open_plan(path).header.num_batches
    num_steps = num_batches if steps is None else steps
    visited = range(min(num_steps, num_batches))
    job = prepare(
        path,
        visited,
        data=data,
        seed=seed,
        dtype=dtype,
        timeout_s=timeout_s,
        transport=transport,
        debug_messages=debug_messages,
        ring_hops=ring_hops,
        recompute=recompute,
    )
    header = RunHeader(
        tool_version=__version__,
        mode="measured",
        device=DEVICE.type,
        dtype=job.dtype,
        plan_name=path.name,
        plan_digest=job.digest,
        plan=job.header,
        steps=num_steps,
        seed=seed,
        learning_rate=learning_rate,
        clip_grad=clip_grad,
        recompute=job.recompute,
        data=job.data,
    )
    with run_folder(output) as folder:

        def entry(world: World) -> None:
            _train(world, job, header, folder)

        options = job.header.options
        reports = run_workers(entry, options.pp, options.ranks, timeout_s)
        return open_run(folder) if reports else None


def set_up(world: World, job: Job, run: RunHeader | None = None) -> Worker:
    """Check that all workers were asked for the same run, create groups and weights."""
    agree(world, _asked(job, run))
    placed = [batch.sequences.placed() for batch in job.batches]
    groups = create_groups(
        world,
        inner_ranges(placed, job.header.options.max_groups),
        job.timeout_s,
        ordered=job.transport == "ordered",
        batched_hops=job.ring_hops == "batched",
    )
    warm_up(groups, DEVICE)
    compute = getattr(torch, job.dtype)
    header, route = job.header, job.header.cost_model().route
    stage = build_stage(
        job.model, header.layers, route, world.stage, job.seed, compute, DEVICE, job.recompute
    )
    kernel = choose_kernel(DEVICE, compute)
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    is_one_host = local_size == os.environ.get("WORLD_SIZE")
    checked = job.digest if job.debug_messages else None
    return Worker(groups, route, stage, kernel, is_one_host, DEVICE, checked)


def run_step(worker: Worker, job: Job, batch: BatchPlan) -> Measured | None:
    """Forward and backward of one batch; what was measured on rank 0, gradients on all."""
    world = worker.groups.world
    placed = batch.sequences.placed()
    slots = [
        load_slot(rank_layout(placed, m, world.lane), placed, job.tokens, worker.device)
        for m in range(batch.num_microbatches)
    ]
    check_same_step(world, batch, [slot.layout for slot in slots])
    valid_tokens = count_labels(placed, batch.batch)
    result = run_batch(worker, job.steps[batch.batch][world.stage], slots, valid_tokens)
    return collect(world, batch.schedule, result)


def _train(world: World, job: Job, header: RunHeader, folder: Path) -> None:
    job = share_plan(world, job) if job.is_shared else job
    worker = set_up(world, job, header)
    assert header.learning_rate is not None
    assert header.clip_grad is not None
    weights, groups = worker.stage.weights, worker.groups
    optimizer = sharded_adamw(weights, groups, header.learning_rate)
    predicted: dict[int, Predicted] = {}
    with ExitStack() as stack:
        if world.rank == 0:
            predicted = {batch.batch: predict(job.cost, batch) for batch in job.batches}
            with _signals_put_off():
                create_run(folder, header)
            record = stack.enter_context(recorder(folder))
        for step in range(header.steps):
            batch = job.batches[step % len(job.batches)]
            optimizer.zero_grad(set_to_none=True)
            measured = run_step(worker, job, batch)
            norm = clip_gradients(weights, groups, header.clip_grad)
            if measured is not None:
                finished = _finished(step, batch, measured, norm, predicted[batch.batch])
                with _signals_put_off():
                    record(finished)
                note(
                    f"step {step + 1}/{header.steps}: loss {finished.loss:.6g},"
                    f" gradient norm {norm:.4g}"
                )
            update(optimizer)


def _finished(
    step: int, batch: BatchPlan, measured: Measured, norm: float, predicted: Predicted
) -> Step:
    loss = measured.loss
    for name, value in (("loss", loss), ("gradient norm", norm)):
        if not math.isfinite(value):
            raise RunFailed(
                f"the {name} of step {step} (batch {batch.batch}) is {value}",
                "lower --learning-rate; the steps before it are kept",
            )
    placed = batch.sequences.placed()
    tokens, valid = int(placed.length_tokens.sum()), int(placed.valid_tokens.sum())
    ops = StepOps(measured.timeline, measured.waits, predicted.timeline)
    peaks = Peaks(measured.peak_live_tokens, predicted.live_peaks)
    traffic = Traffic(measured.sent_bytes, predicted.sent_bytes)
    return Step(step, batch.batch, tokens, valid, loss, ops, peaks, traffic)


@contextmanager
def _signals_put_off() -> Iterator[None]:
    """Let the signals that end a worker wait until the block is done, so files are whole."""
    came: list[int] = []
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in PUT_OFF}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            os.kill(os.getpid(), came[0])


def _asked(job: Job, header: RunHeader | None) -> dict[str, object]:
    """What all workers must have been told alike; under torchrun every host is told apart."""
    asked: dict[str, object] = {
        "plan": job.digest,
        "seed": job.seed,
        "dtype": job.dtype,
        "recompute": job.recompute,
        "data": job.data,
        "timeout": job.timeout_s,
        "transport": (job.transport, job.debug_messages, job.ring_hops),
    }
    if header is not None:
        asked |= {
            "steps": header.steps,
            "learning rate": header.learning_rate,
            "largest gradient norm": header.clip_grad,
        }
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
