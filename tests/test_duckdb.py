"""The questions of docs/duckdb.md run, and answer what the plan holds."""

import csv
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hydraplan.cli.app import run
from hydraplan.files.planfile import open_plan, read_batch
from hydraplan.files.profilefile import write_profile
from tests.planner.cases import long_tailed
from tests.planner.cases import profile as analytic

duckdb = pytest.importorskip("duckdb")

PAGE = Path(__file__).parents[1] / "docs" / "duckdb.md"
QUESTIONS = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
SHAPE = ["--pp", "2", "--ranks", "8", "--max-tokens-per-rank", "4096", "--batch-sequences", "40",
         "--num-batches", "all"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("duckdb")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        write_profile(Path("p.parquet"), analytic().header, [])
        np.savetxt("rows.txt", [*long_tailed(78, seed=1), 0, 900_000], "%d")
        asked = ["plan", "rows.txt", "--profile", "p.parquet", *SHAPE, "--on-overlong", "skip"]
        assert run([*asked, "-o", "run.plan"]) == 0
        assert run([*asked, "--strategy", "memory-ffd", "-o", "main.plan"]) == 0
    return path


def test_every_question_is_answered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert len(QUESTIONS) == 7
    answers = [duckdb.sql(question).fetchall() for question in QUESTIONS]
    plan = open_plan(Path("run.plan"))
    batches = [read_batch(plan, index) for index in range(plan.header.num_batches)]
    placed = [batch.sequences.placed() for batch in batches]
    costs = np.concatenate([rows.predicted_s * rows.degree for rows in placed])
    assert [row[-1] for row in answers[0]] == sorted(costs.tolist(), reverse=True)[:10]
    degrees = Counter(int(d) for rows in placed for d in rows.degree)
    assert {degree: count for degree, count, _ in answers[1]} == degrees
    rows = placed[0]
    here = (rows.microbatch == 2) & (rows.first_rank <= 5) & (rows.first_rank + rows.degree > 5)
    assert [row[1] for row in answers[2]] == rows.sequence_id[here].tolist()
    assert [row[2] for row in answers[3]] == sorted(b.figures["efficiency"] for b in batches)
    assert len(answers[4]) == 2 * len(batches)
    assert {status: count for status, count, _ in answers[5]} == Counter(
        status for batch in batches for status in batch.sequences.status
    )
    assert answers[5][0][0] == "empty"
    assert answers[6] != []


def rows_of(name: str) -> list[dict[str, str]]:
    with Path(name).open() as file:
        return list(csv.DictReader(file))


def test_sequences_of_all_batches_come_out_as_csv(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    export = ["export", "run.plan", "--format", "csv", "--force", "-o"]
    assert run([*export, "all.csv"]) == 0
    assert capsys.readouterr().out == "all.csv: 80 sequences\n"
    rows = rows_of("all.csv")
    assert [int(row["sequence_id"]) for row in rows] == list(range(80))
    assert {row["status"] for row in rows} == {"placed", "empty", "overlong"}
    one = read_batch(open_plan(Path("run.plan")), 1)
    assert run([*export, "one.csv", "--batch", "1"]) == 0
    rows = rows_of("one.csv")
    assert [int(row["degree"]) for row in rows] == one.sequences.degree.tolist()
    assert [float(row["predicted_s"]) for row in rows] == one.sequences.predicted_s.tolist()
    assert run([*export, "no.csv", "--batch", "9"]) == 2
    assert run([*export, "no.csv", "--step", "0"]) == 2
    assert not Path("no.csv").exists()
