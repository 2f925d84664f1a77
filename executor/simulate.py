"""`execute --simulate`: the same run folder from the plan's own cost model, without torch.

Each step is the simulation of its batch, as often as there are trials, each under draws of its own;
what the folder holds of steps and ops is the first trial, what it holds of trials is where their
time went. Nothing is trained, so there is no loss.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hydraplan.executor.correction import (
    Corrections,
    Replay,
    asked_for,
    decide_of,
    remembered,
    waits_for_compiler,
)
from hydraplan.executor.folder import run_folder
from hydraplan.executor.predicted import Predicted, predict
from hydraplan.executor.replay import decisions_of, prove, replays, steps_of
from hydraplan.executor.simulate_corrected import Deciding, Ran, beside, run_trial
from hydraplan.executor.valid import read_valid_batch
from hydraplan.files.decisionsfile import Change, Decided
from hydraplan.files.memoryfile import Peaks
from hydraplan.files.opsfile import StepOps, simulated_waits
from hydraplan.files.parquet import refuse_existing
from hydraplan.files.planfile import open_plan
from hydraplan.files.runfile import (
    Correction,
    Run,
    RunHeader,
    create_run,
    finished,
    open_run,
    our_files,
    plan_digest,
    recorder,
)
from hydraplan.files.trafficfile import Traffic
from hydraplan.files.trialsfile import Trials, write_trials
from hydraplan.model import BatchPlan, Timeline
from hydraplan.planner.compiled import WAIT
from hydraplan.planner.forked import in_order
from hydraplan.planner.pipeline.noise import Noise, draw, shape_of
from hydraplan.planner.pipeline.noisy_run import (
    noisy_run,
    noisy_timeline,
    with_pool_barrier,
)
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import SlotTimes, slot_times
from hydraplan.version import __version__
from hydraplan.views.console import counted, note, progress

KEPT = 256
"""Decisions that are kept, in case another trial comes to believe the same."""


def simulate_run(
    path: Path,
    *,
    steps: int | None,
    seed: int,
    output: Path | None,
    force: bool,
    noise: Noise | None = None,
    trials: int = 1,
    pool_barrier: bool = False,
    correction: Correction = "none",
    migration: bool = False,
    replay: Path | None = None,
    workers: int = 1,
) -> Run:
    """Simulate `steps` steps (default: every batch once) and return the run.

    Without `output` the run folder is gone when this returns. `pool_barrier`: all lanes of a stage
    meet in every F and B. `correction`, `migration`: what may change while it runs; `replay`: a run
    whose decisions are repeated; `workers`: processes that run the trials of these.

    Raises:
        InvalidPlan: The plan breaks an invariant.
        Infeasible: The op order of some stage can never go on.
    """
    if output is not None:
        refuse_existing(output, force, our_files(output))
    plan, noise = open_plan(path), noise or Noise()
    num_steps = steps_of(replay, plan.header.num_batches) if steps is None else steps
    cost = plan.header.cost_model()
    header = RunHeader(
        tool_version=__version__,
        mode="simulated",
        device=f"{plan.header.profile_mode} profile",
        dtype=plan.header.model.dtype,
        plan_name=path.name,
        plan_digest=plan_digest(plan),
        plan=plan.header,
        steps=num_steps,
        seed=seed,
        learning_rate=None,
        recompute=plan.header.options.recompute,
        data="none",
        noise=str(noise),
        trials=trials,
        pool_barrier=pool_barrier,
        correction=correction,
        migration=migration,
    )
    repeated = decisions_of(replay, header)
    header = header.model_copy(update={"replays": replays(replay, repeated)})
    visited = [read_valid_batch(plan, i) for i in range(min(num_steps, plan.header.num_batches))]
    if replay is not None:
        prove(replay, repeated, header, visited)
    meet = with_pool_barrier if pool_barrier else _as_it_is
    if asked_for(header):
        ran = _corrected(visited, header, noise, meet, repeated, workers)
    else:
        ran = _as_planned(visited, header, noise, meet)
    predicted: dict[tuple[int, Change], Predicted] = {}
    drawn = []
    with run_folder(output) as folder:
        create_run(folder, header)
        with recorder(folder, is_timed=False) as record:
            for step, (batch, change, timeline, decided, tried) in enumerate(ran):
                key = (batch.batch, change)
                if key not in predicted:
                    predicted[key] = predict(cost, batch, change.moves)
                planned = predicted[key]
                ops = StepOps(timeline, simulated_waits(timeline), planned.timeline)
                peaks = Peaks(None, planned.live_peaks, None, planned.peak_bytes)
                traffic = Traffic(None, planned.sent_bytes)
                record(finished(step, batch, None, ops, peaks, traffic, decided), False)
                drawn.append(tried)
        write_trials(folder / "trials.parquet", header, drawn)
        return open_run(folder)


def _as_planned(
    visited: Sequence[BatchPlan],
    header: RunHeader,
    noise: Noise,
    meet: Callable[[SlotTimes], SlotTimes],
) -> Iterator[Ran]:
    """Steps that change nothing; without noise a batch is run once."""
    cost = header.plan.cost_model()
    quiet: dict[int, tuple[Timeline, Trials]] = {}
    with progress("steps simulated", header.steps) as advance:
        for step in counted(range(header.steps), advance):
            batch = visited[step % len(visited)]
            if noise.active or batch.batch not in quiet:
                slots = meet(slot_times(cost, batch.sequences.placed(), batch.num_microbatches))
                quiet[batch.batch] = _step(
                    slots, batch, noise, header.trials, header.seed, step, cost.node_ranks
                )
            timeline, tried = quiet[batch.batch]
            yield Ran(batch, Change(), timeline, None, tried)


def _corrected(
    visited: Sequence[BatchPlan],
    header: RunHeader,
    noise: Noise,
    meet: Callable[[SlotTimes], SlotTimes],
    repeated: tuple[Decided, ...],
    workers: int,
) -> Iterator[Ran]:
    """Steps of the first trial, with what all trials took."""
    cost, batches = header.plan.cost_model(), {batch.batch: batch for batch in visited}
    made = decide_of(header, cost)
    decide = remembered(made, KEPT)

    def ran(trial: int) -> list[Ran]:
        deciding: Deciding = Corrections(cost, batches, decide)
        if header.replays is not None:
            deciding = Replay(repeated, cost.pp, cost.ranks)
        return run_trial(trial, visited, deciding, header, noise, meet)

    def tried(number: int) -> list[Trials]:
        return [step.tried for step in ran(number + 1)]

    if header.replays is None and waits_for_compiler(header):
        note(WAIT)
    first = ran(0)  # compiles what is not, so that workers find it
    rest = in_order(tried, header.trials - 1, workers, "simulating trial, not counting the first,")
    with rest as more, progress("trials simulated", header.trials - 1) as advance:
        all_tried = [[step.tried for step in first], *counted(more, advance)]
    for step, trials in zip(first, zip(*all_tried, strict=True), strict=True):
        yield step._replace(tried=beside(trials))


def _as_it_is(slots: SlotTimes) -> SlotTimes:
    return slots


def _step(
    slots: SlotTimes,
    batch: BatchPlan,
    noise: Noise,
    trials: int,
    seed: int,
    step: int,
    node_ranks: int,
) -> tuple[Timeline, Trials]:
    """Op times of the first trial of a step, and all its trials."""
    run = noisy_run(
        slots, batch.schedule, noise, trials=trials, seed=seed, step=step, node_ranks=node_ranks
    )
    tried = Trials(run.iteration_s, run.nominal_s, run.lost_s, run.without_s)
    if not noise.active:
        return simulate(slots, batch.schedule), tried
    draws = draw(noise, shape_of(slots, node_ranks), run.nominal_s, range(1), seed, step)
    return noisy_timeline(slots, batch.schedule, draws), tried
