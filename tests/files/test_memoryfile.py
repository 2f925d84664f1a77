import numpy as np
import pyarrow as pa
import pytest

from hydraplan.errors import InputError
from hydraplan.files.memoryfile import Peaks, memory_table, peaks_of

HELD = Peaks(np.array([[3.0, 4.5], [1.0, 0.0]]), np.array([[3.0, 4.5], [1.5, 0.0]]))


def table_of(*steps: Peaks) -> pa.Table:
    return pa.concat_tables([memory_table(step, held) for step, held in enumerate(steps)])


def test_peaks_come_back_by_step_stage_and_lane() -> None:
    found = peaks_of(table_of(HELD, HELD._replace(predicted=HELD.predicted + 1)), 2, 2, 2, "x")
    assert found.measured is not None
    assert found.measured.tolist() == [[[3.0, 4.5], [1.0, 0.0]]] * 2
    assert found.predicted[1].tolist() == [[4.0, 5.5], [2.5, 1.0]]


def test_nothing_measured_is_nothing_read_and_differs_from_nothing() -> None:
    found = peaks_of(table_of(HELD._replace(measured=None)), 1, 2, 2, "x")
    assert found.measured is None
    assert found.predicted.tolist() == [HELD.predicted.tolist()]
    assert found.differ() == []


def test_ranks_that_held_something_else_are_named_rounding_apart() -> None:
    assert HELD.differ() == [(1, 0)]
    assert HELD._replace(measured=HELD.predicted * (1 + 1e-12)).differ() == []
    assert HELD._replace(measured=HELD.predicted * (1 + 1e-8)).differ() == [(0, 0), (0, 1), (1, 0)]


def test_rows_beyond_the_finished_steps_are_left_out() -> None:
    assert peaks_of(table_of(HELD, HELD), 1, 2, 2, "x").predicted.shape == (1, 2, 2)
    assert peaks_of(table_of(HELD), 0, 2, 2, "x").predicted.shape == (0, 2, 2)


def test_rows_that_no_run_leaves_are_refused() -> None:
    whole = table_of(HELD, HELD)
    mixed = table_of(HELD, HELD._replace(measured=None))
    negative = table_of(HELD._replace(measured=-HELD.predicted), HELD)
    endless = table_of(HELD._replace(predicted=np.full((2, 2), np.inf)), HELD)
    swapped = whole.take([1, 0, *range(2, 8)])
    for table in (whole.slice(1), swapped, mixed, negative, endless):
        with pytest.raises(InputError, match="x: its rows are not those of 2 steps of 2 x 2"):
            peaks_of(table, 2, 2, 2, "x")


def test_bytes_come_back_where_they_were_told() -> None:
    told = HELD._replace(predicted_bytes=HELD.predicted * 8)
    found = peaks_of(table_of(told, told), 2, 2, 2, "x")
    assert found.measured_bytes is None
    assert found.predicted_bytes is not None
    assert found.predicted_bytes.tolist() == [told.predicted_bytes.tolist()] * 2
    measured = peaks_of(table_of(told._replace(measured_bytes=HELD.predicted)), 1, 2, 2, "x")
    assert measured.measured_bytes is not None
    assert measured.measured_bytes.tolist() == [HELD.predicted.tolist()]
    with pytest.raises(InputError, match="x: its rows are not those of 2 steps"):
        peaks_of(table_of(told, HELD), 2, 2, 2, "x")
