"""Is a change of a batch fit to run: the plan's ops in an order that can go on, moves that fit.

A change comes from rank 0, from a decision just made or from the file of another run. Whoever is
about to run it asks here, as `prepare` asks of a plan: every op once and in legal order, no more
activations than the plan allows, lowered to messages that no transport gets stuck on, moves of
slots, ranks and buckets that are there, places that keep what the plan promises.
"""

from pathlib import Path
from typing import NamedTuple

from hydraplan.cost import CostModel
from hydraplan.errors import InputError, InvalidPlan
from hydraplan.executor.valid import lower_batch
from hydraplan.files.decisionsfile import Change, with_change
from hydraplan.invariants import RULES
from hydraplan.memory_limit import fits_as_planned
from hydraplan.metrics import planned_live_peaks
from hydraplan.migration import Moves, check_moves
from hydraplan.model import BatchPlan
from hydraplan.planheader import PlanHeader
from hydraplan.planner.pipeline.lowering import Steps
from hydraplan.planner.pipeline.memory import ROUNDING
from hydraplan.slots import slot_rows

RULES_OF_OPS = ("schedule", "live-tokens")
"""What a plan must hold of its op orders, whatever they are."""

NOT_OF_PLACES = ("accounted", *RULES_OF_OPS)
"""All others that it promises are asked of new places; which rows there are does not change."""


class Changed(NamedTuple):
    """A batch as it runs: its ops in their present order, what every stage does, what moves."""

    batch: BatchPlan
    steps: Steps
    moves: Moves


def checked(
    header: PlanHeader, batch: BatchPlan, change: Change, of: str, cost: CostModel | None = None
) -> Changed:
    """The changed batch, proven to run.

    Args:
        of: Where the change comes from, in words.
        cost: That of the run, which may make other things again than the plan; None for the plan's.

    Raises:
        InputError: It does not fit the batch.
    """
    cost, where = cost or header.cost_model(), f"{of}, batch {batch.batch}"
    hint = "the decisions are not of this plan, or were changed"
    try:
        found = with_change(batch, change)
    except InputError as error:
        raise InputError(f"{where}: {error}", hint) from None
    if len(found.schedule) != cost.pp:
        raise InputError(f"{where}: ops of {len(found.schedule)} stages, not {cost.pp}", hint)
    of_places = [rule for rule in RULES if rule in header.invariants and rule not in NOT_OF_PLACES]
    placed = found.sequences.placed()
    for name in (*(of_places if change.places else ()), *RULES_OF_OPS):
        for text in RULES[name](header, cost, found, placed):
            raise InputError(f"{where}: {text}", hint)
    rows = slot_rows(placed, cost.ranks, found.num_microbatches)
    try:
        check_moves(change.moves, cost.num_heads, placed, rows, cost.pp)
        steps = lower_batch(Path(of), header, found)
    except (InputError, InvalidPlan) as error:
        raise InputError(f"{where}: {error}", hint) from None
    limit = header.options.live_limit_tokens
    if limit is not None and change.moves:
        peak = float(planned_live_peaks(cost, found, change.moves).max())
        if peak > limit * (1 + ROUNDING):
            raise InputError(
                f"{where}: with its moves activations of {peak:.10g} tokens are held at once, the"
                f" limit is {limit}",
                hint,
            )
    if not fits_as_planned(cost, header.options, batch, header.cluster is not None)(
        found, change.moves
    ):
        raise InputError(
            f"{where}: it needs more memory than --memory-gib {header.options.memory_gib:g} of the"
            " plan and than the batch as planned",
            hint,
        )
    return Changed(found, steps, change.moves)
