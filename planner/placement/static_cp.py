"""Static context parallelism: one degree for the whole batch, sequences packed to the cap.

Longest first, each sequence goes to the first microbatch and there the first group with room; a
group has room while the rows of its fullest member, summed, stay within the cap. The degree is the
best of all legal ones, which is more than a hand-set one usually is.

Where more microbatches are asked for than packing to the cap opens, it packs to the lowest
cap that needs no more, which spreads the work over them.

Source: first-fit decreasing is standard; static CP is what training frameworks do without
dynamic degrees, packing and sweep are ours.
"""

from bisect import bisect_left

import numpy as np

from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.memory_ffd import place_first_fit
from hydraplan.planner.placement.one_degree import Packed, fastest_degree, pack_once
from hydraplan.planner.placement.sizing import Sized


def place_static(request: Request) -> Draft:
    """The strategy `static-cp`.

    Raises:
        Infeasible: No degree holds all sequences, or none in the fixed number of microbatches.
    """
    return fastest_degree(request, "static-cp", pack_first_fit)


def place_static_once(request: Request, found: Draft) -> None:
    """The packing alone at the degree that was found, nothing scored."""
    pack_once(request, found, pack_first_fit)


def pack_first_fit(request: Request, found: Sized, num_groups: int) -> Packed | None:
    """First fit over the groups; None where a fixed number of microbatches does not suffice."""
    one_lane, length = np.zeros_like(found.level), request.sequences.length_tokens

    def filled(cap: int) -> Packed:
        return place_first_fit(found.rows, one_lane, length, num_groups, cap)

    packed = filled(request.cap_tokens)
    wanted = request.microbatches or request.whole_multiple(packed[2])
    if packed[2] > wanted:
        return None
    if packed[2] < wanted:
        caps = range(int(found.rows.max()), request.cap_tokens)
        lowest = bisect_left(caps, True, key=lambda cap: filled(cap)[2] <= wanted)
        packed = filled(caps.start + lowest)
    return packed[0], packed[1], wanted
