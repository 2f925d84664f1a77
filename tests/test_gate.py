"""Limits of a gate: to the last digit, whichever way is worse, and nothing passes by accident."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.gate import Limit, Verdict, check_comparable, parsed_limit, verdicts
from hydraplan.metrics import FIGURES, LOWER_IS_BETTER
from tests.plans import plan_header, tiny_model

HEADER = plan_header(tiny_model(), 2, 4, 3)
LENGTHS = {"lengths_digest": "1" * 64}


def regress(name: str, value: float, baseline: float, text: str) -> bool:
    (found,) = verdicts([parsed_limit("max-regress", text)], {name: value}, {name: baseline})
    return found.is_kept


@pytest.mark.parametrize(
    ("value", "kept"), [(1.019, True), (1.02, True), (1.021, False), (0.5, True), (math.nan, False)]
)
def test_a_limit_of_two_per_cent_is_two_per_cent(value: float, kept: bool) -> None:
    assert regress("iteration_s", value, 1.0, "iteration_s=2%") is kept
    assert regress("iteration_s", value * 3.7, 3.7, "iteration_s=0.02") is kept


def test_of_efficiency_less_is_worse() -> None:
    assert regress("efficiency", 0.981, 1.0, "efficiency=2%")
    assert not regress("efficiency", 0.979, 1.0, "efficiency=2%")
    assert regress("efficiency", 2.0, 1.0, "efficiency=0%")


def test_what_was_nothing_may_not_become_something() -> None:
    assert regress("padding_tokens", 0.0, 0.0, "padding_tokens=0%")
    assert not regress("padding_tokens", 1.0, 0.0, "padding_tokens=900%")
    assert regress("efficiency", 0.5, 0.0, "efficiency=0%")


@given(st.sampled_from(FIGURES), st.floats(1e-6, 1e6), st.floats(0, 0.5), st.floats(0, 0.5))
def test_a_figure_worse_by_more_than_the_share_is_refused_and_no_other(
    name: str, baseline: float, share: float, worse: float
) -> None:
    value = baseline * (1 + worse) if name in LOWER_IS_BETTER else baseline * (1 - worse)
    found = Verdict(Limit("max-regress", name, share), value, baseline)
    if abs(worse - share) > 1e-9:
        assert found.is_kept is (worse < share)


def test_bounds_hold_the_bound_itself() -> None:
    assert Verdict(parsed_limit("max", "slot_imbalance=1.1"), 1.1, math.nan).is_kept
    assert not Verdict(parsed_limit("max", "slot_imbalance=1.1"), 1.1001, math.nan).is_kept
    assert Verdict(parsed_limit("min", "efficiency=0.9"), 0.9, math.nan).is_kept
    assert not Verdict(parsed_limit("min", "efficiency=0.9"), 0.89, math.nan).is_kept
    assert not Verdict(parsed_limit("min", "efficiency=0.9"), math.nan, math.nan).is_kept


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("max-regress", "iteration=2%", "no figure 'iteration'"),
        ("max-regress", "iteration_s", "'' is no share"),
        ("max-regress", "iteration_s=-2%", "'-2%' is no share"),
        ("max-regress", "iteration_s=nan", "'nan' is no share"),
        ("max-regress", "iteration_s=1e400", "'1e400' is no share"),
        ("max-regress", f"iteration_s={'9' * 400}%", "is no share"),  # no limit at all
        ("max", "slot_imbalance=inf", "'inf' is no number"),
        ("max", "slot_imbalance=", "'' is no number"),
        ("min", "=1", "no figure ''"),
        ("max", "\x1b[31m=1", "no figure"),
    ],
)
def test_a_limit_that_is_none_is_refused_by_name(kind: str, text: str, named: str) -> None:
    with pytest.raises(InputError, match="--" + kind) as caught:
        parsed_limit(kind, text)  # type: ignore[arg-type]
    assert named in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_share_reads_with_and_without_the_sign_of_per_cent() -> None:
    assert parsed_limit("max-regress", " iteration_s = 2.5% ").value == pytest.approx(0.025)
    assert parsed_limit("max-regress", "iteration_s=.5").value == 0.5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"profile_digest": "1" * 64}, "profile"),
        (LENGTHS, "lengths"),
        ({"lengths_unit": "documents"}, "unit of lengths"),
        ({"num_batches": 4}, "batches: 3 of 1000000 tokens from row 0"),
        ({"options": HEADER.options.model_copy(update={"ranks": 8})}, "devices: 8"),
        ({"options": HEADER.options.model_copy(update={"batch_tokens": 7})}, "batches"),
    ],
)
def test_a_baseline_of_another_kind_is_refused_with_both_values(
    change: dict[str, object], named: str
) -> None:
    other = HEADER.model_copy(update=change)
    with pytest.raises(InputError, match=named):
        check_comparable(other, HEADER)
    with pytest.raises(InputError):
        check_comparable(HEADER, other)


def test_another_layout_of_the_same_devices_is_compared() -> None:
    options = HEADER.options.model_copy(update={"pp": 4, "ranks": 2})
    check_comparable(HEADER.model_copy(update={"options": options}), HEADER)
