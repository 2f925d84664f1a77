"""What a plan claims of its exact op order, or of one by a policy, held against the order itself.

The solver is not run again. What can be told without it: the time on the lane the order was
solved for, and that the bound, the status and the gap go with that time.

Source: ours.
"""

from collections.abc import Iterator
from math import inf, isclose, isnan

from hydraplan.metrics import shares
from hydraplan.model import EXACT_STATUS, Schedule, Search
from hydraplan.planner.pipeline.exact import UNITS
from hydraplan.planner.pipeline.one_lane import one_lane
from hydraplan.planner.pipeline.scenarios import scorer
from hydraplan.planner.pipeline.schedules import OF_PLANS
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import SlotTimes

TOLERANCE = 1e-9
"""Relative difference that rounding may cause."""


def _policy_claims(
    pipeline: str, search: Search, slots: SlotTimes, schedule: Schedule
) -> Iterator[str]:
    """Sentences about an order by schedule `policy` that is not what its scores say."""
    scores = search.ops_policy_s, search.ops_guard_s
    if pipeline != "policy":
        if search.ops_from or not all(map(isnan, scores)):
            yield (
                f"ops_from {search.ops_from!r}, ops_policy_s {scores[0]:g} and ops_guard_s"
                f" {scores[1]:g} belong to schedule policy alone"
            )
        return
    name, _, rest = search.ops_from.partition("+")
    if name not in ("policy", "portfolio", *OF_PLANS) or rest not in ("", "search"):
        yield f"ops_from is {search.ops_from!r}, no policy, portfolio or static schedule"
    least_s, own_s = min(scores), scorer(slots)(schedule)
    if not all(0 < score_s < inf for score_s in scores):
        yield f"ops_policy_s {scores[0]:g} or ops_guard_s {scores[1]:g} is no time"
    elif own_s > least_s * (1 + TOLERANCE):
        yield f"the op order has {own_s:.9g} over the noise scenarios, its guard {least_s:.9g}"


def ops_claims(
    pipeline: str, search: Search, slots: SlotTimes, schedule: Schedule
) -> Iterator[str]:
    """Sentences about a status, a bound or a time that this op order does not have."""
    status, bound_s, work_s = search.ops_status, search.ops_bound_s, search.ops_deterministic_s
    yield from _policy_claims(pipeline, search, slots, schedule)
    if pipeline != "exact":
        if status or not all(isnan(x) for x in (bound_s, search.ops_time_s, work_s)):
            yield (
                f"ops_status {status!r}, ops_bound_s {bound_s:g}, ops_time_s"
                f" {search.ops_time_s:g} and ops_deterministic_s {work_s:g} belong to schedule"
                " exact alone"
            )
        return
    if status not in EXACT_STATUS:
        yield f"ops_status is {status!r}, not {' or '.join(EXACT_STATUS)}"
        return
    lane = one_lane(slots)
    time_s = shares(simulate(lane, schedule))["iteration_s"]
    if not isclose(search.ops_time_s, time_s, rel_tol=TOLERANCE):
        yield f"ops_time_s is stored as {search.ops_time_s:.9g}, this op order has {time_s:.9g}"
    if not 0 <= work_s < inf:
        yield f"ops_deterministic_s is {work_s:.9g}, no time"
    if not 0 < bound_s <= time_s * (1 + TOLERANCE):
        yield f"ops_bound_s is {bound_s:.9g}, this op order has {time_s:.9g}"
    elif status == "optimal":
        rounded_s = (2 * lane.op_s.size + 1) * float(lane.op_s.mean()) / UNITS  # ops and messages
        if time_s > bound_s * (1 + TOLERANCE) + rounded_s:
            yield f"called optimal, but the op order has {time_s:.9g}, ops_bound_s is {bound_s:.9g}"
