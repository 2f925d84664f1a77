import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.errors import InputError
from hydraplan.files.opsfile import OPS_SCHEMA, ops_table, read_ops, simulated_waits
from hydraplan.model import Op, Timeline
from tests.files.made_run import OPS, ops, timeline


def test_a_simulated_op_waits_inside_for_its_group_and_before_it_for_what_it_is_handed():
    timeline = Timeline(
        schedule=((Op("F", 0), Op("BW", 0)),),
        start_s=(np.array([[1.0, 2.0], [5.0, 3.5]]),),
        end_s=(np.array([[2.0, 3.5], [6.0, 6.0]]),),
        busy_s=(np.array([[1.0, 1.0], [0.25, 2.5]]),),
        grad_sync_s=np.zeros(1),
    )
    waits = simulated_waits(timeline)
    assert waits.group_s[0].tolist() == [[0.0, 0.5], [0.75, 0.0]]
    assert waits.transfer_s[0].tolist() == [[0.0, 1.0], [3.0, 0.0]]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "ops.parquet"
    pq.write_table(ops_table([(0, ops(timeline(0.5))), (1, ops(timeline(1.0)))]), file)
    return file


def test_op_times_of_every_step_come_back_whatever_the_order_of_their_rows(path):
    table = pq.read_table(path)
    pq.write_table(table.take(list(range(len(table)))[::-1]), path)
    for step, shift in enumerate((0.5, 1.0)):
        found = read_ops(path, step, 2, 2)
        assert found.timeline.schedule == (OPS, OPS)
        assert [end.tolist() for end in found.timeline.end_s] == [
            [[0.5, 0.75], [1.5, 1.75]],
            [[0.5 + shift, 0.75 + shift], [1.5 + shift, 1.75 + shift]],
        ]
        assert found.timeline.grad_sync_s.tolist() == [0.0, 0.125]


@pytest.mark.parametrize("row", [1, -1], ids=["op", "sync"])
@pytest.mark.parametrize("name", OPS_SCHEMA.names)
def test_a_row_that_no_worker_leaves_is_refused(path, name, row):
    """The second lane's first op of step 0, or the gradient sum of the last lane of step 1."""
    table = pq.read_table(path)
    kind = table.schema.field(name).type
    wrong = [math.nan, math.inf, 2e12] if kind == pa.float64() else [-2, 2**62]
    wrong = ["", "F ", "B"] if kind == pa.string() else wrong
    if name.endswith(("start_s", "end_s", "busy_s", "transfer_s")):
        wrong.append(-1.0)
    for value in wrong:
        values = table.column(name).to_pylist()
        values[row] = value
        i = table.schema.get_field_index(name)
        changed = table.set_column(i, table.schema.field(i), pa.array(values, kind))
        pq.write_table(changed, path)
        with pytest.raises(InputError, match=r"ops\.parquet: .*step "):
            read_ops(path, 0 if row == 1 else 1, 2, 2)


@pytest.mark.parametrize(
    ("kept", "step"),
    [
        (slice(6, 24), 0),
        (slice(1, 24), 0),
        (slice(0, 22), 1),
        (slice(0, 23), 1),
        (slice(0, 12), 1),
        ([*range(24), 1], 0),
        ([*range(24), 23], 1),
    ],
    ids=str,
)
def test_rows_that_are_missing_or_there_twice_are_refused(path, kept, step):
    """Of 24 rows: 2 steps x 2 stages x (2 ops and a gradient sum) x 2 lanes."""
    table = pq.read_table(path)
    rows = list(range(24))[kept] if isinstance(kept, slice) else kept
    pq.write_table(table.take(rows), path)
    assert len(table) == 24
    with pytest.raises(InputError, match=rf"step {step}, stage [01] (lacks|holds)"):
        read_ops(path, step, 2, 2)


def test_a_list_that_has_an_op_twice_is_refused(path):
    twice = replace(timeline(0.5), schedule=((OPS[0], OPS[0]), OPS))
    pq.write_table(ops_table([(0, ops(twice))]), path)
    with pytest.raises(InputError, match="step 0, stage 0 holds ops that no worker runs"):
        read_ops(path, 0, 2, 2)
