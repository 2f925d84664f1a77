from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.files.lengths import Lengths
from hydraplan.invariants import check_plan
from hydraplan.layout import legal_degrees
from hydraplan.model import IntArray
from hydraplan.planner.figures import check_figures
from hydraplan.planner.placement import small_batch, tight_fill
from hydraplan.planner.placement.choice import BALANCE_WORTH, straggles
from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.exact import Limits
from hydraplan.planner.placement.exact_strategy import solve, summed_s
from hydraplan.planner.placement.hydra import place_hydra, place_once
from hydraplan.planner.placement.search import BALANCED, SLACKS
from hydraplan.planner.placement.tight_fill import (
    KEPT,
    SMALL,
    SPREAD,
    Lot,
    least_s,
    lot_of,
    tight_fillings,
    tightest,
)
from hydraplan.planner.plan import plan
from tests.planner.cases import long_tailed, mix, options, profile, request_for
from tests.planner.placed import UNBOUNDED, blocks_of


@st.composite
def lots(draw: st.DrawFn, most: int = 20, widest: int = 16) -> tuple[Lot, int]:
    """A batch whose loads fall with the degree, some levels forbidden; and microbatches."""
    pools = [r for r in (1, 2, 3, 4, 5, 6, 8, 12, 16) if r <= widest]
    ranks, microbatches = draw(st.sampled_from(pools)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    count, degrees = draw(st.integers(1, most)), legal_degrees(ranks)
    load_s = rng.lognormal(0, 1, (count, 1)) / degrees + 0.02
    floor = np.minimum(rng.integers(0, 3, count), len(degrees) - 1)
    load_s[np.arange(len(degrees)) < floor[:, None]] = np.inf
    rows = -(-rng.integers(1, 60, (count, 1)) // degrees)
    slow = rng.choice([1.0, 2.0], ranks) if draw(st.booleans()) else np.ones(ranks)
    cap = draw(st.sampled_from([60, 150, UNBOUNDED]))
    return Lot(load_s, rows, degrees, slow, cap), microbatches


@given(lots(), st.sampled_from([1.2, 2.0, np.inf]))
def test_every_filling_is_whole_within_the_cap_and_below_its_limit(
    case: tuple[Lot, int], over: float
) -> None:
    lot, microbatches = case
    peak_s = over * least_s(lot, microbatches)
    found = tightest(lot, microbatches, peak_s, 60)
    assert len(found) <= KEPT
    reached_s = []
    for limit_s, level, microbatch, first_rank in found:
        held_s, held = np.zeros((2, len(lot.slow), microbatches))
        for i, k in enumerate(level):
            lanes = slice(first_rank[i], first_rank[i] + lot.degrees[k])
            assert range(lanes.start, lanes.stop) in blocks_of(len(lot.slow), k)
            held_s[lanes, microbatch[i]] += lot.load_s[i, k] * lot.slow[lanes].max()
            held[lanes, microbatch[i]] += lot.rows[i, k]
        assert held.max() <= lot.cap_tokens
        assert least_s(lot, microbatches) * (1 - 1e-9) <= held_s.max() <= limit_s * (1 + 1e-9)
        assert limit_s < peak_s
        reached_s.append(held_s.max())
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(reached_s))
    assert not reached_s or reached_s[-1] <= SPREAD * reached_s[0] * (1 + 1e-9)


def least_possible_s(lot: Lot, microbatches: int) -> float:
    """The fullest slot of the best placement of all, by trying every one; infinite for none."""
    held_s, held = np.zeros((2, len(lot.slow), microbatches))
    best_s = np.inf

    def after(i: int) -> None:
        nonlocal best_s
        if i == len(lot.rows):
            best_s = min(best_s, held_s.max())
            return
        for k in np.flatnonzero(np.isfinite(lot.load_s[i])):
            for block in blocks_of(len(lot.slow), k):
                lanes, added_s = list(block), lot.load_s[i, k] * lot.slow[list(block)].max()
                for m in range(microbatches):
                    if (
                        held_s[lanes, m].max() + added_s < best_s
                        and held[lanes, m].max() + lot.rows[i, k] <= lot.cap_tokens
                    ):
                        before_s = held_s[lanes, m].copy()
                        held_s[lanes, m] += added_s
                        held[lanes, m] += lot.rows[i, k]
                        after(i + 1)
                        held_s[lanes, m] = before_s
                        held[lanes, m] -= lot.rows[i, k]

    after(0)
    return float(best_s)


def small_lot(seed: int) -> tuple[Lot, int]:
    """Up to five sequences on up to four ranks and two microbatches."""
    rng = np.random.default_rng(seed)
    ranks, microbatches, count = (int(rng.integers(1, most)) for most in (5, 3, 6))
    degrees = legal_degrees(ranks)
    load_s = rng.lognormal(0, 1, (count, 1)) / degrees + 0.02
    floor = np.minimum(rng.integers(0, 3, count), len(degrees) - 1)
    load_s[np.arange(len(degrees)) < floor[:, None]] = np.inf
    rows = -(-rng.integers(1, 60, (count, 1)) // degrees)
    slow = rng.choice([1.0, 2.0], ranks) if seed % 2 else np.ones(ranks)
    return Lot(load_s, rows, degrees, slow, int(rng.choice([60, 150, UNBOUNDED]))), microbatches


def fullest_s(lot: Lot, microbatches: int, places: tuple[IntArray, IntArray, IntArray]) -> float:
    held_s = np.zeros((len(lot.slow), microbatches))
    for i, (k, m, first) in enumerate(zip(*places, strict=True)):
        lanes = slice(first, first + lot.degrees[k])
        held_s[lanes, m] += lot.load_s[i, k] * lot.slow[lanes].max()
    return float(held_s.max())


def test_the_tightest_of_tiny_batches_is_close_to_the_best_of_all_placements() -> None:
    over = []
    for seed in range(150):
        lot, microbatches = small_lot(seed)
        least = least_possible_s(lot, microbatches)
        found = tightest(lot, microbatches, np.inf, 300)
        assert bool(found) == (least < np.inf)
        if found:
            over.append(fullest_s(lot, microbatches, found[0][1:]) / least)
    assert len(over) > 120
    assert min(over) > 1 - 1e-9
    assert np.mean(over) <= 1.005  # 1.0025 of 600 such batches, 1.2 at the worst
    assert max(over) <= 1.2


def test_more_fillings_are_never_worse() -> None:
    for seed in range(20):
        lot, microbatches = small_lot(seed)
        few, many = (tightest(lot, microbatches, np.inf, count) for count in (6, 300))
        if few:
            at_few, at_many = (fullest_s(lot, microbatches, f[0][1:]) for f in (few, many))
            assert at_many <= at_few * (1 + 1e-9)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Small batches under all options that a tight filling has to obey."""
    ranks, seed = draw(st.sampled_from([1, 2, 3, 6, 8, 12])), draw(st.integers(0, 999))
    return request_for(
        long_tailed(draw(st.integers(12, 30)), seed, longest=3000 * ranks),
        ranks=ranks,
        pp=draw(st.integers(1, 4)),
        min_degree=draw(st.sampled_from([1, 1, min(2, ranks)])),
        microbatch_multiple=draw(st.sampled_from([1, 2, 3])),
        microbatches=draw(st.sampled_from([None, None, 6, 12])),
        rank_speed=(0.5, *[1.0] * (ranks - 1)) if draw(st.booleans()) else None,
        engine=draw(st.sampled_from(["nested", "ring"])),
    )


def without_it(request: Request) -> Draft:
    with patch.object(small_batch, "tight_fillings", lambda *_: []):
        return place_hydra(request)


@pytest.mark.slow
@settings(max_examples=25)
@given(requests())
def test_a_plan_is_never_slower_with_it_and_its_point_can_be_placed_again(request: Request) -> None:
    found, plain = place_hydra(request), without_it(request)
    uneven = [straggles(request, draft.slot_imbalance) for draft in (found, plain)]
    assert found.iteration_s <= plain.iteration_s or uneven == [False, True]
    assert found.search.num_candidates >= plain.search.num_candidates
    assert found.search.num_rejected == plain.search.num_rejected
    assert found.num_microbatches % request.microbatch_multiple == 0
    assert found.sequences.degree.min() >= request.min_degree
    assert found.sequences.rank_tokens_max.max() <= request.cap_tokens
    place_once(request, found)


@settings(max_examples=25)
@given(requests())
def test_fillings_use_the_levels_of_the_request_and_say_their_slots(request: Request) -> None:
    lot, table = lot_of(request), request.table
    usable = np.isfinite(lot.load_s)
    assert usable.any(axis=1).all()
    assert not usable[:, ~table.offered].any()
    assert (usable.argmax(axis=1) >= table.floor[table.bucket]).all()
    assert (lot.rows[usable] <= request.cap_tokens).all()
    assert np.allclose(lot.load_s[usable], table.load_s[table.bucket][usable], rtol=1e-12)
    count = request.whole_multiple(request.window.memory + 1)
    for point, placement in tight_fillings(request, {count: np.inf}):
        places = placement.level, placement.microbatch, placement.first_rank
        assert point.num_microbatches == len(placement.peak_s) == count
        assert placement.peak_s.max() == pytest.approx(fullest_s(lot, count, places), rel=1e-9)
        assert placement.peak_s.max() <= point.limit_s * request.cost.mean_slow * (1 + 1e-9)
        assert placement.mean_s <= placement.peak_s.max() * (1 + 1e-9)


HELPED: dict[str, Any] = {"ranks": 8, "pp": 4, "max_tokens_per_rank": 10_000, "microbatches": 4}
"""A pool on which the plan of `mix("128K", 24, 0)` is a tight filling, balanced at 2% more time."""


def test_a_tight_filling_wins_where_it_alone_is_balanced() -> None:
    request = request_for(mix("128K", 24, 0), **HELPED)
    found, plain = place_hydra(request), without_it(request)
    assert found.slot_imbalance < BALANCED < plain.slot_imbalance
    assert found.iteration_s < (1 + BALANCE_WORTH) * plain.iteration_s
    assert found.winner == "load-driven"
    assert np.isnan(found.search.theta)
    assert found.search.slack not in SLACKS
    assert plain.search.num_candidates < found.search.num_candidates
    place_once(request, found)


def test_a_plan_with_it_is_valid_and_says_what_it_is() -> None:
    asked = options(batch_sequences=24, **HELPED)
    header, batches = plan(Lengths("t", "sequences", mix("128K", 24, 0)), profile(), asked, 1)
    batch = next(iter(batches))
    assert batch.search.slack not in SLACKS
    assert check_plan(header, batch) == []
    assert check_figures(header, batch) == []


def test_large_batches_and_kept_orders_are_left_alone() -> None:
    request = request_for(long_tailed(40, 3), ranks=8)
    assert tight_fillings(request, {6: np.inf})
    assert tight_fillings(replace(request, reorder="none"), {6: np.inf}) == []
    too_many = (SMALL - 40) // 8 + 1
    assert tight_fillings(request, {too_many: np.inf}) == []
    assert tight_fillings(request, {too_many - 1: np.inf})
    assert tight_fillings(request, {}) == []
    large = request_for(long_tailed(SMALL, 3))
    with patch.object(tight_fill, "fill_many", side_effect=AssertionError):
        place_hydra(large)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "ranks", "microbatches"), [(16, 8, 2), (24, 8, 4), (40, 16, 2)])
def test_the_tightest_is_within_five_percent_of_the_bound(
    count: int, ranks: int, microbatches: int
) -> None:
    length = np.minimum(mix("256K", count, 1), 65_536)
    cap = max(int(length.sum() / (0.8 * ranks * microbatches)), int(length.max()) // ranks + 3)
    request = request_for(
        length, pp=4, ranks=ranks, max_tokens_per_rank=cap, microbatches=microbatches
    )
    hint = place_hydra(request)
    bound_s = solve(request, hint, Limits(deterministic_s=4.0)).bound_s
    fills = tight_fillings(request, {microbatches: np.inf})
    peaks_s = [float(placement.peak_s.max()) + request.table.fixed_s for _, placement in fills]
    peaks_s.append(float(summed_s(request.cost, hint.sequences, microbatches).max()))
    assert 1 - 1e-6 <= min(peaks_s) / bound_s <= 1.05
