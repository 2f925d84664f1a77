"""The window of microbatch counts in words: its ends, what would open it, why a plan lies outside.

Source: our choice of words; the window is DESIGN section 6 (`planner.placement.window`).
"""

from collections.abc import Sequence

from hydraplan.errors import many
from hydraplan.model import BatchSummary

SHOWN_ADVICE = 3
"""Different pieces of advice that are printed; batches of a file mostly need the same."""

FEW = 4
"""So many batches are named one by one."""

OPENS = "what would open the window"
OPEN_MEANS = (
    "an open window makes balance possible, no plan faster by itself: hydraplan compare with that"
    " cap, tp or file tells"
)

ABOVE = (
    "slots are lighter than what the costliest sequence needs, so its own stand out, and the"
    " pipeline fills and drains sooner"
)
BELOW = (
    "slots of short tokens alone hold the cap before they are as costly as an even share, and stay"
    " lighter"
)
"""What a plan outside an open window gives up, and what it gains (docs/placement.md)."""


def window_text(plan: BatchSummary) -> str:
    """The window of microbatch counts, as people read it; least > most where it is empty.

    None where the longest sequence leaves no count at all.
    """
    low, high = plan.search.window_min, plan.search.window_max
    return f"{low}..{high}" if low <= high else f"{low} > {high}" if high else "none"


def batches_text(at: Sequence[int]) -> str:
    """Batches by number, ascending: all of a run of them or of a few, else the first and last."""
    if len(at) == 1:
        return f"batch {at[0]}"
    numbers = f"{at[0]}, {at[1]}, ..., {at[-1]}"
    if at[-1] - at[0] == len(at) - 1:
        numbers = f"{at[0]} to {at[-1]}"
    elif len(at) <= FEW:
        numbers = ", ".join(map(str, at))
    return f"{len(at)} batches ({numbers})"


def advice_lines(batches: Sequence[BatchSummary], rest: str) -> list[str]:
    """What would open the empty windows: a line for the batches that say the same.

    Beyond `SHOWN_ADVICE` lines `rest` says where the others stand.
    """
    by_advice: dict[str, list[int]] = {}
    for b in batches:
        if b.search.window_advice:
            by_advice.setdefault(b.search.window_advice, []).append(b.batch)
    lines = []
    for advice, at in list(by_advice.items())[:SHOWN_ADVICE]:
        who = batches_text(at)
        lines.append(f"{'every batch' if 1 < len(batches) == len(at) else who}: {advice}")
    silent = sum(len(at) for at in list(by_advice.values())[SHOWN_ADVICE:])
    if silent:
        lines.append(f"and {silent} more batches have an empty window: {rest}")
    if any(OPENS in advice for advice in by_advice):
        lines.append(OPEN_MEANS)
    return lines


def outside_lines(batches: Sequence[BatchSummary]) -> list[str]:
    """Why M lies outside a window that is open: a line for all batches above it, one for below."""
    lines = []
    for word, reason, outside in (
        ("above", ABOVE, [b for b in batches if 0 < b.search.window_max < b.num_microbatches]),
        ("below", BELOW, [b for b in batches if b.num_microbatches < b.search.window_min]),
    ):
        found = [b for b in outside if b.search.window_min <= b.search.window_max]
        if found:
            first = found[0]
            rest = f" (and {many(len(found) - 1, 'more batch')})" if len(found) > 1 else ""
            lines.append(
                f"batch {first.batch}: M {first.num_microbatches} is {word} the window"
                f" {window_text(first)}{rest}: {reason}"
            )
    return lines
