"""The benchmarks of policy and migration: what they compare, and small runs of them."""

from pathlib import Path

import numpy as np
import pytest

from hydraplan.planner.pipeline.noise import SOURCES
from tests.benchmarks.scripts import POLICY, script

LENGTHS = Path(__file__).parents[2] / "hydraplan" / "data" / "lengths_cpython_stdlib.parquet"


@pytest.fixture
def regimes(monkeypatch):
    return script(monkeypatch, POLICY, "regimes")


@pytest.fixture
def conductor(monkeypatch):
    return script(monkeypatch, POLICY, "conductor")


def test_every_source_of_noise_is_a_regime(regimes):
    noises = regimes.REGIMES.values()
    assert {name for noise in noises for name in noise.active} == {*SOURCES} - {"window"}
    assert len(regimes.REGIMES) == 11


def test_a_gain_is_that_over_the_better_of_zb_h1_and_portfolio(regimes):
    times = {"zb-h1": [2.0, 2.0], "portfolio": [2.1, 1.8], "guarded": [1.9, 1.8]}
    rows = regimes.rows_of(4, "x", {n: np.array(t) for n, t in times.items()}, ("guarded",))
    assert rows[0]["gain"] == pytest.approx((100 * (2.1 / 1.9 - 1) + 0) / 2)
    assert rows[0]["half"] == pytest.approx(1.96 * 100 * (2.1 / 1.9 - 1) / 2, rel=1e-3)


@pytest.mark.slow
def test_in_a_straggler_regime_what_knows_devices_gains_and_what_does_not_is_as_it_was(
    regimes, monkeypatch
):
    monkeypatch.setattr(regimes, "CAP", 8_192)
    regimes.case.cache_clear()
    rows = {row["method"]: row for row in regimes.cell(LENGTHS, 2, "straggler", 10, ["knowing"])}
    assert "guarded" not in rows
    assert rows["all"]["gain"] >= max(rows["moves"]["gain"], rows["placed"]["gain"]) - 1
    assert rows["all"]["gain"] > 2
    assert rows["all"]["recovered"] > 0.2
    calm = regimes.cell(LENGTHS, 2, "none", 10, ["knowing"])
    assert all(row["gain"] == 0 for row in calm if row["method"] in regimes.KNOWING)


@pytest.mark.slow
def test_moves_gain_where_a_rank_is_slow_and_has_neighbours(conductor, monkeypatch):
    monkeypatch.setattr(conductor, "A_LANE", 8)
    slow = conductor.on(4, 2, 6)[-2]
    assert float(slow["policy, moves"].split(" ")[0]) > float(slow["policy"].split(" ")[0]) + 1


def test_the_page_holds_a_section_for_each_script():
    page = (POLICY / "README.md").read_text()
    for name in ("regimes", "conductor"):
        assert f"python benchmarks/policy/{name}.py" in page
        assert f"<!-- {name} -->\n" in page
        assert f"<!-- end of {name} -->" in page
