import numpy as np
import pyarrow as pa
import pytest

from hydraplan.errors import InputError
from hydraplan.files.trafficfile import Traffic, traffic_of, traffic_table

SENT = Traffic(np.arange(12).reshape(3, 2, 2), np.arange(12).reshape(3, 2, 2) * 10)


def table_of(*steps):
    return pa.concat_tables([traffic_table(i, traffic) for i, traffic in enumerate(steps)])


def test_bytes_come_back_by_kind_stage_and_lane_and_rows_of_unfinished_steps_are_left_out():
    found = traffic_of(table_of(SENT, SENT, SENT), 2, 2, 2, "x")
    assert found.measured.tolist() == [SENT.measured.tolist()] * 2
    assert found.predicted.tolist() == [SENT.predicted.tolist()] * 2
    assert traffic_of(table_of(SENT), 0, 2, 2, "x").predicted.shape == (0, 3, 2, 2)


def test_a_simulated_run_sends_nothing_that_is_counted():
    found = traffic_of(table_of(SENT._replace(measured=None)), 1, 2, 2, "x")
    assert found.measured is None
    assert found.predicted.tolist() == [SENT.predicted.tolist()]


@pytest.mark.parametrize(
    ("table", "steps"),
    [
        (table_of(SENT), 2),
        (table_of(SENT, SENT).slice(1), 1),
        (table_of(SENT, SENT._replace(measured=None)), 2),
        (table_of(SENT._replace(measured=-SENT.predicted)), 1),
    ],
)
def test_rows_of_other_ranks_or_that_nobody_counts_are_refused(table, steps):
    with pytest.raises(InputError, match=r"x: its rows are not those of"):
        traffic_of(table, steps, 2, 2, "x")
