import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible, InputError
from hydraplan.files.lengths import Lengths
from hydraplan.invariants import check_plan
from hydraplan.model import BatchPlan
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import check_figures
from hydraplan.planner.plan import plan
from tests.planner.cases import long_tailed, options, profile


def planned(count: int, seed: int, **changes: object) -> tuple[PlanHeader, BatchPlan]:
    length = long_tailed(count, seed, longest=30_000)
    length[::7] = 0  # rows without a place count in windows too
    header, batches = plan(Lengths("test", "sequences", length), profile(), options(**changes), 1)
    return header, next(iter(batches))


@settings(deadline=None, max_examples=15)
@given(
    st.integers(0, 999), st.sampled_from([1, 3, 8, 12]), st.sampled_from([1, 4]),
    st.sampled_from(["none", "window:1", "window:5", "window:32", "window:1000"]),
    st.sampled_from([1, 3]),
)  # fmt: skip
def test_rows_leave_their_place_no_further_than_asked(
    seed: int, ranks: int, pp: int, reorder: str, multiple: int
) -> None:
    header, batch = planned(
        60, seed, ranks=ranks, pp=pp, reorder=reorder, microbatch_multiple=multiple
    )
    assert check_plan(header, batch) == []
    assert check_figures(header, batch) == []
    assert batch.microbatch_order == "as-built"
    assert batch.num_microbatches % multiple == 0
    placed = batch.sequences.take(batch.sequences.on_ranks())
    if reorder == "none":
        assert (np.diff(placed.microbatch) >= 0).all()
        assert batch.figures["displacement_max_rows"] == 0
    else:
        size = int(reorder.removeprefix("window:"))
        window = placed.sequence_id // size
        for m in range(batch.num_microbatches):
            assert len(set(window[placed.microbatch == m])) <= 1
        assert batch.figures["displacement_max_rows"] < size


def test_less_freedom_costs_time_but_beats_memory_sized_degrees_in_the_same_order() -> None:
    times = {}
    for reorder in ("batch", "window:64", "none"):
        _, batch = planned(512, 4, ranks=32, pp=4, batch_sequences=512, reorder=reorder)
        times[reorder] = batch.figures["iteration_s"]
        assert batch.search.memory_s >= batch.figures["iteration_s"] * (1 - 1e-9)
    assert times["batch"] < times["window:64"] < times["none"]


def test_a_fixed_number_of_microbatches_is_kept_or_refused() -> None:
    _, batch = planned(60, 1, ranks=8, reorder="none", microbatches=30)
    assert batch.num_microbatches == 30
    with pytest.raises(Infeasible, match="no plan with 1 microbatches"):
        planned(60, 1, ranks=1, reorder="none", microbatches=1)


@pytest.mark.parametrize("strategy", ["memory-ffd", "static-cp", "token-balance", "mcore-v1"])
def test_strategies_that_sort_the_batch_refuse(strategy: str) -> None:
    with pytest.raises(Infeasible, match=f"{strategy}.*--reorder none cannot be kept"):
        planned(60, 1, strategy=strategy, reorder="none", microbatch_order="as-built")


def test_moving_microbatches_is_refused_where_order_is_kept() -> None:
    with pytest.raises(InputError, match="--microbatch-order long-first moves microbatches"):
        planned(60, 1, reorder="window:9", microbatch_order="long-first")
