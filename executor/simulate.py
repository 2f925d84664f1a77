"""`execute --simulate`: the same run folder from the plan's own cost model, without torch.

Each step is the simulation of its batch, as often as there are trials, each under draws of its own;
what the folder holds of steps and ops is the first trial, what it holds of trials is where their
time went. Nothing is trained, so there is no loss.
"""

from pathlib import Path

from hydraplan.executor.folder import run_folder
from hydraplan.executor.predicted import predict
from hydraplan.executor.valid import read_valid_batch
from hydraplan.files.memoryfile import Peaks
from hydraplan.files.opsfile import StepOps, simulated_waits
from hydraplan.files.parquet import refuse_existing
from hydraplan.files.planfile import open_plan
from hydraplan.files.runfile import (
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
from hydraplan.planner.pipeline.noise import Noise, draw, shape_of
from hydraplan.planner.pipeline.noisy_run import (
    noisy_run,
    noisy_timeline,
    with_pool_barrier,
)
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import SlotTimes, slot_times
from hydraplan.version import __version__


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
) -> Run:
    """Simulate `steps` steps (default: every batch once) and return the run.

    Without `output` the run folder is gone when this returns. `pool_barrier`: all lanes of a stage
    meet in every F and B.

    Raises:
        InvalidPlan: The plan breaks an invariant.
        Infeasible: The op order of some stage can never go on.
    """
    if output is not None:
        refuse_existing(output, force, our_files(output))
    plan, noise = open_plan(path), noise or Noise()
    num_steps = plan.header.num_batches if steps is None else steps
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
    )
    visited = [read_valid_batch(plan, i) for i in range(min(num_steps, plan.header.num_batches))]
    predicted = {b.batch: predict(cost, b) for b in visited}
    quiet: dict[int, tuple[Timeline, Trials]] = {}
    drawn = []
    with run_folder(output) as folder:
        create_run(folder, header)
        with recorder(folder) as record:
            for step in range(num_steps):
                batch = visited[step % len(visited)]
                placed = batch.sequences.placed()
                if noise.active or batch.batch not in quiet:
                    slots = slot_times(cost, placed, batch.num_microbatches)
                    slots = with_pool_barrier(slots) if pool_barrier else slots
                    quiet[batch.batch] = _step(
                        slots, batch, noise, trials, seed, step, cost.node_ranks
                    )
                timeline, tried = quiet[batch.batch]
                planned = predicted[batch.batch]
                ops = StepOps(timeline, simulated_waits(timeline), planned.timeline)
                peaks, traffic = Peaks(None, planned.live_peaks), Traffic(None, planned.sent_bytes)
                record(finished(step, batch, None, ops, peaks, traffic), False)
                drawn.append(tried)
        write_trials(folder / "trials.parquet", header, drawn)
        return open_run(folder)


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
