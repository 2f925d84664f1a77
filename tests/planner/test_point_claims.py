"""A point of the search that a plan names is believed if it can be tried and gives its target."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import nan

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.model import Search
from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.hydra import place_hydra
from hydraplan.planner.placement.search import SLACKS, TAPERS, point_again, stated_target_s
from hydraplan.planner.placement.tight_fill import is_small
from hydraplan.planner.point_claims import point_claims
from tests.planner.cases import long_tailed, mix, request_for


@cache
def wide() -> Request:
    """A request whose window is open."""
    return request_for(mix("32K", 400, 1), ranks=16, pp=2)


@cache
def empty() -> Request:
    """A request whose window is empty."""
    return request_for(np.append(np.full(300, 60), 60_000), ranks=16, pp=2)


def in_place() -> Request:
    return replace(wide(), reorder="none")


@cache
def searched() -> Search:
    return place_hydra(wide()).search


def at(request: Request, count: int, **point: float) -> Search:
    """A search that says it ended at this point, with the target that belongs to it."""
    plain = dict.fromkeys(("theta", "eta", "slack", "taper", "load_target_s"), nan)
    found = replace(searched(), **(plain | point))  # type: ignore[arg-type]
    target_s = stated_target_s(request, point_again(request, found, count))
    return replace(found, load_target_s=target_s)


def said(request: Request, search: Search, count: int, draft: Draft | None = None) -> str:
    """`draft` says where rows are, for batches that may have been filled tightly."""
    placed = draft.sequences if draft else request.sequences
    return "; ".join(point_claims(request, search, placed, count))


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 999), st.integers(1, 80), st.sampled_from([1, 3, 8, 12]), st.integers(1, 4),
    st.sampled_from(["batch", "none", "window:5"]), st.sampled_from([1, 3]),
    st.sampled_from([None, 6, 12]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_what_the_search_says_is_believed(
    seed: int, rows: int, ranks: int, pp: int, reorder: str, multiple: int, count: int | None,
    tapered: bool, slow: bool,
) -> None:  # fmt: skip
    assume(rows >= max(multiple, count or 1))
    request = request_for(
        long_tailed(rows, seed, longest=3000 * ranks), ranks=ranks, pp=pp, reorder=reorder,
        microbatch_multiple=multiple, microbatches=count,
        microbatch_shape="tapered" if tapered else "even",
        rank_speed=(0.5, *[1.0] * (ranks - 1)) if slow else None,
    )  # fmt: skip
    try:
        draft = place_hydra(request)
    except Infeasible:
        return
    if draft.winner == "load-driven":
        assert said(request, draft.search, draft.num_microbatches, draft) == ""


def tapered_and_even() -> tuple[Draft, Request]:
    request = request_for(mix("128K", 2_000, 0), ranks=16, pp=4, microbatch_shape="tapered")
    return place_hydra(request), request


@pytest.mark.slow
def test_a_tapered_plan_has_the_target_of_its_shape() -> None:
    draft, request = tapered_and_even()
    search, count = draft.search, draft.num_microbatches
    assert search.taper in TAPERS
    assert said(request, search, count) == ""
    other = replace(search, taper=next(t for t in TAPERS if t != search.taper))
    assert "load_target_s is" in said(request, other, count)
    assert "taper is 0.5, not 0.04/0.08/0.15/0.3" in said(
        request, replace(search, taper=0.5), count
    )
    wide = replace(search, slack=0.5)
    assert "slack is 0.5, tapered microbatches take 0.07/0.1/0.04" in said(request, wide, count)
    for closed in (replace(request, tapered=False), replace(request, reorder="none")):
        assert "these options leave no room for one" in said(closed, search, count)


def test_windows_are_as_the_tests_need_them() -> None:
    assert not wide().window.is_empty
    assert empty().window.is_empty
    assert not is_small(wide(), 1)


@pytest.mark.parametrize(
    ("asked", "point", "sentence"),
    [
        (wide, {"theta": 0.5, "eta": 0.1}, ""),
        (wide, {"theta": 0.0625, "eta": 0.3}, ""),
        (wide, {"theta": 0.5, "eta": 0.3}, "theta is 0.5 with eta 0.3, not 0.5/0.25/0.125 with"),
        (wide, {"theta": 0.3, "eta": 0.1}, "0.03/0.05/0.1 or 0.25/0.125/0.0625 with 0.1/0.3"),
        (empty, {"theta": 0.25, "eta": 0.1}, ""),
        (empty, {"theta": 0.0625, "eta": 0.1}, "not 0.5/0.25/0.125 with 0.03/0.05/0.1"),
        (wide, {"slack": 0.07}, ""),
        (wide, {"slack": 0.055}, ""),
        (wide, {"slack": 0.06}, "slack is 0.06, a batch of this size takes 0.02/0.04/0.07/0.1"),
        (empty, {"slack": 0.055}, "slack is 0.055, a batch of this size takes 0.02/0.04/0.07/0.1"),
        (in_place, {"slack": 0.07}, "--reorder none fills to no limit"),
    ],
)
def test_only_values_that_are_tried_are_believed(
    asked: Callable[[], Request], point: dict[str, float], sentence: str
) -> None:
    found = said(asked(), at(asked(), 30, **point), 30)
    assert found == "" if not sentence else sentence in found


def test_a_small_batch_may_have_any_slack_that_its_slots_keep_to() -> None:
    request = request_for(
        mix("128K", 24, 0), ranks=8, pp=4, max_tokens_per_rank=10_000, microbatches=4
    )
    assert is_small(request)
    draft = place_hydra(request)
    assert not np.isnan(draft.search.slack)
    assert draft.search.slack not in SLACKS
    assert said(request, draft.search, 4, draft) == ""
    for slack in (draft.search.slack - 0.1, -1.0, 1e6):
        search = replace(draft.search, slack=slack)
        assert f"slack is {slack:.9g}, a limit of" in said(request, search, 4, draft)


@pytest.mark.parametrize("factor", [0.9, 1.3, 1 + 1e-6, 1e-9, 1e9])
def test_a_target_of_no_number_of_microbatches_is_named(factor: float) -> None:
    search = at(wide(), 30, theta=0.5, eta=0.1)
    wrong = replace(search, load_target_s=search.load_target_s * factor)
    (text,) = point_claims(wide(), wrong, wide().sequences, 30)
    assert f"load_target_s is {wrong.load_target_s:.9g}, that of 30 microbatches is" in text
    assert "and no other number has it" in text


def test_an_open_number_may_have_shrunk_or_grown_and_a_fixed_one_not() -> None:
    for count in (25, 30, 41):
        search = at(wide(), count, theta=0.25, eta=0.05)
        assert said(wide(), search, 30) == ""
        fixed = said(replace(wide(), microbatches=30), search, 30)
        assert ("that of 30 microbatches is" in fixed) == (count != 30)
