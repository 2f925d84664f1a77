"""The benchmark of migration: what it decides, what it says of it; its page has a place."""

import numpy as np
import pytest

from hydraplan.migration import HeadShares, Moves, RowMove
from hydraplan.planner.policy.decide import Decision
from tests.benchmarks.scripts import BENCHMARKS, script

MIGRATION = BENCHMARKS / "migration"


@pytest.fixture
def paced(monkeypatch):
    return script(monkeypatch, MIGRATION, "paced")


def test_every_form_moves_something_in_every_setting(paced, tmp_path):
    for i, setting in enumerate(paced.SETTINGS):
        folder = tmp_path / str(i)
        folder.mkdir()
        job = paced.planned(folder, setting)
        (batch,) = job.batches
        placed = batch.sequences.placed()
        assert (placed.ulysses_size.tolist(), placed.degree.tolist()) == ([2], [setting.lanes])
        found = paced.decisions(job)
        assert [len(found["heads"].moves.shares), len(found["rows"].moves.rows)] == [1, 1]
        assert all(found["both"].moves[:2])
        assert all(each.after_s < each.before_s for each in found.values())
        assert found["both"].after_s < min(found["heads"].after_s, found["rows"].after_s)


def test_a_row_says_what_moved_and_whether_the_bars_are_met(paced):
    moves = Moves((HeadShares(0, 0, 0, 2, 1, ((6, 10),)),), (RowMove(0, 0, 0, 1, 48),))
    found = {mode: Decision((), moves, 1.0, 0.8) for mode in paced.FORMS}
    seconds = np.array([[2.0, 2.02, 1.9, 1.9, 1.7]] * 3)
    both = paced.row(paced.SETTINGS[0], "both", found, seconds)
    assert both["moved"] == "heads [[6, 10]], 48 rows 0 to 1"
    assert (both["gain"], both["share"]) == ("15.0 [15..15]", "0.75")
    assert both["simulated"] == pytest.approx(20)
    assert both["met"] is True
    assert paced.row(paced.SETTINGS[0], "both", found, seconds + 0.9)["met"] is False
    assert paced.row(paced.SETTINGS[0], "control", found, seconds)["met"] is True
    seconds[:, 1] = 2.1
    assert paced.row(paced.SETTINGS[0], "control", found, seconds)["met"] is False


def test_the_page_holds_a_section_for_the_script():
    page = (MIGRATION / "README.md").read_text()
    assert "python benchmarks/migration/paced.py --readme" in page
    assert "<!-- paced -->\n" in page
    assert "<!-- end of paced -->" in page
