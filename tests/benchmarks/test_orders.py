"""The benchmarks of op orders: their cases are what they say, their page has a place for them."""

import importlib
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "pipeline"


@pytest.fixture
def exact_orders(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("exact_orders")


@pytest.fixture
def orders(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("orders")


def test_costs_are_those_of_their_names(exact_orders):
    assert (exact_orders.costs("unit", 2, 4) == 1).all()
    assert exact_orders.costs("slow stage", 3, 4)[0].mean(axis=1).tolist() == [1, 1.4, 1]
    assert exact_orders.costs("long microbatch", 2, 4)[0, 0].tolist() == [1, 1, 2, 1]
    lengths = exact_orders.costs("lengths", 2, 4)
    assert (lengths == lengths[0, 0]).all()
    assert len(np.unique(exact_orders.costs("jitter", 2, 4))) == 24


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


@pytest.mark.parametrize("name", ["orders", "exact_orders"])
def test_the_page_holds_a_section_for_each(name):
    page = (FOLDER / "README.md").read_text()
    assert f"python benchmarks/pipeline/{name}.py" in page
    assert f"<!-- {name} -->\n" in page
    assert f"<!-- end of {name} -->" in page
