"""The benchmark of parity: a few of its steps, and the place of its table."""

import numpy as np
import pytest

from tests.benchmarks.scripts import PARITY, script


@pytest.fixture
def parity(monkeypatch):
    return script(monkeypatch, PARITY, "parity")


def test_the_largest_difference_of_a_step_is_relative_to_the_other_loss(parity):
    assert parity.apart([2.0, 5.0], [2.0, 4.0]) == 0.25
    with pytest.raises(AssertionError, match="2"):
        parity.apart([1.0, 1.0], [1.0])


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("pool", [(2, 2), (2, 4)])
def test_three_steps_have_the_losses_of_one_process(parity, pool):
    lengths = np.random.default_rng(1).integers(1, 200, parity.BATCHES * parity.ROWS)
    lengths[:3] = 1, 2, 500
    found = parity.cell(lengths, "drawn", pool, 3)
    assert max(found[name] for name in (*parity.WAYS, "hydra to memory-sized")) <= parity.LIMIT
    assert found["last loss"] < found["first loss"]
    ours, theirs = (found[f"{way}: degrees; microbatches"] for way in parity.WAYS)
    assert ours != theirs
    assert "of 2" in ours


def test_the_page_holds_the_table_and_no_difference_beyond_the_limit(parity):
    page = (PARITY / "README.md").read_text()
    assert "python benchmarks/parity/parity.py LENGTHS_FOLDER --readme" in page
    table = page.partition("<!-- parity -->\n")[2].partition("<!-- end of parity -->")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if "e-" in line]
    rows = [row for row in rows if len(row) > 3]  # the title has one, too
    assert len(rows) == len(parity.CELLS)
    assert "50 steps" in table
    assert all(float(text) <= parity.LIMIT for row in rows for text in row[-3:])
