"""What would open an empty window, and by how much.

The window is empty where memory (or short tokens) asks for more microbatches than the costliest
sequence allows. Each way out moves one of the two bounds:

* cap: both lower bounds fall with it; recomputing or offloading activations buys the room.
* tp: a rank of twice the devices holds twice the tokens and halves the costliest sequence.
* chunking: sequences beyond a length cut into chunks of less work, run in different
  microbatches, raise the upper bound.

An open window means that balance is possible, not that a plan there is faster: a larger cap costs
memory, a larger tp communication, and hydra often plans as fast under an empty window.

Source: our own derivation; what each way costs elsewhere is not modelled here.
"""

from dataclasses import replace
from math import ceil

from hydraplan.cost import CostModel
from hydraplan.errors import HydraplanError
from hydraplan.model import IntArray
from hydraplan.planner.placement.cost_table import CostTable, cost_table
from hydraplan.planner.placement.window import Window, bounds, microbatch_window
from hydraplan.stages import check_tensor_parallel

MAX_STEPS = 40
"""Caps that are tried before there is no advice on a cap."""


def window_advice(
    cost: CostModel, table: CostTable, length_tokens: IntArray, cap_tokens: int, window: Window
) -> str:
    """One sentence; empty if the window is open."""
    if not window.is_empty:
        return ""
    memory, short, most = bounds(table, length_tokens, cost.ranks, cap_tokens)
    asks = "the cap" if memory >= short else "the load of short tokens under the cap"
    why = (
        f"{asks} asks for at least {window.low} microbatches, the longest sequence allows at"
        f" most {window.high}"
        if window.high > 0
        else "the longest sequence, on as many ranks as lighten it, loads each of them"
        f" {1 / most:.4g} times an even share of the batch at its least cost, so the window holds"
        " no number of microbatches"
    )
    ways = []
    caps = _caps(cap_tokens, window, int(length_tokens.sum()))
    enough = _opening_cap(cost, table, length_tokens, caps)
    if enough is not None:
        ways.append(
            f"a cap of {enough} tokens (+{enough / cap_tokens - 1:.0%}, by recomputing or"
            " offloading activations)"
        )
    tp = _opening_tp(cost, length_tokens, cap_tokens)
    if tp is not None:
        ways.append(
            f"--tp {tp} on the same devices (--ranks {cost.ranks * cost.tp // tp}"
            f" --max-tokens-per-rank {cap_tokens * tp // cost.tp})"
        )
    allowed_s = most * table.floor_s / window.low
    if (table.load_s.min(axis=1) <= allowed_s).any():
        fitting = table.load_s.min(axis=1)[table.bucket] <= allowed_s
        longest = int(length_tokens[fitting].max())
        ways.append(f"chunks: no sequence costlier than one of {longest} tokens")
    if ways:
        return f"{why}; what would open the window: {', or '.join(ways)}"
    return (
        f"{why}; nothing would open the window: no cap up to {caps[-1]} tokens, no larger --tp on"
        " these devices, no cutting, since even the shortest sequence"
        f" ({int(length_tokens.min())} tokens) is too costly"
    )


def _caps(cap_tokens: int, window: Window, most_tokens: int) -> list[int]:
    """Larger caps to try, ascending, from the least that could close the gap.

    None is beyond `most_tokens`, those of the whole batch, but for the first.
    """
    most = max(cap_tokens + 1, most_tokens)
    caps = [min(most, ceil(cap_tokens * window.low / max(1, window.high)))]
    while len(caps) < MAX_STEPS and caps[-1] < most:
        caps.append(caps[-1] + 1 + caps[-1] // 50)
    return caps


def _opening_cap(
    cost: CostModel, table: CostTable, length_tokens: IntArray, caps: list[int]
) -> int | None:
    """About the smallest larger cap that opens the window; None if none of them does."""
    for cap in caps:
        larger = cost_table(cost, length_tokens, cap, table.offered)
        if not microbatch_window(larger, length_tokens, cost.ranks, cap).is_empty:
            return cap
    return None


def _opening_tp(cost: CostModel, length_tokens: IntArray, cap_tokens: int) -> int | None:
    """The smallest larger tp that opens the window on as many devices; None if none does."""
    tp = 2 * cost.tp
    while tp <= cost.fit.devices_per_node and cost.ranks * cost.tp % tp == 0:
        try:
            check_tensor_parallel(cost.model, tp, cost.fit.devices_per_node)
            fewer = replace(cost, tp=tp, ranks=cost.ranks * cost.tp // tp, rank_speed=None)
            cap = cap_tokens * tp // cost.tp
            table = cost_table(fewer, length_tokens, cap)
        except HydraplanError:
            return None
        if not microbatch_window(table, length_tokens, fewer.ranks, cap).is_empty:
            return tp
        tp *= 2
    return None
