"""`show --html`: a page of a plan, and what it is refused for."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from hydraplan import differ
from hydraplan.cli.app import run
from hydraplan.files.plandiff import compared
from hydraplan.files.planfile import open_plan
from hydraplan.files.profilefile import write_profile
from hydraplan.views import report_changes
from tests.planner.cases import profile as analytic
from tests.views.made_page import Reader

SHAPE = ["--ranks", "4", "--pp", "2", "--max-tokens-per-rank", "1024", "--batch-sequences", "8"]
SHAPE += ["--num-batches", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two plans of two batches, one of them of a row too long, and a run."""
    path = tmp_path_factory.mktemp("plans")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        write_profile(Path("p.parquet"), analytic().header, [])
        np.savetxt("lengths.txt", [2000, *[100] * 7, *[300] * 8], "%d")
        for name, strategy in (("a.plan", "hydra"), ("b.plan", "memory-ffd")):
            given = ["--profile", "p.parquet", *SHAPE, "--strategy", strategy, "-o", name]
            assert run(["plan", "lengths.txt", *given]) == 0
        assert run(["execute", "a.plan", "--simulate", "-o", "a.run"]) == 0
    return path


@pytest.fixture(autouse=True)
def inside(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    capsys.readouterr()


def test_a_page_is_written_whole_and_the_same_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("1.html", "2.html"):
        assert run(["show", "a.plan", "--html", str(tmp_path / name)]) == 0
    text = (tmp_path / "1.html").read_text()
    assert text == (tmp_path / "2.html").read_text()
    assert Reader(text).faults == []
    assert "Batch 0 of 2 is shown in full" in text  # the long row makes it the less efficient one
    assert "llama-8b on 8 devices, lengths.txt, strategy hydra" in text
    assert capsys.readouterr().out.startswith(f"wrote {tmp_path / '1.html'}: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.html", "2.html"]


def test_another_batch_and_an_old_plan_are_shown(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    given = ["--html", str(page), "--batch", "1", "--against", "b.plan"]
    assert run(["show", "a.plan", *given]) == 0
    text = page.read_text()
    assert Reader(text).faults == []
    for said in ("Batch 1 of 2", "laid over b.plan", "options.strategy", ">new 1<", ">old 1<"):
        assert said in text
    assert run(["show", "a.plan", "--html", str(page), "--against", "a.plan", "--force"]) == 0
    assert "The two plans are the same." in page.read_text()


def test_changes_of_the_shown_batch_are_told_whatever_changed_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = open_plan(Path("b.plan")), open_plan(Path("a.plan"))
    first, second = compared(*plans, 0.0, None).batches
    changed, page = sum(second.counts.values()), tmp_path / "page.html"
    assert len(first.rows) > 2 < changed
    assert second.num_lanes > 1
    monkeypatch.setattr(report_changes, "MOST_ROWS", 2)
    monkeypatch.setattr(differ, "MOST_LANES", 1)
    given = ["--html", str(page), "--batch", "1", "--against", "b.plan"]
    assert run(["show", "a.plan", *given]) == 0
    assert f"Sequences that changed, 2 of {changed}<" in page.read_text()
    assert f"Lanes whose load changed most, 1 of {second.num_lanes}<" in page.read_text()


def test_a_batch_that_the_old_plan_has_not_is_not_called_the_same(tmp_path: Path) -> None:
    page, old = tmp_path / "page.html", str(tmp_path / "old.plan")
    given = ["--profile", "p.parquet", *SHAPE[:-1], "1", "-o", old]
    assert run(["plan", "lengths.txt", *given]) == 0
    assert run(["show", "a.plan", "--html", str(page), "--batch", "1", "--against", old]) == 0
    assert "The old plan has no batch 1." in page.read_text()
    assert "is the same in both" not in page.read_text()


def test_a_folder_may_have_any_name(tmp_path: Path, folder: Path) -> None:
    name = '<img src="x" onerror="ran=1"> & co.plan'
    shutil.copytree(folder / "a.plan", tmp_path / name)
    page = tmp_path / "page.html"
    assert run(["show", str(tmp_path / name), "--html", str(page), "--against", "b.plan"]) == 0
    reader = Reader(page.read_text())
    assert reader.faults == []
    assert "".join(reader.texts).count(name) == 2  # title and heading
    assert "img" not in [tag for tag, _ in reader.elements]


def test_a_file_is_replaced_only_if_asked_and_never_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    assert run(["show", "a.plan", "--html", str(page)]) == 2
    assert page.read_text() == "mine"
    assert "add --force to replace it, or choose another --html" in capsys.readouterr().err
    assert run(["show", "a.plan", "--html", str(page), "--force"]) == 0
    assert run(["show", "a.plan", "--html", str(tmp_path), "--force"]) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--json"], "--json is of what is printed, --html x.html writes a page"),
        (["--view", "loads"], "--view is of what is printed"),
        (["--rank", "1"], "--rank is of what is printed"),
        (["--batch", "7"], "batch 7 is not in a.plan: 0..1"),
        (["--against", "a.run"], "folder a.run is a run, not a plan"),
    ],
)
def test_what_a_page_has_no_place_for_is_refused(given, said, capsys) -> None:
    assert run(["show", "a.plan", "--html", "x.html", *given]) == 2
    assert said in capsys.readouterr().err
    assert not Path("x.html").exists()


@pytest.mark.parametrize("given", [["--against", "b.plan"], ["--force"]])
def test_options_of_a_page_without_one_are_refused(given, capsys) -> None:
    assert run(["show", "a.plan", *given]) == 2
    assert f"{given[0]} is of a page, which is not asked for" in capsys.readouterr().err


def test_a_run_has_no_page(capsys) -> None:
    assert run(["show", "a.run", "--html", "x.html"]) == 2
    assert "a.run is a run, --html x.html shows a part of a plan" in capsys.readouterr().err


def test_what_is_printed_goes_before_a_page_that_a_file_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hydraplan.toml").write_text('[show]\nhtml = "page.html"\n')
    assert run(["show", str(folder / "a.plan"), "--view", "loads"]) == 0
    assert not Path("page.html").exists()
    assert run(["show", str(folder / "a.plan")]) == 0
    assert Path("page.html").is_file()
