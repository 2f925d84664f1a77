"""Terms of op times: they add up, and a fit that is scaled costs so much more."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.config import MAX_RATE
from hydraplan.cost_terms import LADDER, Term, each_term_s, group_name, scaled, terms
from hydraplan.costfit import CostFit, LinkFit
from hydraplan.slots import slot_times
from tests.builders import Place, placed_sequences
from tests.planner.cases import cost_model
from tests.plans import plan_header, tiny_model

PLACES = [
    Place(40),
    Place(900, 1),
    Place(333, 0, 2, 1, 1),
    Place(64, 0, 1, 2, 1),
    Place(5, 1, 1, 1, 2),
]
FREE = LinkFit(bytes_per_s=MAX_RATE, latency_s=0.0)


def without_links(cost):
    links = {n: FREE for n in CostFit.model_fields if n.endswith(("all_to_all", "p2p"))}
    links["pod_p2p"] = None
    return replace(cost, fit=cost.fit.model_copy(update=links))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("tp", "model"), [(1, None), (2, "llama-8b")])
def test_terms_add_up_to_the_op_times_of_links_that_take_no_time(recompute, tp, model):
    cost = plan_header(tiny_model(), 2, 2, 1).cost_model()
    if model is not None:
        cost = cost_model(ranks=2, pp=2, tp=tp, model=model)
    cost = replace(cost, recompute=recompute)
    placed = placed_sequences(PLACES)
    found = list(each_term_s(cost, placed, 3))
    assert len(found) == len(terms(cost.fit))
    whole_s = slot_times(without_links(cost), placed, 3).op_s
    assert sum(found) == pytest.approx(whole_s, rel=1e-9)
    assert all((part >= 0).all() for part in found)


def test_the_speed_of_lanes_is_in_no_term():
    cost = plan_header(tiny_model(), 2, 2, 1).cost_model()
    placed = placed_sequences(PLACES)
    slow = replace(cost, rank_speed=(1.0, 0.5))
    pairs = zip(each_term_s(cost, placed, 3), each_term_s(slow, placed, 3), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


@given(st.lists(st.floats(0.1, 10), min_size=11, max_size=11))
@settings(deadline=None, max_examples=30)
def test_a_scaled_fit_costs_the_terms_times_their_multipliers(times):
    cost = without_links(plan_header(tiny_model(), 2, 2, 1).cost_model())
    placed, known = placed_sequences(PLACES), terms(cost.fit)
    assert len(known) == 11
    new = replace(cost, fit=scaled(cost.fit, dict(zip(known, times, strict=True))))
    expected = sum(t * s for t, s in zip(times, each_term_s(cost, placed, 3), strict=True))
    assert slot_times(new, placed, 3).op_s == pytest.approx(expected, rel=1e-9)


def test_a_rung_of_the_ladder_parts_the_terms_as_it_says():
    known = terms(plan_header(tiny_model(), 1, 1, 1).fit)
    sets = {rung: {group_name(term, rung) for term in known} for rung in LADDER}
    assert sets["one"] == {"all"}
    assert sets["pass"] == {"forward", "backward", "memory"}
    assert sets["part"] == {"attention", "linear"}
    assert sets["term"] == {
        "attention_forward", "attention_backward", "attention_calls", "linear_forward",
        "linear_input", "linear_weight", "linear_calls", "memory",
    }  # fmt: skip
    assert group_name(Term("linear_weight", "call"), "term") == "linear_calls"


def test_a_multiplier_never_leaves_what_a_fit_may_hold():
    fit = plan_header(tiny_model(), 1, 1, 1).fit
    for factor in (1e-30, 1e30):
        new = scaled(fit, dict.fromkeys(terms(fit), factor))
        CostFit.model_validate(new.model_dump())
