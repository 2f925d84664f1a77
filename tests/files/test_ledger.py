import pyarrow.parquet as pq
import pytest

from hydraplan.errors import InputError
from hydraplan.files.checkpointfile import Checkpoint, Saved, begin_checkpoint, checkpoint_folders
from hydraplan.files.ledger import Ledger, check_ledger, last_checkpoint, next_row, rewind
from hydraplan.files.runfile import append_steps, create_run, open_run, our_files, read_timeline
from tests.files.made_run import HELD, header, step, timeline


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "x.run"
    create_run(path, header(steps=4, checkpoint_every=2))
    append_steps(path, [step(i) for i in range(3)])
    return path


def saved(run, done, **changes):
    values = {
        "steps": done,
        "plan_digest": "0" * 64,
        "pp": 2,
        "ranks": 2,
        "ledger_digest": Ledger(open_run(run).steps[:done]).digest,
        "files": {},
    }
    return Saved(run / "checkpoints" / "step", Checkpoint(**values | changes))


def test_a_checkpoint_agrees_with_the_steps_before_it_whatever_came_after(run):
    check_ledger(open_run(run), saved(run, 2))
    check_ledger(open_run(run), saved(run, 3))
    one_by_one = Ledger()
    for i in range(2):
        one_by_one.add(step(i)._asdict())
    assert one_by_one.digest == saved(run, 2).about.ledger_digest


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plan_digest": "1" * 64}, "is of plan 1111111111111111, the run of 0000000000000000"),
        ({"steps": 4}, "ends after 3 steps.*was written after 4"),
        ({"ledger_digest": "2" * 64}, "the first 2 steps have digest .*after 2222222222222222"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_with_both_values(run, changes, said):
    with pytest.raises(InputError, match=said):
        check_ledger(open_run(run), saved(run, 2, **changes))


@pytest.mark.parametrize("column", ["first_sequence_id", "tokens", "loss"])
def test_a_changed_cell_of_the_ledger_is_noticed(run, column):
    before = saved(run, 2)
    table = pq.read_table(run / "steps.parquet")
    rows = table.to_pylist()
    rows[1][column] += 1
    pq.write_table(table.from_pylist(rows, schema=table.schema), run / "steps.parquet")
    with pytest.raises(InputError, match=r"steps\.parquet: the first 2 steps"):
        check_ledger(open_run(run), before)


def test_a_run_without_checkpoints_or_that_lost_them_is_refused(run, tmp_path):
    with pytest.raises(InputError, match="holds 3 steps, with a checkpoint every 2, but no"):
        last_checkpoint(open_run(run))
    other = tmp_path / "y.run"
    create_run(other, header())
    with pytest.raises(InputError, match="has no checkpoints") as caught:
        last_checkpoint(open_run(other))
    assert "--checkpoint-every" in caught.value.hint


def test_a_run_that_ended_before_its_first_checkpoint_begins_at_the_beginning(tmp_path):
    path = tmp_path / "x.run"
    create_run(path, header(steps=4, checkpoint_every=2))
    append_steps(path, [step(i) for i in range(2)])
    assert last_checkpoint(open_run(path)) is None


def test_rewinding_keeps_the_steps_before_and_nothing_half_written(run):
    (run / ".ops.parquet.0123abcd.tmp").write_bytes(b"torn")
    begin_checkpoint(run, 4)
    now = header(steps=9, checkpoint_every=2)
    rewind(run, now, 2)
    found = open_run(run)
    assert found.header == now
    assert [row["step"] for row in found.steps] == [0, 1]
    assert found.peaks.measured.shape == (2, 2, 2)
    assert read_timeline(found, 1).schedule == timeline(0.5).schedule
    with pytest.raises(InputError, match="step 2 is not in"):
        read_timeline(found, 2)
    assert {path.name for path in run.iterdir()} == our_files(run)
    assert checkpoint_folders(run) == []
    append_steps(run, [step(2)])
    assert [row["loss"] for row in open_run(run).steps] == [2.5, 2.5, 2.5]
    assert open_run(run).peaks.measured[2].tolist() == HELD.measured.tolist()


def test_the_next_row_follows_the_last_that_was_trained(run):
    rows = open_run(run).steps
    assert [next_row(rows[:n], 7) for n in range(4)] == [7, 3, 6, 9]


def test_a_damaged_page_of_op_times_is_told_before_they_are_cut_and_leaves_nothing(run):
    path = run / "ops.parquet"
    raw = bytearray(path.read_bytes())
    raw[4:24] = b"\xff" * 20
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"ops\.parquet is damaged: "):
        rewind(run, header(), 2)
    assert path.read_bytes() == raw
    assert not [file.name for file in run.iterdir() if file.name.endswith(".tmp")]
