"""What would open an empty window, and by how much.

The window is empty where memory (or short tokens) asks for more microbatches than the costliest
sequence allows. Each way out moves one of the two bounds:

* cap: both lower bounds fall with it; recomputing or offloading activations buys the room.
* tp: a rank of twice the devices holds twice the tokens and halves the costliest sequence.
* chunking: q chunks of equal work, run in different microbatches, divide the upper bound's floor.
* batch: bounds are whole numbers, so a batch can be too small to have one between them.

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


def window_advice(
    cost: CostModel, table: CostTable, length_tokens: IntArray, cap_tokens: int, window: Window
) -> str:
    """One sentence; empty if the window is open."""
    if not window.is_empty:
        return ""
    memory, short, floor = bounds(table, length_tokens, cost.pool_speed, cap_tokens)
    low = max(memory, short)
    why = "the cap" if memory >= short else "the load of short tokens under the cap"
    ways = []
    if low <= floor:
        ways.append(f"batches of {ceil(1 / max(floor - low, 1e-2))} times as many tokens")
    if window.high >= 1:
        enough = ceil(cap_tokens * low / window.high)
        ways.append(
            f"a cap of {enough} tokens (+{enough / cap_tokens - 1:.0%}, by recomputing or"
            " offloading activations)"
        )
    tp = _opening_tp(cost, length_tokens, cap_tokens)
    if tp is not None:
        ways.append(f"--tp {tp} on the same devices (--ranks {cost.ranks * cost.tp // tp})")
    chunks = ceil(ceil(low) / floor)
    if chunks > 1:
        ways.append(
            f"cutting the longest sequence ({length_tokens.max()} tokens) into {chunks} chunks of"
            " equal work"
        )
    return (
        f"{why} asks for at least {window.low} microbatches, the longest sequence allows at most"
        f" {window.high}; what would open the window: {', or '.join(ways)}"
    )


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
        if not microbatch_window(table, length_tokens, fewer.pool_speed, cap).is_empty:
            return tp
        tp *= 2
    return None
