"""Charts say what a cell stands for, and never hide the fullest slot."""

import numpy as np
import pytest

from hydraplan.views.charts import heat_map


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
