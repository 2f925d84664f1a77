"""Op order by the policy, behind a guard: the best of its samples, the portfolio and ZB-H1.

The policy plays the busiest lane and the mean one, greedily and `SAMPLES` times at random. Its
orders, the portfolio's finalists and the static schedules within the limit are scored on the same
noise scenarios on all lanes (`scenarios`), and the best one is taken: the result is never worse
by that score than what it is guarded by. A critical-path search then goes on from it, with so many
turns that it takes about 50 ms, and is kept if the score on all lanes falls by `LEAST_GAIN` too:
what is searched on some scenarios fits these, and a smaller gain was a loss under other noise.
Nothing is drawn from a clock or a shared generator: same slots, same order.

Covers one chunk a stage.

Source: Conductor's agent emits the schedule alone; guard, samples and search are ours.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from hydraplan.errors import InputError, many
from hydraplan.model import Schedule
from hydraplan.planner.pipeline.memory import ROUNDING, Memory
from hydraplan.planner.pipeline.noise import Shape
from hydraplan.planner.pipeline.one_lane import mean_lane, one_lane
from hydraplan.planner.pipeline.portfolio import finalists
from hydraplan.planner.pipeline.scenarios import factors, scorer, weights
from hydraplan.planner.pipeline.static_orders import same_ops, static_orders
from hydraplan.planner.policy.env import schedule_of
from hydraplan.planner.policy.network import Policy
from hydraplan.planner.policy.path_search import Lane, search
from hydraplan.planner.policy.policy_file import load_policy
from hydraplan.planner.policy.rollout import samples
from hydraplan.planner.policy.world import Instance
from hydraplan.route import route
from hydraplan.slots import SlotTimes

SAMPLES = 16
"""Orders drawn by the policy besides its greedy one, of each lane."""

TURNS = 600_000
"""Turns of the search times stages times microbatches: 50 ms on the machine of our benchmarks."""


LEAST_GAIN = 0.003
"""Share of its score that a searched order has to save. On a batch of 8 stages one that saved 0.05%
took 0.8% longer where another rank was slow in each eighth of the iteration.
"""

SEARCHED = "+search"


class PolicyOrder(NamedTuple):
    """The order taken, and whose it is: `policy`, `portfolio` or the name of a static schedule.

    `source` says so, with `+search` if the search found a better one from there. `score_s`: of the
    order taken; `policy_s`, `guard_s`: of the policy's best and of the best of the others.
    """

    schedule: Schedule
    source: str
    score_s: float
    policy_s: float
    guard_s: float


def policy_order(
    times: SlotTimes, memory: Memory, policy: Policy | None = None, turns: int | None = None
) -> PolicyOrder:
    """Plan the ops of a batch; microbatches as they are numbered.

    Args:
        policy: The shipped one if None.
        turns: Of the search; None for as many as take 50 ms.

    Raises:
        InputError: There are several chunks a stage.
        Infeasible: Not even one microbatch at a time is within the limit.
    """
    _, stages, chunks, _, count = times.op_s.shape
    if chunks > 1:
        raise InputError(
            f"a policy orders one chunk a stage, not {many(chunks, 'chunk')}",
            "plan several chunks with auto",
        )
    score_s = scorer(times)

    def best(known: list[Schedule]) -> tuple[float, Schedule]:
        scored = [(score_s(schedule), i) for i, schedule in enumerate(known)]
        least_s, i = min(scored)
        return least_s, known[i]

    own_s, own = best(played(policy or shipped(), times, memory))
    guard_s, guard = best([*static_orders(times, memory), *finalists(times, memory)])
    way = times.route or route("loop", stages, chunks)
    named = same_ops(guard, way) or "portfolio"
    taken_s, taken, source = min((guard_s, guard, named), (own_s, own, "policy"), key=_first)
    turns = TURNS // (stages * count) if turns is None else turns
    if turns:
        moved = search(lane_of(one_lane(times), memory), taken, turns)
        moved_s = score_s(moved)
        if moved_s < (1 - LEAST_GAIN) * taken_s:
            taken_s, taken, source = moved_s, moved, source + SEARCHED
    return PolicyOrder(taken, source, taken_s, own_s, guard_s)


def _first(found: tuple[float, Schedule, str]) -> float:
    return found[0]


@cache
def shipped() -> Policy:
    """The policy in this package."""
    return load_policy()


def played(policy: Policy, times: SlotTimes, memory: Memory) -> list[Schedule]:
    """Orders that the policy makes, greedy ones first, each once."""
    orders: list[Schedule] = []
    for lane in (one_lane(times), mean_lane(times))[: times.op_s.shape[3]]:
        env = samples(policy, Instance(lane, memory), SAMPLES)
        orders += [schedule_of(env, n) for n in range(1 + SAMPLES)]
    return list(dict.fromkeys(orders))


def lane_of(times: SlotTimes, memory: Memory) -> Lane:
    """One lane in all scenarios of `scenarios.factors`, as the search takes it."""
    _, stages, _, _, count = times.op_s.shape
    factor = factors(Shape(stages, 1, count, 1)).reshape(3, stages, count, -1)
    share = np.array([memory.share(kind) for kind in ("F", "B", "W")])
    return Lane(
        op_s=times.op_s[:, :, 0, 0, :, None] * factor,
        travel_s=np.ascontiguousarray(times.boundary_s[0]),
        sync_s=times.grad_sync_s,
        weight=weights(stages),
        change=share[:, None] * memory.live.astype(float),
        most=memory.limit * (1 + ROUNDING),
    )
