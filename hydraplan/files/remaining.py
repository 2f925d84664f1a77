"""What a run leaves to be planned: the rows of its length file after its last checkpoint.

Batches take rows in the order of the file, so what is trained are the rows before some row.
"""

from pathlib import Path

from hydraplan.config import ModelShape
from hydraplan.errors import InputError, StalePlan
from hydraplan.files.ledger import last_checkpoint, next_row
from hydraplan.files.lengths import Lengths, digest
from hydraplan.files.runfile import open_run
from hydraplan.planheader import Resumed


def read_remaining(path: Path, lengths: Lengths, model: ModelShape) -> Resumed:
    """Where a plan of the remaining rows begins.

    Raises:
        StalePlan: The run trained another model, or rows of other lengths.
        InputError: It has no checkpoint, or nothing remains of the file.
    """
    run = open_run(path)
    plan, found = run.header.plan, digest(lengths.length_tokens)
    if (found, lengths.unit) != (plan.lengths_digest, plan.lengths_unit):
        raise StalePlan(
            f"{lengths.name} has lengths digest {found[:16]} ({lengths.unit}), run {path} trained"
            f" {plan.lengths_name} with {plan.lengths_digest[:16]} ({plan.lengths_unit})",
            "give the length file that the run was planned from",
        )
    if model != plan.model:
        values = {name: (value, getattr(plan.model, name)) for name, value in model}
        name, (now, then) = next((n, v) for n, v in values.items() if v[0] != v[1])
        raise StalePlan(
            f"the profile's model has {name} {now}, run {path} trained one with {then}",
            "give a profile of the model that the run trained",
        )
    saved = last_checkpoint(run)
    if saved is None:
        raise InputError(f"run {path} has no checkpoint yet", "plan the whole file anew")
    steps, total = saved.about.steps, len(lengths.length_tokens)
    if steps > plan.num_batches:
        raise InputError(
            f"run {path} has done {steps} steps and its plan has {plan.num_batches} batches: it is"
            " past its first round over them, so no row remains that it has not trained",
            "go on with its own plan: hydraplan execute PLAN --resume RUN",
        )
    first_row = next_row(run.steps[:steps], plan.options.first_row)
    if first_row >= total:
        raise InputError(
            f"run {path} has trained all {total} rows of {lengths.name}, nothing remains",
            "train on: hydraplan execute PLAN --resume RUN --steps N",
        )
    return Resumed(plan_digest=run.header.plan_digest, steps=steps, first_row=first_row)
