"""A damaged file of any kind is one error of ours, never one of pyarrow's."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hydraplan
from hydraplan.errors import HydraplanError, InputError
from hydraplan.executor.simulate import simulate_run
from hydraplan.files.lengths import read_lengths
from hydraplan.files.parquet import beside, open_parquet, read_rows
from hydraplan.files.planfile import load_plan, open_plan, read_batch
from hydraplan.files.profilefile import read_profile, write_profile
from hydraplan.files.runfile import open_run, read_timeline
from hydraplan.files.speeds import read_speeds
from tests.builders import Place
from tests.planner.cases import profile as analytic
from tests.plans import write_test_plan

Read = Callable[[Path], object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole")
    pq.write_table(pa.table({"length": [5, 6], "source": ["a", "b"]}), path / "lengths.parquet")
    pq.write_table(pa.table({"speed": [1.0, 0.5], "lane": [1, 0]}), path / "speeds.parquet")
    write_profile(path / "p.parquet", analytic().header, [])
    plan = write_test_plan(path / "a.plan", [[Place(40), Place(33, 1)]], pp=1, ranks=2)
    simulate_run(plan, steps=2, seed=0, output=path / "a.run", force=False)
    return path


READERS: list[tuple[str, str, Read]] = [
    ("lengths.parquet", "length", lambda p: read_lengths(p / "lengths.parquet")),
    ("speeds.parquet", "speed", lambda p: read_speeds(p / "speeds.parquet", 2)),
    ("p.parquet", "component", lambda p: read_profile(p / "p.parquet")),
    ("a.plan/sequences.parquet", "sequence_id", lambda p: read_batch(open_plan(p / "a.plan"), 0)),
    ("a.plan/schedule.parquet", "position", lambda p: read_batch(open_plan(p / "a.plan"), 0)),
    ("a.plan/batches.parquet", "winner", lambda p: load_plan(p / "a.plan")),
    ("a.run/steps.parquet", "iteration_s", lambda p: open_run(p / "a.run")),
    ("a.run/ops.parquet", "position", lambda p: read_timeline(open_run(p / "a.run"), 0)),
]


def damaged(folder: Path, name: str, copy: Path, content: bytes) -> Path:
    """A copy of the folder in which one file has another content."""
    for path in folder.rglob("*.parquet"):
        target = copy / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if str(path.relative_to(folder)) == name else path.read_bytes())
    return copy


@pytest.mark.parametrize(("name", "column", "read"), READERS)
def test_a_column_name_that_is_no_text_is_an_input_error(
    name: str, column: str, read: Read, folder: Path, tmp_path: Path
) -> None:
    read(folder)
    whole = (folder / name).read_bytes()
    broken = whole.replace(column.encode(), b"\xff" + column.encode()[1:])
    assert broken != whole
    with pytest.raises(InputError, match=r"\.parquet"):
        read(damaged(folder, name, tmp_path, broken))


@pytest.mark.parametrize(("name", "column", "read"), READERS)
def test_flipped_bytes_are_read_or_refused_and_never_a_bug(
    name: str, column: str, read: Read, folder: Path, tmp_path: Path
) -> None:
    chance = random.Random(name)
    whole = (folder / name).read_bytes()
    refused = 0
    for _ in range(20):
        content = bytearray(whole)
        footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
        for _ in range(chance.choice([1, 2, 4])):
            content[chance.randrange(footer, len(whole))] = chance.randrange(256)
        try:
            read(damaged(folder, name, tmp_path, bytes(content)))
        except HydraplanError:
            refused += 1
    assert refused > 2


def test_a_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("status", pa.string())])
    path = tmp_path / "a.parquet"
    text = pa.array([b"placed"], pa.binary())
    pq.write_table(pa.table({"status": text.cast(pa.string())}), path, compression="none")
    path.write_bytes(path.read_bytes().replace(b"placed", b"\xfflaced"))
    with pytest.raises(InputError, match=r"a\.parquet is damaged"):
        read_rows(open_parquet(path, schema), path)


def test_a_schema_that_differs_names_the_column(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1], "b": [2], "c\x1b": [3]}), path)
    kinds = {"a": pa.int64(), "b": pa.float64()}
    with pytest.raises(InputError, match=r"\(column b differs\)"):
        open_parquet(path, pa.schema(list(kinds.items())))
    with pytest.raises(InputError, match=r"\('c\\x1b' is one too many\)"):
        open_parquet(path, pa.schema([("a", pa.int64()), ("b", pa.int64())]))


def test_the_package_lists_what_it_loads_on_first_use() -> None:
    assert set(hydraplan.__all__) <= set(dir(hydraplan))
    assert "load_plan" in dir(hydraplan)


def test_a_file_never_takes_the_place_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a.plan"
    folder.mkdir()
    (folder / "kept").write_text("dear")
    with pytest.raises(InputError, match=r"a\.plan is a folder"), beside(folder) as spare:
        spare.write_text("new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.plan"]
    assert (folder / "kept").read_text() == "dear"


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a.plan"
    folder.mkdir()
    (folder / "kept").write_text("dear")
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), beside(folder) as spare:
        spare.mkdir()
    assert [p.name for p in tmp_path.iterdir()] == ["a.plan"]
    assert (folder / "kept").read_text() == "dear"


def test_what_is_no_file_is_written_itself_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with beside(pipe) as spare:
        spare.write_text("verdicts")
    assert os.read(reader, 99) == b"verdicts"
    os.close(reader)
    assert pipe.is_fifo()


def test_an_error_names_the_place_that_people_know(tmp_path: Path) -> None:
    place = tmp_path / "absent" / "x.xml"
    with pytest.raises(FileNotFoundError) as found, beside(place) as spare:
        spare.write_text("")
    assert found.value.filename == str(place)
