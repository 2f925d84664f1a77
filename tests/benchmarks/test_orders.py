"""The benchmarks of op orders: their cases are what they say, their page has a place for them."""

import numpy as np
import pytest

from hydraplan.activations import Shares
from hydraplan.metrics import peak_live_tokens
from hydraplan.planner.pipeline.memory import Memory
from hydraplan.planner.pipeline.order import ORDERS, microbatch_order
from hydraplan.planner.pipeline.schedules import zb_h1
from tests.benchmarks.scripts import PIPELINE, script
from tests.planner.lanes import random_lanes


@pytest.fixture
def exact_orders(monkeypatch):
    return script(monkeypatch, PIPELINE, "exact_orders")


@pytest.fixture
def orders(monkeypatch):
    return script(monkeypatch, PIPELINE, "orders")


@pytest.fixture
def auto(monkeypatch):
    return script(monkeypatch, PIPELINE, "auto")


def test_costs_are_those_of_their_names(exact_orders):
    assert (exact_orders.costs("unit", 2, 4) == 1).all()
    assert exact_orders.costs("slow stage", 3, 4)[0].mean(axis=1).tolist() == [1, 1.4, 1]
    assert exact_orders.costs("long microbatch", 2, 4)[0, 0].tolist() == [1, 1, 2, 1]
    lengths = exact_orders.costs("lengths", 2, 4)
    assert (lengths == lengths[0, 0]).all()
    assert len(np.unique(exact_orders.costs("jitter", 2, 4))) == 24


@pytest.mark.slow
def test_an_instance_compares_the_portfolio_with_a_proven_optimum(exact_orders):
    cell = exact_orders.instance("slow stage", 2, 3, 1, 0.2)
    assert cell["status"] == "optimal"
    assert 0 <= cell["gap_to_bound"] < 1e-3
    assert cell["portfolio_above_exact"] < 0.01


def test_the_fastest_schedule_of_a_file_wins(orders):
    here = [
        {"source": "a", "noise": {"none": (2.0, 0.0)}},
        {"source": "a", "noise": {"none": (1.0, 0.0)}},
        {"source": "b", "noise": {"none": (9.0, 0.0)}},
    ]
    assert [orders.wins(here, cell, "none") for cell in here] == [False, True, True]


def test_auto_is_beaten_by_whatever_is_faster_beyond_rounding(auto):
    cell = auto.cell_of("same", 1, 1.0, {"1f1b": 1.2, "zb-h1": 0.9, "zb-h2": 1 - 1e-12})
    assert cell["beaten_by"] == ["zb-h1"]
    cells = [cell, auto.cell_of("same", 1, 0.9, {"1f1b": 1.0}), auto.cell_of("same", 1, 1.0, {})]
    row = auto.summary(("same", 4, "hydra", 1), cells)
    assert (row["cells"], row["auto beaten"], row["memory"]) == (2, 1, "1x")
    assert row["least"] == pytest.approx(1 - 1 / 0.9)
    assert row["most"] == pytest.approx(0.1)


def test_a_static_rival_runs_in_its_best_order_within_the_limit_of_every_lane(auto):
    times = random_lanes(1, 3, 2, 6)
    live = times.rows.max(axis=0).astype(float)
    orders = {name: microbatch_order(name, times.load_s) for name in ORDERS}
    free_s = auto.static_s("zb-h1", times, orders, Memory(np.inf, live))
    assert free_s <= min(auto.time_s(times, zb_h1(3, 6), order) for order in orders.values())
    assert auto.static_s("zb-h1", times, orders, Memory(float(live.max()), live)) == np.inf
    peaks = [
        peak_live_tokens(zb_h1(3, 6), times.rows[:, o], Shares(1.0, 0.5)) for o in orders.values()
    ]
    tight_s = auto.static_s("zb-h1", times, orders, Memory(min(peaks), live))
    assert free_s <= tight_s < np.inf


@pytest.mark.parametrize("name", ["auto", "orders", "exact_orders"])
def test_the_page_holds_a_section_for_each(name):
    page = (PIPELINE / "README.md").read_text()
    assert f"python benchmarks/pipeline/{name}.py" in page
    assert f"<!-- {name} -->\n" in page
    assert f"<!-- end of {name} -->" in page
