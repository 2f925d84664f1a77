"""Why a plan has more or fewer microbatches than its window."""

from dataclasses import replace

import pytest

from hydraplan.views.window_text import ABOVE, BELOW, outside_lines
from tests.views.test_plan_text import OPEN, batch


def windowed(number, count, low, high):
    search = replace(OPEN, window_min=low, window_max=high)
    return batch(number, search, num_microbatches=count)


@pytest.mark.parametrize(("count", "said"), [(4, "below"), (5, ""), (9, ""), (10, "above")])
def test_a_plan_outside_its_open_window_says_so_and_why(count, said):
    lines = outside_lines([windowed(2, count, 5, 9)])
    reason = {"below": BELOW, "above": ABOVE}.get(said)
    expected = [f"batch 2: M {count} is {said} the window 5..9: {reason}"] if said else []
    assert lines == expected


def test_a_window_that_is_empty_has_no_outside():
    assert outside_lines([windowed(0, 7, 9, 5), windowed(1, 7, 1, 0)]) == []


def test_batches_outside_on_one_side_share_a_line():
    lines = outside_lines([windowed(i, 12, 5, 9) for i in range(3)] + [windowed(3, 2, 5, 9)])
    assert [line.partition(":")[0] for line in lines] == ["batch 0", "batch 3"]
    assert "M 12 is above the window 5..9 (and 2 more batches): slots" in lines[0]
