"""What limits a batch, in words that name the sequence, the lane or the order."""

from collections.abc import Sequence
from textwrap import wrap

from hydraplan.cause import Limit
from hydraplan.errors import many
from hydraplan.model import BatchSummary
from hydraplan.views import console

SHOWN = 4
WIDTH, INDENT = 80, 9


def limits_object(found: Sequence[Limit]) -> list[dict[str, object]]:
    """Causes for `--json`, the largest first; what a cause is not about is left out."""
    return [
        {
            name: value
            for name, value in limit._asdict().items()
            if value not in (-1, "") and (name != "speed" or limit.cause == "lane")
        }
        for limit in found
    ]


def print_limits(batch: BatchSummary, found: Sequence[Limit]) -> None:
    """The largest causes, a share of the iteration each."""
    figures = batch.figures
    console.emit(
        f"what limits batch {batch.batch}: {figures['iteration_s']:.4g} s, at least"
        f" {figures['lower_bound_s']:.4g} s (efficiency {figures['efficiency']:.2f});"
        " shares of the iteration, one at a time"
    )
    for limit in found[:SHOWN]:
        first, *rest = wrap(limit_text(limit, batch), WIDTH - INDENT)
        console.draw([f"{limit.share:7.1%}  {first}", *(" " * INDENT + line for line in rest)])
    if not found:
        console.emit("  nothing that costs 1 %")
    console.emit()


def limit_text(limit: Limit, batch: BatchSummary) -> str:
    """One cause in words."""
    ranks = many(limit.degree, "rank")
    match limit.cause:
        case "sequence":
            return (
                f"sequence {limit.sequence_id} ({limit.length_tokens:,} tokens on {ranks},"
                f" microbatch {limit.microbatch}): if its work were spread over all microbatches"
            )
        case "lane":
            return f"lane {limit.lane}, at speed {limit.speed:.2f}: if it were as fast as most"
        case "order":
            return (
                f"order of microbatches, {batch.microbatch_order}: {limit.order} would be faster"
                f" (the heaviest is microbatch {limit.microbatch} of {batch.num_microbatches})"
            )
        case "lanes":
            return "lanes that do not share microbatches evenly"
        case "fill":
            count = many(batch.num_microbatches, "microbatch")
            return f"filling and draining the pipeline with {count}"
        case "grad_sync":
            return "gradient sync that nothing hides"
        case "group_wait":
            return "members of groups waiting for each other"
