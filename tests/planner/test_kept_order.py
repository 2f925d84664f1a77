from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible, InputError
from hydraplan.files.lengths import Lengths
from hydraplan.invariants import check_plan
from hydraplan.layout import legal_degrees, rank_tokens_max
from hydraplan.model import BatchPlan, Sequences
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import check_figures
from hydraplan.planner.placement.choice import BALANCE_WORTH, straggles
from hydraplan.planner.placement.hydra import MOST_CANDIDATES, place_hydra
from hydraplan.planner.placement.kept_order import rising_and_falling
from hydraplan.planner.placement.place import Placement
from hydraplan.planner.plan import plan
from tests.planner.cases import cost_model, long_tailed, mix, options, profile, request_for


@cache
def planned(count: int, seed: int, **changes: object) -> tuple[PlanHeader, BatchPlan]:
    length = long_tailed(count, seed, longest=30_000)
    length[::7] = 0  # rows without a place count in windows too
    header, batches = plan(Lengths("test", "sequences", length), profile(), options(**changes), 1)
    return header, next(iter(batches))


@settings(deadline=None, max_examples=6)
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
    assert batch.microbatch_order == "as-built" or reorder == "window:1000"
    assert batch.num_microbatches % multiple == 0
    placed = batch.sequences.take(batch.sequences.on_ranks())
    size = 1 if reorder == "none" else int(reorder.removeprefix("window:"))
    assert out_of_order(placed, size) == 0
    assert batch.figures["displacement_max_rows"] < size


def out_of_order(placed: Sequences, size: int) -> int:
    """Pairs of rows of different windows of which the later runs before the earlier."""
    window, microbatch = placed.sequence_id // size, placed.microbatch
    later = window[:, None] > window[None, :]
    return int((later & (microbatch[:, None] < microbatch[None, :])).sum())


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    st.integers(1, 16), st.integers(1, 20), st.integers(1, 12),
    st.lists(st.integers(1, 4000), min_size=1, max_size=13),
)  # fmt: skip
def test_any_fixed_number_of_microbatches_is_met_exactly(
    ranks: int, count: int, size: int, length: list[int]
) -> None:
    length = [*length, 500]
    found = fixed(ranks, 500, f"window:{size}", count, length)
    rows = sum(n <= 500 * ranks for n in length)
    if found is None:
        assert count != rows, "one row a microbatch always fits"
        return
    header, batch = found
    placed = batch.sequences.placed()
    assert check_plan(header, batch) == []
    assert out_of_order(placed, size) == 0
    assert batch.num_microbatches == count
    assert len(set(placed.microbatch.tolist())) == count, "none is empty"


def fixed(
    ranks: int, cap: int, reorder: str, count: int, length: list[int]
) -> tuple[PlanHeader, BatchPlan] | None:
    """A plan of so many microbatches; None where there is none."""
    asked = options(
        ranks=ranks, pp=1, max_tokens_per_rank=cap, reorder=reorder, microbatches=count,
        batch_sequences=len(length),
    )  # fmt: skip
    lengths = Lengths("test", "sequences", np.array(length))
    try:
        header, batches = plan(lengths, profile(), asked, 1)
        return header, next(iter(batches))
    except Infeasible:
        return None


@pytest.mark.parametrize("size", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_where_any_plan_in_order_exists_one_is_found(size: int) -> None:
    for seed in range(25):
        rng = np.random.default_rng(seed)
        ranks, cap, rows = (int(rng.integers(*range_)) for range_ in ((1, 5), (4, 40), (1, 6)))
        most = cap * ranks if seed % 2 else cap
        length = rng.integers(1, most + 1, rows).tolist()
        cost = cost_model(ranks)
        fewest = least_microbatches(cost, length, size, cap)
        for count in range(fewest, rows + 1):
            found = fixed(ranks, cap, f"window:{size}", count, length)
            assert found is not None, (seed, ranks, cap, count, length)
            assert check_plan(*found) == []
        if fewest > 1:
            assert fixed(ranks, cap, f"window:{size}", fewest - 1, length) is None


def least_microbatches(cost: CostModel, length: list[int], size: int, cap: int) -> int:
    """By trying every way to fill one microbatch after the other."""
    everything = frozenset(range(len(length)))
    fitting = [
        frozenset(rows)
        for count in range(1, len(length) + 1)
        for rows in combinations(range(len(length)), count)
        if fit_together(cost, tuple(length[i] for i in rows), (0,) * cost.ranks, cap)
    ]
    reached, steps = {frozenset[int]()}, 0
    while everything not in reached:
        steps += 1
        reached = {
            done | rows
            for done in reached
            for rows in fitting
            if not done & rows
            and max(rows) // size <= min((everything - done - rows), default=len(length)) // size
        }
    return steps


def fit_together(cost: CostModel, length: tuple[int, ...], held: tuple[int, ...], cap: int) -> bool:
    """Whether rows fit into one microbatch, on any blocks in any shape; tries all."""
    if not length:
        return True
    for degree in legal_degrees(cost.ranks).tolist():
        u, r = np.array(cost.shapes(degree)).T
        rows = int(rank_tokens_max(np.full(len(u), length[0]), u, r).min())
        for first in range(0, cost.ranks - degree + 1, degree):
            filled = tuple(
                lane + rows * (first <= i < first + degree) for i, lane in enumerate(held)
            )
            if max(filled) <= cap and fit_together(cost, length[1:], filled, cap):
                return True
    return False


@pytest.mark.slow
def test_less_freedom_costs_time_but_beats_memory_sized_degrees_in_the_same_order() -> None:
    times = {}
    for reorder in ("batch", "window:64", "none"):
        _, batch = planned(512, 4, ranks=32, pp=4, batch_sequences=512, reorder=reorder)
        times[reorder] = batch.figures["iteration_s"]
        assert batch.search.memory_s >= batch.figures["iteration_s"] * (1 - 1e-9)
    assert times["batch"] < times["window:64"] < times["none"]


@pytest.mark.parametrize("reorder", ["none", "window:1", "window:16", "window:100"])
def test_a_load_driven_plan_in_order_exists_at_the_number_the_search_chose(reorder: str) -> None:
    asked = {"ranks": 32, "pp": 4, "batch_sequences": 512, "reorder": reorder}
    _, free = planned(512, 4, **asked)
    _, same = planned(512, 4, **asked, microbatches=free.num_microbatches)
    for batch in (free, same):
        assert batch.winner == "load-driven"
        assert batch.figures["iteration_s"] < 0.9 * batch.search.memory_s
    assert same.figures["iteration_s"] <= 1.01 * free.figures["iteration_s"]


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 9999), st.integers(4, 90), st.integers(2, 40), st.sampled_from([1, 3, 8]),
    st.sampled_from([1, 2, 4]), st.sampled_from([None, None, 4, 12]), st.booleans(),
)  # fmt: skip
def test_rows_that_may_move_are_never_slower_than_rows_that_may_not(
    seed: int, rows: int, size: int, ranks: int, pp: int, count: int | None, ascend: bool
) -> None:
    length = long_tailed(rows, seed, longest=3000 * ranks)
    if ascend:
        length.sort()
    assume(rows >= (count or 1))
    asked = {"ranks": ranks, "pp": pp, "microbatches": count}
    windows = request_for(length, reorder=f"window:{size}", **asked)
    none = request_for(length, reorder="none", **asked)
    try:
        kept = place_hydra(none)
    except Infeasible:
        return
    free = place_hydra(windows)
    assert free.search.num_candidates <= MOST_CANDIDATES
    uneven = [straggles(none, draft.slot_imbalance) for draft in (free, kept)]
    over = free.iteration_s / kept.iteration_s - 1
    assert over <= 1e-9 or (uneven == [False, True] and over <= BALANCE_WORTH)


@pytest.mark.slow
def test_windows_cost_twice_the_placements_and_gain_by_moving_whole_microbatches() -> None:
    length = mix("128K", 512, 0)
    asked = {"ranks": 32, "pp": 4, "max_tokens_per_rank": 8192}
    none = place_hydra(request_for(length, reorder="none", **asked))
    times = {}
    for size in (32, 256):
        found = place_hydra(request_for(length, reorder=f"window:{size}", **asked))
        times[size] = found.iteration_s / none.iteration_s
        assert found.search.num_candidates <= 2 * none.search.num_candidates
    assert max(times.values()) <= 1
    assert times[256] < 0.98


@pytest.mark.parametrize("size", [60, 61, 10**17])
def test_a_window_of_the_whole_batch_is_free_order(size: int) -> None:
    free, window = (planned(60, 3, reorder=reorder)[1] for reorder in ("batch", f"window:{size}"))
    for name in ("microbatch", "first_rank", "degree"):
        assert getattr(free.sequences, name).tolist() == getattr(window.sequences, name).tolist()
    assert free.microbatch_order == window.microbatch_order
    _, sorted_ = planned(60, 3, reorder=f"window:{size}", microbatch_order="long-first")
    assert sorted_.microbatch_order == "long-first"
    _, packed = planned(60, 3, reorder=f"window:{size}", strategy="memory-ffd")
    assert packed.strategy == "memory-ffd"


def test_microbatches_of_one_window_rise_to_the_middle_of_the_batch_and_fall() -> None:
    peaks_s = [[5.0], [3.0, 1.0, 2.0], [4.0], [1.0, 9.0]]
    parts = []
    for peak_s in peaks_s:
        each = np.arange(len(peak_s))
        parts.append(Placement(each, each, each, np.array(peak_s), 1.0))
    found = rising_and_falling(parts)
    assert [p.peak_s.tolist() for p in found] == [[5.0], [1.0, 2.0, 3.0], [4.0], [9.0, 1.0]]
    assert found[1].microbatch.tolist() == [2, 0, 1]
    alone = rising_and_falling([Placement(*[np.arange(4)] * 3, np.array([1.0, 2, 3, 4]), 1.0)])
    assert alone[0].peak_s.tolist() == [1.0, 3.0, 4.0, 2.0]


def test_windows_of_one_row_are_the_order_of_the_file() -> None:
    plans = [
        planned(60, 3, ranks=8, reorder=reorder)[1].sequences for reorder in ("none", "window:1")
    ]
    for name in ("microbatch", "first_rank", "degree"):
        assert getattr(plans[0], name).tolist() == getattr(plans[1], name).tolist()


def test_a_number_of_microbatches_that_is_too_small_is_refused() -> None:
    with pytest.raises(Infeasible, match="no plan with 1 microbatch keeps") as refused:
        planned(60, 1, ranks=1, reorder="none", microbatches=1)
    assert "let rows move farther" in (refused.value.hint or "")


@pytest.mark.parametrize("strategy", ["memory-ffd", "static-cp", "token-balance", "mcore-v1"])
def test_strategies_that_sort_the_batch_refuse(strategy: str) -> None:
    with pytest.raises(Infeasible, match=f"{strategy}.*--reorder none cannot be kept"):
        planned(60, 1, strategy=strategy, reorder="none", microbatch_order="as-built")


def test_moving_microbatches_is_refused_where_order_is_kept() -> None:
    with pytest.raises(InputError, match="--microbatch-order long-first moves microbatches"):
        planned(60, 1, reorder="window:9", microbatch_order="long-first")


def test_no_number_is_refused_in_any_order_that_a_kept_one_meets() -> None:
    """Rows that only fit at degrees that do not pay by themselves."""
    for ranks, cap, length, count in (
        (3, 64, [41, 107, 80, 1, 94, 19, 62, 83], 3),
        (3, 64, [177, 83, 8, 138, 102, 168, 89, 71, 12, 88, 124], 8),
        (6, 16, [37, 27, 39, 95, 16, 38, 82, 48, 18], 5),
    ):
        found = fixed(ranks, cap, "batch", count, length)
        assert found is not None, (ranks, cap, length)
        assert found[1].num_microbatches == count
        assert check_plan(*found) == []
        assert check_figures(*found) == []
    assert fixed(3, 64, "batch", 2, [41, 107, 80, 1, 94, 19, 62, 83]) is None
