"""`plan` of many batches: same bytes on any number of processes, memory flat, clean ends."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.cli.app import run
from hydraplan.files.profilefile import write_profile
from hydraplan.views.plan_text import SHOWN_BATCHES
from tests.planner.cases import long_tailed
from tests.planner.cases import profile as analytic

SHAPE = ["--pp", "2", "--ranks", "8", "--max-tokens-per-rank", "8192"]

pytestmark = pytest.mark.timeout(110)


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Command line of a plan of all batches of a file of 3,000 rows, in an own folder."""
    monkeypatch.chdir(tmp_path)
    write_profile(Path("p.parquet"), analytic().header, [])
    np.savetxt("lengths.txt", long_tailed(3000, 1, longest=30_000), "%d")
    return ["plan", "lengths.txt", "--profile", "p.parquet", *SHAPE, "--num-batches", "all"]


def digests(folder: Path) -> list[str]:
    return [hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.iterdir())]


@pytest.mark.dist
@pytest.mark.parametrize("strategy", ["hydra", "memory-ffd"])
def test_any_number_of_workers_gives_the_same_bytes_and_the_same_text(
    strategy: str, inputs: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = []
    for workers in ("1", "2", "3"):
        asked = ["--batch-sequences", "200", "--num-batches", "5", "--strategy", strategy]
        assert run([*inputs, *asked, "--workers", workers, "-o", "x.plan", "--force"]) == 0
        found.append((digests(tmp_path / "x.plan"), *capfd.readouterr()))
    assert len(found[0][0]) == 3
    assert found[0] == found[1] == found[2]


def test_a_batch_is_a_row_group_that_reads_alone(inputs: list[str]) -> None:
    memory = ["--strategy", "memory-ffd", "-o", "x.plan"]
    assert run([*inputs, "--batch-sequences", "900", *memory]) == 0
    file = pq.ParquetFile("x.plan/sequences.parquet")
    assert file.num_row_groups == 4
    assert file.read_row_group(2)["sequence_id"].to_pylist() == list(range(1800, 2700))
    assert set(file.read_row_group(3)["batch"].to_pylist()) == {3}


def test_show_reads_the_asked_batch_alone(
    inputs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    memory = ["--strategy", "memory-ffd", "-o", "x.plan"]
    assert run([*inputs, "--batch-sequences", "1000", *memory]) == 0
    file = Path("x.plan/sequences.parquet")
    where = pq.ParquetFile(file).metadata.row_group(0).column(1).data_page_offset
    damaged = bytearray(file.read_bytes())
    damaged[where : where + 64] = bytes(64)
    file.write_bytes(damaged)
    capsys.readouterr()
    assert run(["show", "x.plan", "--json"]) == 2
    capsys.readouterr()
    assert run(["show", "x.plan", "--batch", "2", "--json"]) == 0
    assert [b["batch"] for b in json.loads(capsys.readouterr().out)["batches"]] == [2]
    assert run(["show", "x.plan", "--batch", "2", "--view", "gantt"]) == 0
    assert "of every stage of batch 2" in capsys.readouterr().out


def test_many_batches_are_printed_by_their_first_and_their_mean(
    inputs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    memory = ["--strategy", "memory-ffd", "--workers", "1", "-o", "x.plan"]
    assert run([*inputs, "--batch-sequences", "100", *memory]) == 0
    text = capsys.readouterr().out
    assert text.count("sequences by degree") == SHOWN_BATCHES + 1
    assert "and 10 more: hydraplan show PLAN --batch NUMBER" in text
    assert "in 30 batches;" in text.splitlines()[-1]
    assert re.search(r"all batches, sequences by degree: 1: \d+", text)


def peak_bytes(command: list[str]) -> int:
    tracemalloc.start()
    assert run(command) == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("command", ["plan", pytest.param("compare", marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_number_of_batches(
    command: str, inputs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = np.resize(long_tailed(500, 1, longest=8_000), 9_000)
    pq.write_table(pa.table({"length": lengths}), "lengths.parquet")
    asked = [command, "lengths.parquet", *inputs[2:], "--batch-sequences", "500"]
    if command == "plan":
        asked += ["--strategy", "memory-ffd", "--workers", "1", "-o", "x.plan", "--force"]
    else:
        asked += ["--strategies", "memory-ffd"]
    assert run([*asked, "--num-batches", "1"]) == 0
    few, many = (peak_bytes([*asked, "--num-batches", count]) for count in ("2", "18"))
    assert many < few + 16 * 15_000  # a summary takes some 3 KB, a plan of 500 rows 60 KB


@pytest.mark.dist
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_ended_plan_leaves_no_process_behind(number: int, inputs: list[str]) -> None:
    Path("many.txt").write_text("\n".join(str(50 + i % 4000) for i in range(60_000)))
    process = subprocess.Popen(
        [sys.executable, "-m", "hydraplan", "plan", "many.txt", *inputs[2:], "--workers", "3",
         "--batch-sequences", "200", "-o", "x.plan"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while process.poll() is None and not list(Path().glob(".x.plan*")):
        os.sched_yield()
    children = [int(pid) for pid in children_of(process.pid)]
    assert len(children) == 3
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as the terminal does
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}.get(number, -number)
    assert "Traceback" not in said
    for pid in children:
        while Path(f"/proc/{pid}").exists() and number == signal.SIGKILL:
            os.sched_yield()
        assert not Path(f"/proc/{pid}").exists()
    assert not Path("x.plan").exists()


@pytest.mark.dist
def test_a_killed_worker_ends_the_command_with_one_line_and_nothing_written(
    inputs: list[str],
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hydraplan", *inputs, "--workers", "2",
         "--batch-sequences", "20", "-o", "x.plan"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.poll() is None and not list(Path().glob(".x.plan*")):
        os.sched_yield()
    os.kill(int(children_of(process.pid)[0]), signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.match(r"error: the worker planning batch \d+ is killed by SIGKILL\n", said)
    assert "hint: " in said
    assert not list(Path().glob("*x.plan*"))


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
