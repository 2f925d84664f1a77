from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.files.lengths import Lengths
from hydraplan.files.planfile import open_plan, read_batch, write_plan
from hydraplan.invariants import check_plan
from hydraplan.model import BatchPlan
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import check_figures
from hydraplan.planner.open_request import open_request
from hydraplan.planner.pipeline.fast_run import slots_of
from hydraplan.planner.placement import exact_strategy
from hydraplan.planner.placement.draft import Draft, Request, draft
from hydraplan.planner.placement.exact import ExactPlacement, Limits
from hydraplan.planner.placement.exact_strategy import place_exact, place_exact_once, summed_s
from hydraplan.planner.placement.hydra import place_hydra
from hydraplan.planner.plan import finish, plan, prepare
from tests.planner.cases import long_tailed, options, profile, request_for

BRIEFLY = Limits(deterministic_s=0.3)


def plan_few(strategy: str = "exact") -> tuple[PlanHeader, BatchPlan]:
    """Seven sequences on eight ranks and two microbatches, proven optimal at once."""
    lengths = Lengths("test", "sequences", long_tailed(7, 1))
    asked = options(strategy=strategy, batch_sequences=7, max_tokens_per_rank=8192, microbatches=2)
    header, batches = plan(lengths, profile(), asked, 1)
    return header, next(iter(batches))


@cache
def planned() -> tuple[PlanHeader, BatchPlan]:
    return plan_few()


def fullest_s(request: Request, found: Draft) -> float:
    """The fullest slot as it is run, seconds."""
    return float(slots_of(request.cost, found.sequences, found.num_microbatches).load_s.max())


def test_an_exact_plan_says_that_it_is_optimal_and_can_be_checked_and_read(tmp_path: Path) -> None:
    header, made = planned()
    assert made.search.exact_status == "optimal"
    assert made.num_microbatches == 2
    write_plan(tmp_path / "x.plan", header, [made])
    opened = open_plan(tmp_path / "x.plan")
    read = read_batch(opened, 0)
    assert read.search.exact_status == "optimal"
    assert read.search.bound_s == made.search.bound_s > 0
    summed = summed_s(header.cost_model(), made.sequences.placed(), 2)
    assert read.search.fullest_slot_s == pytest.approx(summed.max(), rel=1e-12)
    assert 0 <= read.search.bound_gap <= 1e-5
    assert check_plan(opened.header, read) == []
    assert check_figures(opened.header, read) == []


def test_the_same_batch_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, (header, made) in (("a", planned()), ("b", plan_few())):
        write_plan(tmp_path / name, header, [made])
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


@pytest.mark.parametrize(
    ("status", "factor", "sentence"),
    [
        ("optimal", 1.001, "bound_s is"),
        ("optimal", 0.99, "called optimal, but its fullest slot has"),
        ("feasible", 0.0, "bound_s is 0"),
        ("feasible", float("nan"), "bound_s is nan"),
        ("best", 1.0, "exact_status is 'best', not optimal or feasible"),
    ],
)
def test_a_status_or_bound_that_the_plan_does_not_have_is_named(
    status: str, factor: float, sentence: str
) -> None:
    header, made = planned()
    bound_s = made.search.bound_s * factor
    claimed = replace(made, search=replace(made.search, exact_status=status, bound_s=bound_s))
    (text,) = check_figures(header, claimed)
    assert sentence in text


def test_another_fullest_slot_than_the_plan_has_is_named() -> None:
    header, made = planned()
    claimed = replace(made, search=replace(made.search, fullest_slot_s=1.0))
    (text,) = check_figures(header, claimed)
    assert "fullest_slot_s is stored as 1, this plan has" in text


def test_another_strategy_may_not_claim_a_bound() -> None:
    header, made = plan_few("hydra")
    assert check_figures(header, made) == []
    claimed = replace(made, search=replace(made.search, bound_s=1.0))
    (text,) = check_figures(header, claimed)
    assert "belong to strategy exact alone" in text


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(st.integers(0, 10_000), st.sampled_from([1, 3, 6, 8]), st.booleans(), st.booleans())
def test_the_fullest_slot_is_never_fuller_than_hydras(
    seed: int, ranks: int, slow: bool, pairs: bool
) -> None:
    changes: dict[str, object] = {"ranks": ranks, "max_tokens_per_rank": 16_384}
    if slow:
        changes["rank_speed"] = (0.6, *[1.0] * (ranks - 1))
    if pairs:
        changes["min_degree"] = 2 if ranks > 1 else 1
    request = request_for(long_tailed(12, seed, longest=16_000), **changes)
    hint = place_hydra(request)
    found = place_exact(request, BRIEFLY)
    assert fullest_s(request, found) <= fullest_s(request, hint) * (1 + 1e-9)
    summed = summed_s(request.cost, found.sequences, found.num_microbatches)
    assert 0 < found.search.bound_s <= summed.max() * (1 + 1e-9)
    assert found.sequences.degree.min() >= changes.get("min_degree", 1)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 100_000), st.integers(1, 24), st.integers(1, 8), st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 3]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_every_random_batch_is_placed_and_passes_validate(
    seed: int, count: int, ranks: int, pp: int, multiple: int, slow: bool, whole: bool
) -> None:
    multiple = min(multiple, count)  # fewer sequences than microbatches are refused
    asked = options(
        strategy="exact", batch_sequences=count, ranks=ranks, pp=pp, max_tokens_per_rank=16_384,
        microbatch_multiple=multiple, min_degree=ranks if whole else 1,
        rank_speed=tuple(np.linspace(0.5, 1.0, ranks)) if slow else None,
    )  # fmt: skip
    lengths = Lengths("test", "sequences", long_tailed(count, seed, longest=16_000))
    header, batches = prepare(lengths, profile(), asked, 1)
    request = open_request(batches.cost, asked, batches[0])
    made = finish(request, asked, 0, batches[0], place_exact(request, BRIEFLY))
    assert check_plan(header, made) == []
    assert check_figures(header, made) == []
    assert made.sequences.on_ranks().tolist() == list(range(count))


def test_slot_loads_are_sums_of_predicted_seconds_and_the_fixed_cost() -> None:
    request = request_for(np.array([4000, 300]), ranks=2, microbatches=1, rank_speed=(1.0, 0.5))
    placed = replace(
        request.sequences,
        microbatch=np.array([0, 0]),
        first_rank=np.array([0, 0]),
        degree=np.array([2, 1]),
        predicted_s=np.array([0.5, 0.25]),
    )
    fixed_s = request.table.fixed_s
    # the pair waits for its slow lane on both
    assert summed_s(request.cost, placed, 1).tolist() == [[1.25 + fixed_s], [1.0 + 2 * fixed_s]]


def test_hydras_plan_is_kept_where_the_exact_one_is_fuller_in_truth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = request_for(long_tailed(12, 3, longest=16_000), max_tokens_per_rank=16_384)
    zero = np.zeros(12, np.int64)
    all_on_one_rank = ExactPlacement(zero, zero, zero, "optimal", 2.0, 1.0, 3)
    monkeypatch.setattr(exact_strategy, "solve", lambda *_: all_on_one_rank)
    hint, found = place_hydra(request), place_exact(request)
    assert found.sequences.first_rank.tolist() == hint.sequences.first_rank.tolist()
    assert (found.search.exact_status, found.search.bound_s) == ("feasible", 1.0)
    assert found.winner == hint.winner


def test_what_the_solver_piles_on_the_first_lanes_is_spread_over_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = request_for(np.full(8, 4000), ranks=8, microbatches=8)
    zero = np.zeros(8, np.int64)
    piled = ExactPlacement(zero, np.arange(8), zero, "feasible", 2.0, 1.0, 3)
    monkeypatch.setattr(exact_strategy, "place_hydra", on_first_lane)
    monkeypatch.setattr(exact_strategy, "solve", lambda *_: piled)
    found = place_exact(request)
    assert sorted(found.sequences.first_rank.tolist()) == list(range(8))


def on_first_lane(request: Request) -> Draft:
    zero = np.zeros(8, np.int64)
    return draft(request, request.sized(zero), np.arange(8), zero, 8, "load-driven")


def test_a_batch_too_large_is_refused_with_its_size() -> None:
    request = request_for(long_tailed(2000, 3, longest=16_000), max_tokens_per_rank=16_384)
    with pytest.raises(Infeasible, match=r"at most 50000 Booleans: 2000 sequences"):
        place_exact(request)


def test_timing_solves_again_without_a_word() -> None:
    request = request_for(long_tailed(6, 1, longest=16_000), max_tokens_per_rank=16_384)
    place_exact_once(request, place_hydra(request))


@pytest.mark.parametrize(
    ("lengths", "changes"),
    [([1000, 2000, 500], {"ranks": 2, "rank_speed": (2.0, 2.0)}), ([4095], {"ranks": 6}),
     ([1000, 900, 50], {"ranks": 4, "rank_speed": (1.25, 1.25, 0.5, 0.8)})],
)  # fmt: skip
def test_fast_lanes_and_single_sequences_give_plans_that_validate(lengths, changes) -> None:  # type: ignore[no-untyped-def]
    asked = options(strategy="exact", batch_sequences=len(lengths), pp=1, **changes)
    header, batches = plan(
        Lengths("t", "sequences", np.array(lengths, np.int64)), profile(), asked, None
    )
    for batch in batches:
        assert check_plan(header, batch) == []
        assert check_figures(header, batch) == []
