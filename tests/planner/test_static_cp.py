"""static-cp: first fit over groups, against a scan of all slots."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.planner.placement.one_degree import degrees_that_hold
from hydraplan.planner.placement.static_cp import pack_first_fit
from tests.planner.cases import long_tailed, request_for


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from([1, 4, 12]), st.sampled_from([2048, 4096]))
def test_each_sequence_goes_longest_first_to_the_first_group_with_room(
    seed: int, ranks: int, cap: int
) -> None:
    values = long_tailed(60, seed, longest=ranks * cap)
    asked = request_for(values, ranks=ranks, max_tokens_per_rank=cap)
    for found, degree in degrees_that_hold(asked):
        packed = pack_first_fit(asked, found, ranks // degree)
        assert packed is not None
        microbatch, group, count = packed
        held: list[list[int]] = []
        for i in np.lexsort((np.arange(len(values)), -values)):
            free = (
                (m, g)
                for m in range(len(held))
                for g in range(ranks // degree)
                if held[m][g] + found.rows[i] <= cap
            )
            m, g = next(free, (len(held), 0))
            if m == len(held):
                held.append([0] * (ranks // degree))
            held[m][g] += found.rows[i]
            assert (microbatch[i], group[i]) == (m, g)
        assert count == len(held)
