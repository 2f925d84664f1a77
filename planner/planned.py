"""Orders planned for given costs under a memory limit: the table, and the choice among them.

The named schedules of `schedules` know no costs. Those here do: the zero-bubble heuristic, the
portfolio, the exact search, the policy, and `auto`, the fastest of everything else that keeps to
the limit on the same way through the chunks. Each can be asked for the microbatches in several
orders, and the best of these can be searched on; microbatches are then numbered as they enter the
first stage.

What is compared is the noise-free run of all lanes; for `portfolio` and `policy` the mean over the
noise scenarios (`scenarios`).

Source: ours; which schedules there are is the field's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from hydraplan.errors import Infeasible
from hydraplan.metrics import shares
from hydraplan.model import IntArray, Schedule
from hydraplan.planner.pipeline.exact import ExactOrder, solve_order
from hydraplan.planner.pipeline.joint_search import joint_order
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.one_lane import one_lane, reordered
from hydraplan.planner.pipeline.order import SEARCHED, searched_order
from hydraplan.planner.pipeline.portfolio import fastest, finalists, portfolio
from hydraplan.planner.pipeline.scenarios import scorer
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.pipeline.static_orders import static_names, static_orders, within
from hydraplan.planner.pipeline.zero_bubble import zero_bubble
from hydraplan.planner.policy.policy_order import PolicyOrder, policy_order
from hydraplan.route import NOWHERE, route
from hydraplan.slots import SlotTimes

Make = Callable[[SlotTimes, Memory], Schedule]

T = TypeVar("T")

ALIKE = 1e-9
"""Relative: times this close are one; sums of many ops round."""


def exact(times: SlotTimes, memory: Memory) -> Schedule:
    """The exact order of one lane, microbatches as they are numbered, or the fastest finalist.

    Whichever is faster on all lanes. Errors as `exact.solve_order`.
    """
    return _exact(times, memory, keep_order=True).schedule


def policy(times: SlotTimes, memory: Memory) -> Schedule:
    """By the policy that comes with this package, behind its guard. Errors as `policy_order`."""
    return policy_order(times, memory).schedule


def auto(times: SlotTimes, memory: Memory) -> Schedule:
    """The fastest of the portfolio's finalists, heuristic and static schedules within the limit.

    Of those that are equally fast it is the one that holds least, a static one first.

    `exact` is left out: it takes seconds.

    Raises:
        Infeasible: Not even one microbatch at a time is within the limit.
    """
    return _fastest(times, memory, [*canonical_orders(times, memory), *finalists(times, memory)])


PLANNED: dict[str, Make] = {
    "zb-1p": zero_bubble,
    "zb-2p": zero_bubble,
    "portfolio": portfolio,
    "exact": exact,
    "policy": policy,
    "auto": auto,
}
"""Every planned order by the name that `--pipeline` takes; zb-1p and zb-2p differ in the limit."""

UNDER_NOISE = ("portfolio", "policy")
"""Those of them that are chosen by their mean over the noise scenarios."""


def canonical_orders(times: SlotTimes, memory: Memory) -> Iterator[Schedule]:
    """Static schedules on this way through the chunks within the limit, and the heuristic's."""
    yield from static_orders(times, memory)
    if times.op_s.shape[2] == 1:
        yield zero_bubble(times, memory)


def canonical(name: str, times: SlotTimes, memory: Memory) -> Schedule:
    """The schedule whose bubble counts as fill: the named one, the best there is for a searched.

    That is the fastest of the static ones and the heuristic within the limit, or of the finalists
    where none of these is.
    """
    _, stages, chunks, _, count = times.op_s.shape
    if name in SCHEDULES:
        return SCHEDULES[name].make(stages, count, chunks)
    if name.startswith("zb-"):
        return zero_bubble(times, memory)
    known = list(canonical_orders(times, memory)) or finalists(times, memory)
    return _fastest(times, memory, known)


class Ordered(NamedTuple):
    """Microbatches in an order (`order[i]` runs i-th) of that name, and ops numbered alike.

    `score_s`: what it is chosen by. `proof`: what CP-SAT says of it where it was asked. `by`: who
    made it, where it was planned by a policy.
    """

    iteration_s: float
    name: str
    order: IntArray
    schedule: Schedule
    score_s: float
    proof: ExactOrder | None = None
    by: PolicyOrder | None = None


def plan_ops(
    pipeline: str, times: SlotTimes, memory: Memory, orders: dict[str, IntArray], search: bool
) -> Ordered:
    """The best ops over the given microbatch orders.

    For `auto`, `portfolio` and `policy` no static schedule within the limit is better in these
    orders, nor, with `search`, in the one found for it.

    Args:
        pipeline: A name in `PLANNED` or `SCHEDULES`.
        orders: Orders to try, by name; entry i is the microbatch that runs i-th.
        search: Whether to look for better ones around the best.

    Raises:
        Infeasible: No op order within the limit.
    """
    quick = "auto" if pipeline == "exact" else pipeline
    tried = [_with(quick, times, memory, name, order) for name, order in orders.items()]
    best = min(tried, key=_score_s)
    for look in _looks(quick) if search else ():
        now, room = reordered(times, best.order), _reordered(memory, best.order)
        order = best.order[look(now, room, best.schedule)]
        best = min(best, _with(quick, times, memory, SEARCHED, order), key=_score_s)
    if quick in ("auto", *UNDER_NOISE) and search:
        rivals = [_static(name, times, memory, orders) for name in static_names(times)]
        scored = [_scored(quick, times, r) for r in rivals if r is not None]
        best = min([best, *scored], key=_score_s)
    if pipeline == "policy":
        best = _searched(best, times, memory)
    if pipeline == "exact":
        now, room = reordered(times, best.order), _reordered(memory, best.order)
        found = _exact(now, room, keep_order=not search)
        best = _entering(best._replace(schedule=found.schedule, proof=found), now)
    return best


def _looks(pipeline: str) -> tuple[Callable[[SlotTimes, Memory, Schedule], IntArray], ...]:
    """Ways to look for a better order of the microbatches, one after the other."""
    if pipeline in ("auto", *UNDER_NOISE):
        return _under_ops, _with_ops, _under_ops
    return (_under_ops,)


def _under_ops(times: SlotTimes, memory: Memory, schedule: Schedule) -> IntArray:
    return searched_order(times, schedule)


def _with_ops(times: SlotTimes, memory: Memory, schedule: Schedule) -> IntArray:
    return joint_order(times, memory)


def _with(pipeline: str, times: SlotTimes, memory: Memory, name: str, order: IntArray) -> Ordered:
    now, room = reordered(times, order), _reordered(memory, order)
    by = None
    if pipeline == "policy":
        by = policy_order(now, room, turns=0)
        schedule = by.schedule
    elif pipeline in PLANNED:
        schedule = PLANNED[pipeline](now, room)
    else:
        _, stages, chunks, _, count = now.op_s.shape
        schedule = SCHEDULES[pipeline].make(stages, count, chunks)
    taken_s = _iteration_s(now, schedule)
    return _scored(pipeline, times, Ordered(taken_s, name, order, schedule, taken_s, by=by))


def _scored(pipeline: str, times: SlotTimes, found: Ordered) -> Ordered:
    """With the score that this schedule is chosen by: under noise for some."""
    if pipeline not in UNDER_NOISE:
        return found
    return found._replace(score_s=scorer(reordered(times, found.order))(found.schedule))


def _searched(found: Ordered, times: SlotTimes, memory: Memory) -> Ordered:
    """What the policy and its search make of the best order of the microbatches.

    That may be a static schedule's, of which the policy knows nothing yet.
    """
    now, room = reordered(times, found.order), _reordered(memory, found.order)
    by = policy_order(now, room)
    taken_s = _iteration_s(now, by.schedule)
    return found._replace(iteration_s=taken_s, schedule=by.schedule, score_s=by.score_s, by=by)


def _score_s(found: Ordered) -> float:
    return found.score_s


def _static(
    name: str, times: SlotTimes, memory: Memory, orders: dict[str, IntArray]
) -> Ordered | None:
    """A static schedule in its best order, searched ones included; None beyond the limit."""
    _, stages, chunks, _, count = times.op_s.shape
    ops = SCHEDULES[name].make(stages, count, chunks)
    kept = {n: o for n, o in orders.items() if within(ops, _reordered(memory, o), chunks)}
    if not kept:
        return None
    found = plan_ops(name, times, memory, kept, search=True)
    if within(ops, _reordered(memory, found.order), chunks):
        return found
    return plan_ops(name, times, memory, kept, search=False)


def _reordered(memory: Memory, order: IntArray) -> Memory:
    return replace(memory, live=memory.live[order])


def _entering(planned: Ordered, times: SlotTimes) -> Ordered:
    """Numbered as forwards enter the first stage; `times` are those of the numbers so far."""
    stages, chunks = times.op_s.shape[1:3]
    way = times.route or route("loop", stages, chunks)
    stage, chunk = np.argwhere(way.before == NOWHERE)[0]
    entry = [op.microbatch for op in planned.schedule[stage] if (op.kind, op.chunk) == ("F", chunk)]
    number = {m: i for i, m in enumerate(entry)}
    schedule = tuple(
        tuple(op._replace(microbatch=number[op.microbatch]) for op in ops)
        for ops in planned.schedule
    )
    moved, taken_s = entry != sorted(entry), _iteration_s(times, planned.schedule)
    name = SEARCHED if moved else planned.name
    return Ordered(taken_s, name, planned.order[entry], schedule, taken_s, planned.proof)


def _exact(times: SlotTimes, memory: Memory, keep_order: bool) -> ExactOrder:
    """What CP-SAT found, or the hint where that is faster on all lanes."""
    lane, hint = one_lane(times), fastest(times, memory)
    found = solve_order(lane, memory, hint=hint, keep_order=keep_order)
    best = _fastest(times, memory, [found.schedule, hint])
    time_s = _iteration_s(lane, best)
    proven = time_s <= found.time_s * (1 + ALIKE)
    return replace(
        found, schedule=best, time_s=time_s, status=found.status if proven else "feasible"
    )


def _fastest(times: SlotTimes, memory: Memory, schedules: Iterable[Schedule]) -> Schedule:
    """The fastest; of those that are alike, what holds least."""
    known, chunks = list(dict.fromkeys(schedules)), times.op_s.shape[2]
    if not known:
        raise Infeasible("no schedule is within the memory limit", "allow a stage to hold more")
    taken_s = [_iteration_s(times, schedule) for schedule in known]
    return fastest_of(known, taken_s, lambda schedule: memory.most(schedule, chunks))


def fastest_of(known: Sequence[T], taken_s: Sequence[float], held: Callable[[T], float]) -> T:
    """The fastest of several; of those as fast but for rounding what holds least, else the first.

    Args:
        taken_s: Time of each, shape (known,); infinite where it cannot be.
        held: What one of them holds at most.
    """
    enough_s = min(taken_s) * (1 + ALIKE)
    alike = [one for one, time_s in zip(known, taken_s, strict=True) if time_s <= enough_s]
    return min(alike, key=held)


def _iteration_s(times: SlotTimes, schedule: Schedule) -> float:
    return shares(simulate(times, schedule))["iteration_s"]
