"""What ranks themselves compute when work moves, against counts of heads and rows."""

from dataclasses import replace

import numpy as np
import pytest

from hydraplan.cost import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from hydraplan.migration import HeadMove, HeadShares, Moves, RowMove
from hydraplan.planner.policy.own_work import own_work_s
from hydraplan.planner.policy.rated import rated
from tests.builders import Place, placed_sequences
from tests.plans import plan_header, tiny_model

PLACED = placed_sequences([Place(200, 0, 2, 2), Place(64, 0, 1, 1, 1), Place(48, 1, 1, 1, 1)])
SHARE = HeadShares(1, 0, 0, 2, 2, ((5, 3), (6, 2)))


def batch(recompute="none", factor=None, **changes):
    cost = plan_header(tiny_model(num_layers=4), 2, 4, 1).cost_model()
    cost = replace(cost, recompute=recompute, **changes)
    return rated(cost, PLACED, 2, np.ones((2, 4)) if factor is None else factor)


def moved(known, **moves):
    """Seconds more than as planned, (3, stages, lanes, microbatches)."""
    return (own_work_s(known, Moves(**moves)) - known.slots.op_s).sum(axis=2)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_members_compute_as_their_heads_are_to_an_even_share(recompute):
    known = batch(recompute)
    more = moved(known, shares=(SHARE,))
    parts = known.parts.attention
    place = known.parts.bucket[SHARE[1:5]]
    even = parts.own_s[:, place] + parts.step_s[:, place]  # a ring of two has one more step
    wanted = 2 * even[:, None] * np.array([5 / 4 - 1, 3 / 4 - 1, 6 / 4 - 1, 2 / 4 - 1])
    if recompute == "full":
        wanted[INPUT_GRADIENT] += wanted[FORWARD]
    assert more[:WEIGHT_GRADIENT, 1, :, 0] == pytest.approx(wanted)
    assert (more[WEIGHT_GRADIENT] == 0).all()
    assert (more[:, 0] == 0).all()
    assert (more[..., 1] == 0).all()


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_rows_take_with_them_what_their_mlp_takes_in_every_pass(recompute):
    known = batch(recompute)
    more = moved(known, rows=(RowMove(0, 1, 0, 3, 32),))
    mlp_s = known.parts.mlp_s.copy()
    if recompute == "full":
        mlp_s[INPUT_GRADIENT] += mlp_s[FORWARD]
    assert more[:, 0, 3, 1] == pytest.approx(2 * 32 * mlp_s)
    assert more[:, 0, 0, 1] == pytest.approx(-2 * 32 * mlp_s)
    assert np.count_nonzero(np.abs(more) > 1e-15) == 6


def test_heads_take_with_them_their_share_of_whole_sequences():
    known = batch()
    more = moved(known, heads=(HeadMove(0, 1, 0, 3, 2),))
    wanted = 2 * known.parts.whole_s[:, 0, 1] / 4
    assert more[:WEIGHT_GRADIENT, 0, 3, 1] == pytest.approx(wanted)
    assert more[:WEIGHT_GRADIENT, 0, 0, 1] == pytest.approx(-wanted)
    assert (more[WEIGHT_GRADIENT] == 0).all()


def test_foreign_work_takes_as_long_as_the_plan_knows_of_its_taker_whatever_is_believed():
    speeds, slow = (1.0, 1.0, 1.0, 0.5), np.array([[3.0, 1, 1, 1], [1, 1, 1, 1]])
    plain, known = batch(), batch(rank_speed=speeds, factor=slow)
    row = {"rows": (RowMove(0, 1, 0, 3, 32),)}
    more, wanted = moved(known, **row), moved(plain, **row)
    assert more[:, 0, 3, 1] == pytest.approx(2 * wanted[:, 0, 3, 1])
    assert more[:, 0, 0, 1] == pytest.approx(wanted[:, 0, 0, 1])
