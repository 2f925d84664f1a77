"""Lanes of a stage that wait for each other in an op: by groups, and since one works for another.

Lanes connected through groups meet in every layer: a set begins when its last lane does and takes
as long as its busiest. Lanes of which one has given work to the other begin together, which is
later than the taker may begin its own work, and each ends by itself.

Source: derived from the executor (`simulator`).
"""

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled


@compiled
def stops_of(component: IntArray) -> IntArray:
    """One past the last lane of the component that starts at a lane; same shape."""
    stop = np.empty_like(component)
    for m in range(component.shape[0]):
        end = component.shape[1]
        for lane in range(component.shape[1] - 1, -1, -1):
            stop[m, lane] = end
            if lane > 0 and component[m, lane] != component[m, lane - 1]:
                end = lane
    return stop


@compiled
def merged(one: IntArray, other: IntArray) -> IntArray:
    """Stops of lanes that are connected in either of two microbatches."""
    stop = np.empty_like(one)
    lane = 0
    while lane < len(one):
        end = max(one[lane], other[lane])
        after = lane + 1
        while after < end:
            end = max(end, one[after], other[after])
            after += 1
        stop[lane:end] = end
        lane = end
    return stop


@compiled
def together(begin_s: FloatArray, work_s: FloatArray, stop: IntArray, end_s: FloatArray) -> None:
    """Fill when lanes are free again; connected ones begin with the last and end together."""
    first = 0
    while first < len(begin_s):
        latest, longest = begin_s[first], work_s[first]
        for lane in range(first + 1, stop[first]):
            latest = begin_s[lane] if begin_s[lane] > latest else latest
            longest = work_s[lane] if work_s[lane] > longest else longest
        for lane in range(first, stop[first]):
            end_s[lane] = latest + longest
        first = stop[first]


@compiled
def with_partners(partner: IntArray, stop: IntArray, begin_s: FloatArray) -> None:
    """Let lanes begin no earlier than their partners do, who begin with their own sets of lanes."""
    at_s, is_new = begin_s.copy(), True
    while is_new:
        is_new, first = False, 0
        while first < len(at_s):
            at_s[first : stop[first]] = at_s[first : stop[first]].max()
            first = stop[first]
        for form in range(len(partner)):
            for lane in range(len(at_s)):
                if at_s[partner[form, lane]] > at_s[lane]:
                    at_s[lane] = begin_s[lane] = at_s[partner[form, lane]]
                    is_new = True
