"""The step loop: each step runs one batch of the plan on all workers and is recorded.

Steps walk through the plan's batches and begin again after the last. Rank 0 keeps the run
folder. Before the first step all workers prove that they hold the same plan. Every so many steps
all workers save a checkpoint together, once the ledger has these steps; a run begins where its last
one is, and lost workers are started again from there.
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
from hydraplan.errors import InputError, RunFailed, StalePlan, WorkerLost
from hydraplan.executor.checkpoint import load, save, share
from hydraplan.executor.data import count_labels, load_slot
from hydraplan.executor.device import DeviceName, take_device
from hydraplan.executor.folder import run_folder
from hydraplan.executor.groups import World, create_groups, inner_ranges, warm_up
from hydraplan.executor.launch import run_workers, under_torchrun
from hydraplan.executor.optimizer import clip_gradients, sharded_adamw, update
from hydraplan.executor.predicted import Predicted, predict
from hydraplan.executor.prepare import Job, RingHops, TransportName, prepare
from hydraplan.executor.record import Measured, collect
from hydraplan.executor.resume import (
    Start,
    check_steps,
    earlier_run,
    is_checkpoint,
    is_foreign,
    output_of,
    refuse_other,
    start_again,
    start_of,
    taken,
)
from hydraplan.executor.same_step import check_same_step
from hydraplan.executor.share_plan import share_plan
from hydraplan.executor.stage import build_stage
from hydraplan.executor.step import Worker, run_batch
from hydraplan.files.ledger import Ledger, rewind
from hydraplan.files.memoryfile import Peaks
from hydraplan.files.opsfile import StepOps
from hydraplan.files.planfile import open_plan
from hydraplan.files.runfile import (
    Run,
    RunHeader,
    Step,
    create_run,
    finished,
    open_run,
    recorder,
)
from hydraplan.files.trafficfile import Traffic
from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.packing import rank_layout
from hydraplan.model import BatchPlan
from hydraplan.version import __version__
from hydraplan.views.console import note

LEARNING_RATE, CLIP_GRAD = 3e-4, 1.0
KEPT_CHECKPOINTS = 2

PUT_OFF = (signal.SIGTERM, signal.SIGINT)
"""Signals that the launcher, torchrun or a terminal sends to end a worker."""


def execute(
    path: Path,
    *,
    steps: int | None,
    seed: int | None,
    data: Path | None,
    output: Path | None,
    force: bool,
    learning_rate: float | None,
    clip_grad: float | None,
    timeout_s: float,
    transport: TransportName = "tagged",
    debug_messages: bool = False,
    ring_hops: RingHops = "batched",
    dtype: DType | None = None,
    recompute: Recompute | None = None,
    resume: Path | None = None,
    checkpoint_every: int | None = None,
    keep: int = KEPT_CHECKPOINTS,
    max_restarts: int = 0,
    device: DeviceName | None = None,
) -> Run | None:
    """Train until `steps` steps (default: every batch once) are done and return the run.

    Gradients whose norm is above `clip_grad` are scaled down to it, 0 for none. `dtype` and
    `recompute` None are those of the plan. Without `output`
    the run folder is gone when this returns. Under torchrun only rank 0
    returns a run, the others None. With `resume` the run goes on from the last checkpoint of
    another, in its folder if the plan is the same; what is None is taken from it.

    Args:
        checkpoint_every: Steps between checkpoints, the last `keep` of which stay; None for none.
        max_restarts: How often lost workers are started again, from the last checkpoint.

    Raises:
        HydraplanError: Whatever `prepare`, `start_of` and `refuse_other` refuse, or `RunFailed`
            when a worker ends early.
    """
    plan = open_plan(path)
    num_batches = plan.header.num_batches
    earlier = earlier_run(resume, output)
    first = start_of(earlier, plan)
    output = output_of(output, force, earlier, first)
    if max_restarts and under_torchrun():
        raise InputError(
            "--max-restarts has no use under torchrun, which starts the workers",
            "give it to torchrun: torchrun --max-restarts N ... -m hydraplan execute ...",
        )
    before = None if earlier is None else earlier.header
    seed = taken(seed, before, "seed", 0)
    learning_rate = taken(learning_rate, before, "learning_rate", LEARNING_RATE)
    clip_grad = taken(clip_grad, before, "clip_grad", CLIP_GRAD)
    checkpoint_every = taken(checkpoint_every, before, "checkpoint_every", None)
    dtype = taken(dtype, before, "dtype", None)
    device = taken(device, before, "device", None) or "cpu"
    same_plan = before if first.in_place else None
    recompute = taken(recompute, same_plan, "recompute", None)
    steps = taken(steps, same_plan, "steps", num_batches)
    for name, value in (("learning rate", learning_rate), ("largest gradient norm", clip_grad)):
        if not math.isfinite(value):
            raise InputError(f"{name} {value} is not a finite number")
    check_steps(steps, first, plan.header)
    job = prepare(
        path,
        sorted({step % num_batches for step in range(first.steps, steps)}),
        data=data,
        seed=seed,
        dtype=dtype,
        timeout_s=timeout_s,
        transport=transport,
        debug_messages=debug_messages,
        ring_hops=ring_hops,
        recompute=recompute,
        device=device,
    )
    header = RunHeader(
        tool_version=__version__,
        mode="measured",
        device=job.device,
        dtype=job.dtype,
        plan_name=path.name,
        plan_digest=job.digest,
        plan=job.header,
        steps=steps,
        seed=seed,
        learning_rate=learning_rate,
        clip_grad=clip_grad,
        recompute=job.recompute,
        data=job.data,
        checkpoint_every=checkpoint_every,
    )
    refuse_other(earlier, header)
    with run_folder(output) as folder:
        reports = _run(job, header, folder, first, keep, max_restarts)
        return open_run(folder) if reports else None


def _run(
    job: Job, header: RunHeader, folder: Path, start: Start, keep: int, max_restarts: int
) -> bool:
    """Run all workers, again from the last checkpoint when one is lost; whether this reports."""
    pp, ranks = job.header.options.pp, job.header.options.ranks
    for restart in range(max_restarts + 1):
        if start.saved is not None:
            note(f"going on from {start.saved.path}")

        def entry(world: World, start: Start = start) -> None:
            _train(world, job, header, folder, start, keep)

        try:
            return run_workers(entry, pp, ranks, job.timeout_s, job.device)
        except WorkerLost as lost:
            if restart == max_restarts:
                raise
            start = start_again(folder, start)
            note(
                f"{lost}; restart {restart + 1} of {max_restarts}: all workers, after step"
                f" {start.steps}"
            )
    raise AssertionError("the last restart returns or raises")


def set_up(
    world: World, job: Job, run: RunHeader | None = None, start: Start | None = None
) -> Worker:
    """Check that all workers were asked for the same run, create groups and weights."""
    agree(world, _asked(job, run, start))
    placed = [batch.sequences.placed() for batch in job.batches]
    groups = create_groups(
        world,
        inner_ranges(placed, job.header.options.max_groups),
        job.timeout_s,
        ordered=job.transport == "ordered",
        batched_hops=job.ring_hops == "batched",
    )
    device = take_device(world.device)
    warm_up(groups, device)
    compute = getattr(torch, job.dtype)
    header, route = job.header, job.header.cost_model().route
    stage = build_stage(
        job.model, header.layers, route, world.stage, job.seed, compute, device, job.recompute
    )
    kernel = choose_kernel(device, compute)
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    is_one_host = local_size == os.environ.get("WORLD_SIZE")
    checked = job.digest if job.debug_messages else None
    return Worker(groups, route, stage, kernel, is_one_host, device, checked)


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


def _train(
    world: World, job: Job, header: RunHeader, folder: Path, start: Start, keep: int
) -> None:
    job = share_plan(world, job) if job.is_shared else job
    worker = set_up(world, job, header, start)
    assert header.learning_rate is not None
    assert header.clip_grad is not None
    weights, groups = worker.stage.weights, worker.groups
    optimizer = sharded_adamw(weights, groups, header.learning_rate)
    if start.saved is not None:
        load(start.saved, weights, optimizer)
    batches = {batch.batch: batch for batch in job.batches}
    predicted: dict[int, Predicted] = {}
    ledger = Ledger()

    def checkpoint(steps: int) -> None:
        save(world, folder, steps, share(weights, optimizer), job.digest, ledger.digest, keep)

    with ExitStack() as stack:
        if world.rank == 0:
            predicted = {batch.batch: predict(job.cost, batch) for batch in job.batches}
            with _signals_put_off():
                if start.in_place:
                    rewind(folder, header, start.steps)
                    ledger = Ledger(open_run(folder).steps)
                else:
                    create_run(folder, header)
            record = stack.enter_context(recorder(folder))
        if header.checkpoint_every and is_foreign(start, folder):
            checkpoint(0)
        for step in range(start.steps, header.steps):
            batch = batches[step % job.header.num_batches]
            is_saved = is_checkpoint(step + 1, header)
            optimizer.zero_grad(set_to_none=True)
            measured = run_step(worker, job, batch)
            norm = clip_gradients(weights, groups, header.clip_grad)
            if measured is not None:
                done = _finished(step, batch, measured, norm, predicted[batch.batch])
                ledger.add(done._asdict())
                with _signals_put_off():
                    record(done, is_saved)
                note(
                    f"step {step + 1}/{header.steps}: loss {done.loss:.6g},"
                    f" gradient norm {norm:.4g}"
                )
            update(optimizer)
            if is_saved:
                checkpoint(step + 1)


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
    ops = StepOps(measured.timeline, measured.waits, predicted.timeline)
    peaks = Peaks(measured.peak_live_tokens, predicted.live_peaks)
    traffic = Traffic(measured.sent_bytes, predicted.sent_bytes)
    return finished(step, batch, loss, ops, peaks, traffic)


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


def _asked(job: Job, header: RunHeader | None, start: Start | None) -> dict[str, object]:
    """What all workers must have been told alike; under torchrun every host is told apart."""
    asked: dict[str, object] = {
        "plan": job.digest,
        "seed": job.seed,
        "dtype": job.dtype,
        "device": job.device,
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
