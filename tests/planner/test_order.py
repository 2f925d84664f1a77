import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.planner.pipeline.order import ORDERS, microbatch_order
from hydraplan.planner.placement.draft import in_global_order
from tests.builders import Place, placed_sequences


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20))
def test_every_order_runs_every_microbatch_once(busiest: list[int]) -> None:
    load = np.array([busiest, [0] * len(busiest)], float)
    for name in ORDERS:
        assert sorted(microbatch_order(name, load).tolist()) == list(range(len(busiest)))


def test_long_first_and_sandwich_do_what_their_names_say() -> None:
    load = np.array([[3.0, 9.0, 1.0, 7.0, 5.0]])
    assert microbatch_order("as-built", load).tolist() == [0, 1, 2, 3, 4]
    assert microbatch_order("long-first", load).tolist() == [1, 3, 4, 0, 2]
    assert load[0, microbatch_order("sandwich", load)].tolist() == [1, 5, 9, 7, 3]


def test_inside_a_microbatch_wide_groups_come_first_then_the_id() -> None:
    placed = placed_sequences(
        [Place(5, 0, 1, 1), Place(9, 0, 2, 1), Place(7, 2, 1, 1), Place(8, 0, 2, 2)]
    )
    ordered = in_global_order(placed)
    assert dict(zip(ordered.sequence_id.tolist(), ordered.order.tolist(), strict=True)) == {
        3: 0, 1: 1, 0: 2, 2: 3,
    }  # fmt: skip
