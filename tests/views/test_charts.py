"""Charts say what a cell stands for, and never hide the fullest slot."""

from types import SimpleNamespace

import numpy as np
import pytest

from hydraplan.model import Op
from hydraplan.views.charts import gantt, heat_map


@pytest.mark.parametrize(
    ("lanes", "microbatches", "said"),
    [
        (256, 10, "1 row = 8 lanes; cells"),
        (64, 512, "1 row = 2 lanes, 1 column = 8 microbatches; cells"),
        (8, 100, "1 column = 1 or 2 microbatches; cells"),
        (100, 8, "1 row = 3 or 4 lanes; cells"),
    ],
)
def test_a_map_of_merged_slots_says_how_many_and_shows_the_fullest(lanes, microbatches, said):
    load_s = np.full((lanes, microbatches), 0.1)
    load_s[lanes // 2 + 1, microbatches // 2 + 1] = 1.0
    note, *lines = heat_map(load_s)
    assert note.startswith(said)
    assert note.endswith("show their fullest slot")
    assert "".join(lines).count("@") == 1
    assert len(lines) <= 32
    assert max(map(len, [note, *lines])) <= 80


def test_a_map_of_single_slots_says_nothing():
    lines = heat_map(np.array([[0.0, 1.0], [0.5, 1.0]]))
    assert lines == ["lane 0 | @|", "lane 1 |+@|"]


def plan_of(num_ops: int) -> SimpleNamespace:
    """One stage of ops of 1 s each, one after the other."""
    start = np.arange(num_ops, dtype=float)
    ops = tuple(Op("F" if i % 2 == 0 else "BW", i // 2, 0) for i in range(num_ops))
    return SimpleNamespace(
        schedule=(ops,), predicted_start_s=(start,), predicted_end_s=(start + 1.0,)
    )


def test_a_chart_that_skips_ops_says_how_many():
    note, upper, lower = gantt(plan_of(720), width=72)
    assert note == "1 column = 10 s, drawn is its middle: 648 of 720 shorter ops are not"
    assert sum(c != "." for c in upper[6:] + lower[6:]) == 72
    assert gantt(plan_of(4), width=8) == ["  0 F 00..11..", "    B ..00..11"]
