"""`hydraplan demo`: real commands, in order, and it stops at the first that fails."""

import re

import pytest

from hydraplan.cli import demo
from hydraplan.cli.app import run


def test_the_demo_ends_with_the_exit_code_of_the_step_that_failed(monkeypatch, capfd):
    steps = [
        ("first", f"lengths {demo.LENGTHS}"),
        ("second", "lengths none.txt"),
        ("third", f"lengths {demo.LENGTHS} --json"),
    ]
    monkeypatch.setattr(demo, "_steps", lambda: steps)
    assert run(["demo"]) == 2
    out, err = capfd.readouterr()
    assert "[1/3] first\n$ hydraplan lengths lengths.parquet\n" in out
    assert "lengths.parquet: 1,641 sequences" in out
    assert "[2/3] second" in out
    assert "third" not in out
    assert "error: length file none.txt does not exist" in err
    assert err.endswith("error: the demo ends here: hydraplan lengths failed, exit code 2\n")


def test_a_folder_that_exists_is_refused(tmp_path, capsys):
    assert run(["demo", "-o", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} exists\n")


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(400)
def test_the_whole_path_runs_and_keeps_its_files(tmp_path, capfd):
    folder = tmp_path / "kept"
    assert run(["demo", "-o", str(folder)]) == 0
    out = capfd.readouterr().out
    shown = re.findall(r"^\$ hydraplan (\S+)", out, re.MULTILINE)
    assert shown == [
        *("lengths", "profile", "compare", "plan", "validate", "execute"),
        *("plan", "execute", "verify", "show", "show"),
    ]
    assert {path.name for path in folder.iterdir()} == {
        *("lengths.parquet", "cpu.profile.parquet", "demo.plan", "small.plan", "small.run"),
    }


def test_what_the_demo_tells_to_do_next_can_be_typed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "MINE.jsonl").write_text('{"length": 900}\n' * 512)
    for line in demo.NEXT.partition(":\n")[2].replace("\\\n", " ").splitlines():
        program, *words = line.split()
        assert program == "hydraplan"
        assert run(words) == 0
    assert "what limits batch 0" in capsys.readouterr().out
