import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.errors import InputError, RunFailed
from hydraplan.files import runfile
from hydraplan.files.checkpointfile import begin_checkpoint
from hydraplan.files.parquet import beside
from hydraplan.files.planfile import open_plan
from hydraplan.files.runfile import (
    append_steps,
    create_run,
    open_run,
    our_files,
    plan_digest,
    read_step_ops,
    read_timeline,
    recorder,
)
from tests.builders import Place
from tests.files.made_run import HELD, OPS, SENT, header, ops, step, timeline
from tests.plans import write_test_plan


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "x.run"
    create_run(path, header())
    append_steps(path, [step(0)])
    append_steps(path, [step(1, None, 1.0)])
    return path


def test_steps_and_op_times_come_back_as_they_were(run):
    opened = open_run(run)
    assert opened.header == header()
    assert [(s["step"], s["loss"], s["valid_tokens"]) for s in opened.steps] == [
        (0, 2.5, 8),
        (1, None, 8),
    ]
    assert [s["iteration_s"] for s in opened.steps] == [2.375, 2.875]
    for number, shift in enumerate((0.5, 1.0)):
        found, wanted = read_step_ops(opened, number), ops(timeline(shift))
        for part in ("timeline", "predicted"):
            assert getattr(found, part).schedule == (OPS, OPS)
            for name in ("start_s", "end_s", "busy_s"):
                pairs = (getattr(getattr(side, part), name) for side in (found, wanted))
                assert all(np.array_equal(a, b) for a, b in zip(*pairs, strict=True))
        assert found.timeline.grad_sync_s.tolist() == [0.0, 0.125]
        assert found.predicted.grad_sync_s.tolist() == [0.0, 0.25]
        assert [x.tolist() for x in found.waits.group_s] == [[[0.0625] * 2] * 2] * 2
        assert [x.tolist() for x in found.waits.transfer_s] == [[[0.125] * 2] * 2] * 2
        assert read_timeline(opened, number).schedule == (OPS, OPS)
    for sent, said in zip(opened.traffic, SENT, strict=True):
        assert sent.tolist() == [said.tolist()] * 2
    for held, said in zip(opened.peaks, HELD, strict=True):
        assert held.tolist() == [said.tolist()] * 2
    assert opened.peaks.differ() == [(0, 1, 1), (1, 1, 1)]


def test_a_run_whose_last_step_was_cut_off_holds_the_finished_ones(run, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hydraplan.files.parquet.os.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        append_steps(run, [step(2, 2.0)])
    monkeypatch.undo()
    assert [s["step"] for s in open_run(run).steps] == [0, 1]
    assert sorted(p.name for p in run.iterdir()) == [
        "decisions.parquet",
        "memory.parquet",
        "ops.parquet",
        "steps.parquet",
        "traffic.parquet",
        "trials.parquet",
    ]


def test_a_disk_that_refuses_a_step_is_told_with_the_folder(run, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(27, "Error writing bytes to file")

    monkeypatch.setattr("hydraplan.files.runfile.pq.ParquetWriter", fail)
    said = pytest.raises(RunFailed, match=r"x\.run: File too large$")
    with said as caught, recorder(run) as record:
        record(step(2, 2.0), True)
    assert "room" in caught.value.hint


@pytest.mark.parametrize("write_s", [0.0, 1.0])
def test_steps_wait_four_times_as_long_as_a_write_takes_and_none_is_lost(
    tmp_path, monkeypatch, write_s
):
    """A clock that the test moves: 1 s a step, `write_s` a write."""
    now_s, written = [0.0], []
    append = runfile.append_steps

    def slow(path, steps):
        written.append([one.step for one in steps])
        append(path, steps)
        now_s[0] += write_s

    monkeypatch.setattr(runfile, "append_steps", slow)
    monkeypatch.setattr(runfile.time, "perf_counter", lambda: now_s[0])
    path = tmp_path / "x.run"
    create_run(path, header())

    def record_and_fail():
        with recorder(path) as record:
            for number in range(10):
                now_s[0] += 1.0
                record(step(number), False)
            raise RunFailed("here")

    with pytest.raises(RunFailed, match="here"):
        record_and_fail()
    in_groups = [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9]]
    assert written == (in_groups if write_s else [[i] for i in range(10)])
    opened = open_run(path)
    assert [row["step"] for row in opened.steps] == list(range(10))
    assert read_timeline(opened, 7).schedule == timeline(0.5).schedule


def test_a_step_that_is_asked_for_is_written_at_once_with_those_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(runfile, "WAIT_PER_WRITE", 1e9)
    path = tmp_path / "x.run"
    create_run(path, header())
    with recorder(path) as record:
        for number, at_once, there in ((0, False, 1), (1, False, 1), (2, True, 3), (3, False, 3)):
            record(step(number), at_once)
            assert len(open_run(path).steps) == there


def test_force_takes_checkpoints_for_ours_unless_there_is_something_else_among_them(run):
    begin_checkpoint(run, 4)
    assert "checkpoints" in our_files(run)
    (run / "checkpoints" / "notes.txt").write_text("mine")
    assert "checkpoints" not in our_files(run)


def test_force_takes_what_a_killed_run_left_half_written_for_ours_and_nothing_else(run):
    with beside(run / "ops.parquet") as spare:
        spare.write_text("")
        (run / "mine.txt").write_text("")
        (run / ".mine.parquet.0123abcd.tmp").write_text("")
        ours = our_files(run)
        assert {file.name for file in run.iterdir()} - set(ours) == {
            "mine.txt",
            ".mine.parquet.0123abcd.tmp",
        }
        assert spare.name in ours
    assert sorted(our_files(run / "absent")) == [
        "decisions.parquet",
        "memory.parquet",
        "ops.parquet",
        "steps.parquet",
        "traffic.parquet",
        "trials.parquet",
    ]


def test_a_new_run_takes_the_place_of_an_old_one(run):
    create_run(run, header(seed=7))
    opened = open_run(run)
    assert (opened.header.seed, opened.steps) == (7, [])


def test_what_is_not_a_run_or_not_in_it_is_refused(run, tmp_path):
    with pytest.raises(InputError, match=r"y\.run is not a folder"):
        open_run(tmp_path / "y.run")
    with pytest.raises(InputError, match=r"step 5 is not in .*x\.run, it has 2 steps"):
        read_timeline(open_run(run), 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", 3),
        ("batch", -1),
        ("batch", 1),
        ("first_sequence_id", -1),
        ("num_sequences", 0),
        ("tokens", 7),
        ("valid_tokens", -1),
        ("loss", float("nan")),
        ("iteration_s", 0.0),
        ("iteration_s", float("inf")),
        ("busy", float("nan")),
    ],
)
def test_rows_that_no_run_leaves_are_refused_with_their_number(run, name, value):
    table = pq.read_table(run / "steps.parquet")
    rows = table.to_pylist()
    rows[1][name] = value
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), run / "steps.parquet")
    with pytest.raises(InputError, match=rf"steps\.parquet: row 1 .*'{name}': {value}"):
        open_run(run)


@pytest.mark.parametrize("name", ["steps", "ops"])
def test_a_damaged_page_is_an_input_error_not_a_bug(run, name):
    path = run / f"{name}.parquet"
    raw = bytearray(path.read_bytes())
    raw[4:24] = b"\xff" * 20
    path.write_bytes(raw)
    with pytest.raises(InputError, match=rf"{name}\.parquet is damaged: "):
        read_timeline(open_run(run), 0)


def test_the_plan_digest_follows_the_plans_content(tmp_path):
    digests = []
    for name, length in (("a", 5), ("b", 5), ("c", 6)):
        path = write_test_plan(tmp_path / name, [[Place(length)]], pp=1, ranks=1)
        digests.append(plan_digest(open_plan(path)))
    assert digests[0] == digests[1] != digests[2]
