"""Token balance, as frameworks for reinforcement learning do it: equal squared lengths, then a cap.

One degree for the whole batch. Largest differencing on squared length shares the sequences out
over the groups and then, group by group, over its microbatches, whose number is the smallest,
equal for all groups, at which every slot holds within the cap: it is raised until it does. In each
group microbatches are numbered heaviest first. The degree is the best of all legal ones.

Source: two-level differencing on squared or plain length is common practice there; raising the
number until the cap holds is ours (they balance, and trust a margin).
"""

from collections.abc import Iterable

import numpy as np

from hydraplan.model import FloatArray, IntArray
from hydraplan.planner.compiled import compiled
from hydraplan.planner.placement.differencing import difference
from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.one_degree import (
    Packed,
    fastest_degree,
    pack_once,
)
from hydraplan.planner.placement.sizing import Sized


def place_token_balanced(request: Request) -> Draft:
    """The strategy `token-balance`.

    Raises:
        Infeasible: No degree holds all sequences, or none in the fixed number of microbatches.
    """
    return fastest_degree(request, "token-balance", pack_balanced)


def place_token_balanced_once(request: Request, found: Draft) -> None:
    """Both levels of differencing at the degree that was found, nothing scored."""
    pack_once(request, found, pack_balanced)


def pack_balanced(request: Request, found: Sized, num_groups: int) -> Packed | None:
    """Share out over the groups; None where a fixed number of microbatches does not suffice."""
    least = -(-int(found.rows.sum()) // (num_groups * request.cap_tokens))
    counts: Iterable[int] = _growing(request, request.whole_multiple(least))
    if request.microbatches is not None:
        counts = [request.microbatches]
    length = request.sequences.length_tokens
    return balance_tokens(length, found.rows, num_groups, request.cap_tokens, counts)


def _growing(request: Request, least: int) -> Iterable[int]:
    """Numbers of microbatches from `least` on: one after the other, later in steps of a 16th."""
    multiple = request.microbatch_multiple
    count, most = least, request.most_microbatches // multiple * multiple
    while count < most:
        yield count
        count = request.whole_multiple(count + 1 + count // 16)
    if least <= most:
        yield most


def balance_tokens(
    length_tokens: IntArray,
    rows: IntArray,
    num_groups: int,
    cap_tokens: int,
    counts: Iterable[int],
) -> Packed | None:
    """Microbatch and group of every sequence at the first of `counts` that holds within the cap.

    Args:
        rows: Rows of each sequence's fullest member, at most `cap_tokens`.
        counts: Numbers of microbatches to try, in this order.
    """
    weight = length_tokens.astype(float) ** 2
    group = difference(weight, num_groups)
    members = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[members], np.arange(num_groups + 1))
    microbatch = np.zeros(len(rows), np.int64)
    over = 0
    for count in counts:
        over = _share_out(weight, rows, members, starts, count, cap_tokens, over, microbatch)
        if over < 0:
            return microbatch, group, count
    return None


@compiled
def _share_out(
    weight: FloatArray,
    rows: IntArray,
    members: IntArray,
    starts: IntArray,
    num_microbatches: int,
    cap_tokens: int,
    first: int,
    microbatch: IntArray,
) -> int:
    """Fill `microbatch` group by group, from `first` on; -1, or a group with a slot over the cap.

    Members of group g are `members[starts[g] : starts[g + 1]]`.
    """
    groups = len(starts) - 1
    for i in range(groups):
        g = (first + i) % groups
        inside = members[starts[g] : starts[g + 1]]
        part = difference(weight[inside], num_microbatches)
        held = np.zeros(num_microbatches, np.int64)
        for j in range(len(inside)):
            held[part[j]] += rows[inside[j]]
            microbatch[inside[j]] = part[j]
        if held.max() > cap_tokens:
            return g
    return -1
