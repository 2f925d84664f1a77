"""Online correction on real workers: what a step runs is told to all, what it took teaches rank 0.

The decisions are those of `correction`, told as `tell_change` has it; the loads that they rest on
are scaled by `op_scale`. A run that is gone on with takes in its kept steps first, so it decides as
if nothing had ended it. One that asks for no correction, migration or replay tells nothing and
learns nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hydraplan.executor.ahead import Ahead
from hydraplan.executor.change import Changed
from hydraplan.executor.correction import (
    Corrections,
    Replay,
    Worked,
    asked_for,
    decide_of,
    in_parts,
)
from hydraplan.executor.groups import World
from hydraplan.executor.op_scale import OpScale
from hydraplan.executor.predicted import Predicted, predict
from hydraplan.executor.prepare import Job
from hydraplan.executor.tell_change import Known
from hydraplan.files.decisionsfile import Change, Decided, in_force, with_change
from hydraplan.files.opsfile import StepOps, each_ops
from hydraplan.files.runfile import RunHeader, open_run
from hydraplan.memory import kept_logit_rows
from hydraplan.metrics import shares
from hydraplan.migration import NO_MOVES
from hydraplan.model import BatchPlan


@dataclass(slots=True)
class Online:
    """Where the decisions of a run stand, on one worker; what is after `known` is for rank 0.

    `known` is None where nothing may change. `decided`: what takes effect in the step that runs.
    """

    job: Job
    known: Known | None
    batches: Mapping[int, BatchPlan]
    deciding: Corrections | Replay | None = None
    scale: OpScale | None = None
    ahead: Ahead | None = None
    predicted: dict[int, tuple[Change, Predicted]] = field(default_factory=dict)
    decided: Decided | None = None

    def coming(self, step: int, batch: BatchPlan) -> Changed:
        """The batch as all workers run it in this step; collective where something may change."""
        if self.known is None:
            return Changed(batch, self.job.steps[batch.batch], NO_MOVES)
        if self.deciding is None:  # rank 0 tells
            return self.known.tell(batch, None)
        self.decided = self.deciding.coming(step, batch)
        self._look_ahead(step + 1)
        return self.known.tell(batch, self.deciding.change(batch.batch))

    def _look_ahead(self, step: int) -> None:
        """Have the batch of the next step decided meanwhile, if it is open."""
        batch = self.batches.get(step % self.job.header.num_batches)
        if self.ahead is not None and isinstance(self.deciding, Corrections) and batch is not None:
            factor = self.deciding.open(batch.batch)
            if factor is not None:
                self.ahead.begin(batch, factor)

    def close(self) -> None:
        """End what decides ahead."""
        if self.ahead is not None:
            self.ahead.close()

    def change(self, batch: int) -> Change:
        """What a batch runs at present; on rank 0."""
        return Change() if self.deciding is None else self.deciding.change(batch)

    def prediction(self, batch: int) -> Predicted:
        """What is predicted of a batch as it runs at present; on rank 0."""
        return self._prediction(batch, self.change(batch))

    def done(self, step: int, batch: int, ops: StepOps) -> Decided | None:
        """Take in a step that all have finished, the decision that took effect in it; on rank 0."""
        if self.deciding is None:
            return None
        worked = self._worked(step, batch, self.change(batch), ops)
        return self.deciding.done(worked, self.decided)

    def go_on(self, folder: Path) -> None:
        """Take in the steps and decisions of a run that is gone on with; on rank 0.

        Raises:
            InputError: Its files are damaged, or its decisions are not those of its op times.
        """
        if self.deciding is None:
            return
        run = open_run(folder)
        options = run.header.plan.options
        each = each_ops(folder / "ops.parquet", len(run.steps), options.pp, options.ranks)
        for row, ops in zip(run.steps, each, strict=True):
            change = in_force(run.decisions, row["step"], row["batch"])
            worked = self._worked(row["step"], row["batch"], change, ops)
            self.deciding.again(worked, run.decisions)

    def _worked(self, step: int, batch: int, change: Change, ops: StepOps) -> Worked:
        load_s = ops.predicted.busy_s
        if self.scale is not None and isinstance(self.deciding, Corrections):
            load_s = self.scale.load_s(ops.timeline, ops.predicted, self.deciding.factor)
        taken_s = shares(ops.timeline)["iteration_s"]
        parts = in_parts(ops.timeline.busy_s), in_parts(load_s)
        return Worked(step, batch, change, taken_s, *parts)

    def _prediction(self, batch: int, change: Change) -> Predicted:
        last, found = self.predicted.get(batch, (None, None))
        if found is None or last != change:
            found = predict(self.job.cost, with_change(self.batches[batch], change), change.moves)
            self.predicted[batch] = change, found
        return found


def online(world: World, job: Job, header: RunHeader, replayed: Iterable[Decided]) -> Online:
    """What a worker starts with; `replayed`: decisions of the run that is repeated."""
    batches = {batch.batch: batch for batch in job.batches}
    known = Known(world, job) if asked_for(header) else None
    state = Online(job, known, batches)
    if known is None or world.rank != 0:
        return state
    if header.replays is not None:
        state.deciding = Replay(replayed, world.pp, world.ranks)
        return state
    most_rows = kept_logit_rows(job.model) if job.settings.paced else None
    decide = decide_of(header, job.cost, most_rows)
    state.ahead = Ahead(decide, batches, job.settings.timeout_s / 2)  # others wait that long
    state.deciding = Corrections(job.cost, batches, state.ahead)
    state.scale = OpScale()
    return state
