"""Orders planned for given costs under a memory limit: the table, and the choice among them.

The named schedules of `schedules` know no costs. Those here do: the zero-bubble heuristic, the
portfolio, the exact search, and `auto`, the fastest of everything that keeps to the limit on the
same way through the chunks. Each can be asked for the microbatches in several orders, and the best
of these can be searched on; microbatches are then numbered as they enter the first stage.

What is compared is always the noise-free run of all lanes.

Source: ours; which schedules there are is the field's.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hydraplan.errors import Infeasible
from hydraplan.metrics import shares
from hydraplan.model import IntArray, Schedule
from hydraplan.planner.pipeline.exact import solve_order
from hydraplan.planner.pipeline.joint_search import joint_order
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.one_lane import one_lane, reordered
from hydraplan.planner.pipeline.order import SEARCHED, searched_order
from hydraplan.planner.pipeline.portfolio import ROOM, portfolio
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.pipeline.zero_bubble import zero_bubble
from hydraplan.route import NOWHERE, route
from hydraplan.slots import SlotTimes

Make = Callable[[SlotTimes, Memory], Schedule]


def exact(times: SlotTimes, memory: Memory) -> Schedule:
    """The exact order of one lane, microbatches as they are numbered, or the portfolio's.

    Whichever is faster on all lanes. Errors as `exact.solve_order`.
    """
    return _exact(times, memory, keep_order=True)


def auto(times: SlotTimes, memory: Memory) -> Schedule:
    """The fastest of portfolio, heuristic and every static schedule within the limit.

    `exact` is left out: it takes seconds.

    Raises:
        Infeasible: Not even one microbatch at a time is within the limit.
    """
    return _fastest(times, [portfolio(times, memory), *canonical_orders(times, memory)])


PLANNED: dict[str, Make] = {
    "zb-1p": zero_bubble,
    "zb-2p": zero_bubble,
    "portfolio": portfolio,
    "exact": exact,
    "auto": auto,
}
"""Every planned order by the name that `--pipeline` takes; zb-1p and zb-2p differ in the limit."""


def canonical_orders(times: SlotTimes, memory: Memory) -> Iterator[Schedule]:
    """Static schedules on this way through the chunks within the limit, and the heuristic's."""
    _, stages, chunks, _, count = times.op_s.shape
    for name in static_names(times):
        schedule = SCHEDULES[name].make(stages, count, chunks)
        if within(schedule, memory, chunks):
            yield schedule
    if chunks == 1:
        yield zero_bubble(times, memory)


def static_names(times: SlotTimes) -> list[str]:
    """Schedules of the table that go this way through the chunks and that a plan may ask for."""
    stages, chunks = times.op_s.shape[1:3]
    way = times.route or route("loop", stages, chunks)
    return [
        name
        for name, pipeline in SCHEDULES.items()
        if not pipeline.simulated_only
        and (pipeline.chunks == chunks or (pipeline.chunks is None and chunks > 1))
        and np.array_equal(route(pipeline.route, stages, chunks).before, way.before)
    ]


def within(schedule: Schedule, memory: Memory, num_chunks: int) -> bool:
    """Whether no stage ever holds more than the limit."""
    peak = max(memory.peak(ops, num_chunks) for ops in schedule)
    return peak <= memory.limit * (1 + ROOM)


def canonical(name: str, times: SlotTimes, memory: Memory) -> Schedule:
    """The schedule whose bubble counts as fill: the named one, the best there is for a searched."""
    _, stages, chunks, _, count = times.op_s.shape
    if name in SCHEDULES:
        return SCHEDULES[name].make(stages, count, chunks)
    if name.startswith("zb-"):
        return zero_bubble(times, memory)
    return _fastest(times, canonical_orders(times, memory))


class Ordered(NamedTuple):
    """Microbatches in an order (`order[i]` runs i-th) of that name, and ops numbered alike."""

    iteration_s: float
    name: str
    order: IntArray
    schedule: Schedule


def plan_ops(
    pipeline: str, times: SlotTimes, memory: Memory, orders: dict[str, IntArray], search: bool
) -> Ordered:
    """The fastest ops over the given microbatch orders; `auto`: no static schedule is faster.

    Args:
        pipeline: A name in `PLANNED` or `SCHEDULES`.
        orders: Orders to try, by name; entry i is the microbatch that runs i-th.
        search: Whether to look for better ones around the best.

    Raises:
        Infeasible: No op order within the limit.
    """
    quick = "portfolio" if pipeline == "exact" else pipeline
    tried = [_with(quick, times, memory, name, order) for name, order in orders.items()]
    best = min(tried, key=_time_s)
    for look in _looks(quick) if search else ():
        now, room = reordered(times, best.order), _reordered(memory, best.order)
        order = best.order[look(now, room, best.schedule)]
        best = min(best, _with(quick, times, memory, SEARCHED, order), key=_time_s)
    if pipeline == "auto" and search:
        rivals = [_static(name, times, memory, orders) for name in static_names(times)]
        best = min([best, *(r for r in rivals if r is not None)], key=_time_s)
    if pipeline == "exact":
        now, room = reordered(times, best.order), _reordered(memory, best.order)
        schedule = _exact(now, room, keep_order=not search)
        best = _entering(best._replace(schedule=schedule), now)
    return best


def _looks(pipeline: str) -> tuple[Callable[[SlotTimes, Memory, Schedule], IntArray], ...]:
    """Ways to look for a better order of the microbatches, one after the other."""
    if pipeline in ("portfolio", "auto"):
        return _under_ops, _with_ops, _under_ops
    return (_under_ops,)


def _under_ops(times: SlotTimes, memory: Memory, schedule: Schedule) -> IntArray:
    return searched_order(times, schedule)


def _with_ops(times: SlotTimes, memory: Memory, schedule: Schedule) -> IntArray:
    return joint_order(times, memory)


def _with(pipeline: str, times: SlotTimes, memory: Memory, name: str, order: IntArray) -> Ordered:
    now, room = reordered(times, order), _reordered(memory, order)
    if pipeline in PLANNED:
        schedule = PLANNED[pipeline](now, room)
    else:
        _, stages, chunks, _, count = now.op_s.shape
        schedule = SCHEDULES[pipeline].make(stages, count, chunks)
    return Ordered(_iteration_s(now, schedule), name, order, schedule)


def _time_s(planned: Ordered) -> float:
    return planned.iteration_s


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
    moved = entry != sorted(entry)
    return Ordered(
        _iteration_s(times, planned.schedule),
        SEARCHED if moved else planned.name,
        planned.order[entry],
        schedule,
    )


def _exact(times: SlotTimes, memory: Memory, keep_order: bool) -> Schedule:
    hint = portfolio(times, memory)
    found = solve_order(one_lane(times), memory, hint=hint, keep_order=keep_order)
    return _fastest(times, [hint, found.schedule])


def _fastest(times: SlotTimes, schedules: Iterable[Schedule]) -> Schedule:
    runs = {schedule: _iteration_s(times, schedule) for schedule in schedules}
    if not runs:
        raise Infeasible(
            "no schedule is within the memory limit", "allow more with --live-microbatches"
        )
    return min(runs, key=lambda schedule: runs[schedule])


def _iteration_s(times: SlotTimes, schedule: Schedule) -> float:
    return shares(simulate(times, schedule))["iteration_s"]
