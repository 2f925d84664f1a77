"""`execute --simulate`: the same run folder from the plan's own cost model, without torch.

Each step is the noise-free simulation of its batch; nothing is trained, so there is no loss.
"""

from pathlib import Path

from hydraplan.executor.folder import run_folder
from hydraplan.executor.valid import read_valid_batch
from hydraplan.files.parquet import refuse_existing
from hydraplan.files.planfile import open_plan
from hydraplan.files.runfile import (
    Run,
    RunHeader,
    Step,
    create_run,
    open_run,
    our_files,
    plan_digest,
    recorder,
)
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import slot_times
from hydraplan.version import __version__


def simulate_run(
    path: Path, *, steps: int | None, seed: int, output: Path | None, force: bool
) -> Run:
    """Simulate `steps` steps (default: every batch once) and return the run.

    Without `output` the run folder is gone when this returns.

    Raises:
        InvalidPlan: The plan breaks an invariant.
        Infeasible: The op order of some stage can never go on.
    """
    if output is not None:
        refuse_existing(output, force, our_files(output))
    plan = open_plan(path)
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
        data="none",
    )
    visited = [read_valid_batch(plan, i) for i in range(min(num_steps, plan.header.num_batches))]
    timelines = {}
    with run_folder(output) as folder:
        create_run(folder, header)
        with recorder(folder) as record:
            for step in range(num_steps):
                batch = visited[step % len(visited)]
                placed = batch.sequences.placed()
                if batch.batch not in timelines:
                    slots = slot_times(cost, placed, batch.num_microbatches)
                    timelines[batch.batch] = simulate(slots, batch.schedule)
                tokens, valid = int(placed.length_tokens.sum()), int(placed.valid_tokens.sum())
                timeline = timelines[batch.batch]
                record(Step(step, batch.batch, tokens, valid, None, timeline))
        return open_run(folder)
