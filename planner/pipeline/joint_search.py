"""Microbatch order and op order searched together: every order tried gets ops of its own.

`order.searched_order` moves microbatches under fixed ops, which is cheap but stays near what those
ops are good for. Here each order that is tried is list-scheduled anew, under the few rules that
did best at the start, and the fastest counts.

Source: ours.
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.pipeline.list_schedule import list_schedule
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.one_lane import one_lane
from hydraplan.planner.pipeline.order import neighbour
from hydraplan.planner.pipeline.portfolio import best_rules
from hydraplan.planner.pipeline.static_orders import ROOM
from hydraplan.route import route as named
from hydraplan.slots import SlotTimes

OPS = 1_000_000
"""What a search costs, in ops put down, whatever the size."""
ROUNDS, NEIGHBOURS = 16, 16
"""Rounds at least, and orders tried in each."""
RULES = (3, 32)
"""Fewest and most rules each order is tried under."""


def joint_order(times: SlotTimes, memory: Memory, ops: int = OPS) -> IntArray:
    """An order of the microbatches in which list scheduling ends sooner, or as they are.

    Args:
        ops: Ops put down in all, about, where `ROUNDS` and the fewest rules do not ask for more.
    """
    lane, rng = one_lane(times), np.random.default_rng(0)
    stages, chunks, _, count = lane.op_s.shape[1:]
    way = lane.route or named("loop", stages, chunks)
    op_s = np.ascontiguousarray(lane.op_s[:, :, :, 0].reshape(3, stages * chunks, count))
    affordable = ops // (ROUNDS * NEIGHBOURS * op_s.size)
    rules = best_rules(lane, memory, min(max(affordable, RULES[0]), RULES[1]))

    def ends_s(orders: IntArray) -> FloatArray:
        end_s = np.empty(len(orders))
        _fastest(
            orders, rules, op_s, lane.boundary_s[0], way.before, way.after, memory.live,
            memory.frees, memory.limit * (1 + ROOM), end_s,
        )  # fmt: skip
        return end_s

    best: IntArray = np.arange(count, dtype=np.int64)
    best_s = float(ends_s(best[None])[0])
    rounds = max(ROUNDS, ops // (NEIGHBOURS * len(rules) * op_s.size))
    for _ in range(rounds if count > 1 else 0):
        near = np.stack([neighbour(best, rng) for _ in range(NEIGHBOURS)])
        near_s = ends_s(near)
        if near_s.min() < best_s:
            best, best_s = near[near_s.argmin()], float(near_s.min())
    return best


@compiled
def _fastest(
    orders: IntArray,
    rules: FloatArray,
    op_s: FloatArray,
    boundary_s: FloatArray,
    before: IntArray,
    after: IntArray,
    live: FloatArray,
    frees: float,
    limit: float,
    end_s: FloatArray,
) -> None:
    """Fill when each order ends under the best of the rules, infinite where all get stuck."""
    kinds, nodes, microbatches = np.empty((3, op_s.size), np.int64)
    for i in range(len(orders)):
        now_s, travel_s = op_s[:, :, orders[i]], boundary_s[orders[i]]
        held = live[orders[i]]
        end_s[i] = np.inf
        for rule in rules:
            ended = list_schedule(
                rule, now_s, travel_s, before, after, held, frees, limit,
                kinds, nodes, microbatches,
            )  # fmt: skip
            end_s[i] = min(end_s[i], ended)
