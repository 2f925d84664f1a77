"""The decisions of a run, to be repeated by another: `execute --replay RUN`.

Repeated are the changes, at the same steps, whatever the devices do this time. So the other run has
to be of the same plan and as long; anything else is refused with both values.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hydraplan.errors import InputError, StalePlan
from hydraplan.executor.change import checked
from hydraplan.executor.valid import check_head
from hydraplan.files.decisionsfile import Decided, decisions_digest
from hydraplan.files.runfile import RunHeader, open_run
from hydraplan.model import BatchPlan


def steps_of(replay: Path | None, otherwise: int) -> int:
    """Steps of the run that is repeated, where there is one."""
    return otherwise if replay is None else open_run(replay).header.steps


def decisions_of(replay: Path | None, header: RunHeader) -> tuple[Decided, ...]:
    """Decisions of the run that is repeated.

    Raises:
        StalePlan: It ran another plan.
        InputError: It is not as long, not finished, or the new run is to decide for itself.
    """
    if replay is None:
        return ()
    if header.correction != "none" or header.migration:
        raise InputError(
            f"--replay {replay} repeats decisions, none are made",
            "leave --correction and --migration out",
        )
    run = open_run(replay)
    before = run.header
    for name, told, asked in (
        ("pp", before.plan.options.pp, header.plan.options.pp),
        ("ranks", before.plan.options.ranks, header.plan.options.ranks),
        ("plan digest", before.plan_digest[:16], header.plan_digest[:16]),
    ):
        if asked and told != asked:  # under torchrun rank 0 alone knows the digest
            raise StalePlan(
                f"run {replay} has {name} {told}, this one {asked}",
                f"repeat it with its own plan, {before.plan_name}",
            )
    if before.steps != header.steps:
        raise InputError(
            f"run {replay} is of {before.steps} steps, --steps {header.steps} are asked for",
            "leave --steps out",
        )
    if len(run.steps) < before.steps:
        raise InputError(
            f"run {replay} ended after {len(run.steps)} of its {before.steps} steps",
            "let it finish first: --resume",
        )
    return run.decisions


def prove(replay: Path, rows: Iterable[Decided], run: RunHeader, read: Iterable[BatchPlan]) -> None:
    """Refuse decisions that do not fit the batches that are about to run.

    Raises:
        InputError: One does not; the step and what does not fit are named.
    """
    batches = {batch.batch: batch for batch in read}
    model = run.plan.model.model_copy(update={"dtype": run.dtype})
    cost = replace(run.plan.cost_model(), model=model, recompute=run.recompute)
    for row in rows:
        if row.batch in batches:
            of = f"{replay}, step {row.step}"
            changed = checked(run.plan, batches[row.batch], row.change, of, cost)
            if run.paced:
                check_head(run.plan, changed.batch)


def replays(replay: Path | None, rows: tuple[Decided, ...]) -> str | None:
    """What a run says of the decisions that it repeats."""
    return None if replay is None else decisions_digest(rows)
