"""The step loop: each step runs one batch of the plan on all workers and is recorded.

Steps walk through the plan's batches and begin again after the last. Rank 0 keeps the run
folder. Before the first step all workers prove that they hold the same plan. Every so many steps
all workers save a checkpoint together, once the ledger has these steps; a run begins where its last
one is, and lost workers are started again from there. What a step runs otherwise than planned is
decided between steps (`online`).
"""

import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from hydraplan.errors import InputError, RunFailed, WorkerLost
from hydraplan.executor.checkpoint import load, save, share
from hydraplan.executor.correction import COMPARED, asked_for, warm_up
from hydraplan.executor.folder import one_at_a_time, run_folder, sole_writer
from hydraplan.executor.groups import World
from hydraplan.executor.inject import parse_injected, refuse_too_late, slow_factor
from hydraplan.executor.launch import heeded_signals, run_workers, under_torchrun
from hydraplan.executor.online import Online, online
from hydraplan.executor.optimizer import clip_gradients, sharded_adamw, update
from hydraplan.executor.prepare import Job, prepare
from hydraplan.executor.record import Measured
from hydraplan.executor.replay import decisions_of, prove, replays, steps_of
from hydraplan.executor.resume import (
    Start,
    check_steps,
    earlier_run,
    is_checkpoint,
    is_foreign,
    output_of,
    refuse_moved_on,
    refuse_other,
    refuse_replay,
    start_again,
    start_of,
    taken,
    way_on,
)
from hydraplan.executor.settings import Settings
from hydraplan.executor.share_plan import share_plan
from hydraplan.executor.worker import run_step, set_up
from hydraplan.files.decisionsfile import Decided
from hydraplan.files.ledger import Ledger, rewind
from hydraplan.files.memoryfile import Peaks
from hydraplan.files.opsfile import StepOps
from hydraplan.files.parquet import seen_to_disk
from hydraplan.files.planfile import open_plan
from hydraplan.files.runfile import (
    Correction,
    Run,
    RunHeader,
    Step,
    create_run,
    finished,
    open_run,
    recorder,
)
from hydraplan.files.trafficfile import Traffic
from hydraplan.model import BatchPlan
from hydraplan.version import __version__
from hydraplan.views.console import note
from hydraplan.views.story_text import decision_note

LEARNING_RATE, CLIP_GRAD = 3e-4, 1.0
KEPT_CHECKPOINTS = 2


def execute(
    path: Path,
    settings: Settings,
    *,
    steps: int | None,
    output: Path | None,
    force: bool,
    learning_rate: float | None,
    clip_grad: float | None,
    resume: Path | None = None,
    checkpoint_every: int | None = None,
    keep: int = KEPT_CHECKPOINTS,
    max_restarts: int = 0,
    correction: Correction | None = None,
    migration: bool | None = None,
    replay: Path | None = None,
    read: Callable[[Run], None] | None = None,
) -> Run | None:
    """Train until `steps` steps (default: every batch once) are done and return the run.

    Gradients whose norm is above `clip_grad` are scaled down to it, 0 for none. Without `output`
    the run folder is gone when this returns. Under torchrun only rank 0
    returns a run, the others None. With `resume` the run goes on from the last checkpoint of
    another, in its folder if the plan is the same; what is None is taken from it.

    Args:
        checkpoint_every: Steps between checkpoints, the last `keep` of which stay; None for none.
        max_restarts: How often lost workers are started again, from the last checkpoint.
        correction: What makes op orders while the run goes on.
        migration: Whether work moves from slow ranks to others.
        replay: A run whose decisions are repeated.
        read: Called with the finished run while its files are there.

    Raises:
        HydraplanError: Whatever `prepare`, `start_of`, `refuse_other` and `decisions_of` refuse, or
            `RunFailed` when a worker ends early.
    """
    plan = open_plan(path)
    num_batches = plan.header.num_batches
    earlier = earlier_run(resume, output)
    first = start_of(earlier, plan)
    refuse_replay(earlier, replay)
    output = output_of(output, force, earlier, first)
    if max_restarts and under_torchrun():
        raise InputError(
            "--max-restarts has no use under torchrun, which starts the workers",
            "give it to torchrun: torchrun --max-restarts N ... -m hydraplan execute ...",
        )
    before = None if earlier is None else earlier.header
    learning_rate = taken(learning_rate, before, "learning_rate", LEARNING_RATE)
    clip_grad = taken(clip_grad, before, "clip_grad", CLIP_GRAD)
    checkpoint_every = taken(checkpoint_every, before, "checkpoint_every", None)
    same_plan = before if first.in_place else None
    asked = settings.injected
    settings = replace(
        settings,
        seed=taken(settings.seed, before, "seed", 0),
        dtype=taken(settings.dtype, before, "dtype", None),
        device=taken(settings.device, before, "device", None),
        attention=taken(settings.attention, before, "attention", None),
        recompute=taken(settings.recompute, same_plan, "recompute", None),
        injected=asked or tuple(map(parse_injected, same_plan.injected if same_plan else ())),
        paced=settings.paced or (same_plan is not None and same_plan.paced),
    )
    steps = taken(steps, same_plan, "steps", steps_of(replay, num_batches))
    for name, value in (("learning rate", learning_rate), ("largest gradient norm", clip_grad)):
        if not math.isfinite(value):
            raise InputError(f"{name} {value} is not a finite number")
    check_steps(steps, first, plan.header)
    refuse_too_late(asked, steps)
    if steps == first.steps:
        note(f"all {steps} steps of the run are done; --steps with a larger number trains on")
    asked_correction: Correction = taken(correction, before, "correction", "none")
    asked_migration = taken(migration, before, "migration", False)
    is_corrected = asked_correction != "none" or asked_migration
    earliest = max(0, first.steps - COMPARED) if first.in_place and is_corrected else first.steps
    needed = range(earliest, min(steps, first.steps + num_batches))
    job = prepare(path, sorted({step % num_batches for step in needed}), settings)
    header = RunHeader(
        tool_version=__version__,
        mode="measured",
        device=job.device,
        dtype=job.dtype,
        plan_name=path.name,
        plan_digest=job.digest,
        plan=job.header,
        steps=steps,
        seed=job.seed,
        learning_rate=learning_rate,
        clip_grad=clip_grad,
        recompute=job.recompute,
        attention=job.attention,
        data=job.data,
        checkpoint_every=checkpoint_every,
        injected=tuple(map(str, settings.injected)),
        paced=settings.paced,
        correction=asked_correction,
        migration=asked_migration,
    )
    repeated = decisions_of(replay, header)
    header = header.model_copy(update={"replays": replays(replay, repeated)})
    asked_for(header)
    if replay is not None:
        prove(replay, repeated, header, job.batches)
    if job.batches:
        warm_up(header, job.cost, job.batches[0])
    refuse_other(earlier, header)
    with run_folder(output) as folder:
        try:
            reports = _run(job, header, folder, first, keep, max_restarts, repeated)
        except WorkerLost as lost:
            lost.hint = "; ".join(part for part in (lost.hint, way_on(output, header)) if part)
            raise
        if not reports:
            return None
        run = open_run(folder)
        if read is not None:
            read(run)
        return run


def _run(
    job: Job,
    header: RunHeader,
    folder: Path,
    start: Start,
    keep: int,
    max_restarts: int,
    repeated: tuple[Decided, ...],
) -> bool:
    """Run all workers, again from the last checkpoint when one is lost; whether this reports."""
    pp, ranks = job.header.options.pp, job.header.options.ranks
    for restart in range(max_restarts + 1):
        if start.saved is not None:
            note(f"going on from {start.saved.path}")

        def entry(world: World, start: Start = start) -> None:
            _train(world, job, header, folder, start, keep, repeated)

        try:
            return run_workers(entry, pp, ranks, job.settings.timeout_s, job.device)
        except WorkerLost as lost:
            if restart == max_restarts:
                raise
            start = start_again(folder, start)
            note(
                f"{lost}; restart {restart + 1} of {max_restarts}: all workers, after step"
                f" {start.steps}"
            )
    raise AssertionError("the last restart returns or raises")


def _train(
    world: World,
    job: Job,
    header: RunHeader,
    folder: Path,
    start: Start,
    keep: int,
    repeated: tuple[Decided, ...],
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
    changes = online(world, job, header, repeated)
    ledger, last_decided = Ledger(), None

    def checkpoint(steps: int) -> None:
        save(world, folder, steps, share(weights, optimizer), job.digest, ledger.digest, keep)

    with ExitStack() as stack:
        stack.callback(changes.close)
        if world.rank == 0:
            with _signals_put_off(), seen_to_disk(folder), one_at_a_time(folder.parent):
                if folder.exists():
                    stack.enter_context(sole_writer(folder))
                if start.in_place:
                    refuse_moved_on(folder, start)
                    rewind(folder, header, start.steps)
                    ledger = Ledger(open_run(folder).steps)
                    changes.go_on(folder)
                else:
                    create_run(folder, header)
                    stack.enter_context(sole_writer(folder))
            record = stack.enter_context(recorder(folder))
        if header.checkpoint_every and is_foreign(start, folder):
            checkpoint(0)
        for step in range(start.steps, header.steps):
            batch = batches[step % job.header.num_batches]
            is_saved = is_checkpoint(step + 1, header)
            optimizer.zero_grad(set_to_none=True)
            now = changes.coming(step, batch)
            in_order = replace(job, steps={batch.batch: now.steps})
            slow = slow_factor(job.settings.injected, world.stage, world.lane, step)
            measured = run_step(worker, in_order, now.batch, now.moves, slow)
            norm = clip_gradients(weights, groups, header.clip_grad)
            if measured is not None:
                done = _finished(step, batch, measured, norm, changes)
                ledger.add(done._asdict())
                with _signals_put_off():
                    record(done, is_saved)
                note(
                    f"step {step + 1}/{header.steps}: loss {done.loss:.6g},"
                    f" gradient norm {norm:.4g}"
                )
                if done.decided is not None:
                    note(decision_note(done.decided, last_decided))
                    last_decided = done.decided
            update(optimizer)
            if is_saved:
                checkpoint(step + 1)


def _finished(
    step: int, batch: BatchPlan, measured: Measured, norm: float, changes: Online
) -> Step:
    loss = measured.loss
    for name, value in (("loss", loss), ("gradient norm", norm)):
        if not math.isfinite(value):
            raise RunFailed(
                f"the {name} of step {step} (batch {batch.batch}) is {value}",
                "lower --learning-rate; the steps before it are kept",
            )
    predicted = changes.prediction(batch.batch)
    ops = StepOps(measured.timeline, measured.waits, predicted.timeline)
    live = measured.peak_live_tokens, predicted.live_peaks
    peaks = Peaks(*live, measured.peak_bytes, predicted.peak_bytes)
    traffic = Traffic(measured.sent_bytes, predicted.sent_bytes)
    decided = changes.done(step, batch.batch, ops)
    return finished(step, batch, loss, ops, peaks, traffic, decided)


@contextmanager
def _signals_put_off() -> Iterator[None]:
    """Let the signals that end a worker wait until the block is done, so files are whole."""
    came: list[int] = []
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in heeded_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            os.kill(os.getpid(), came[0])
