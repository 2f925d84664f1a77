"""The README does what it says: its commands run as typed, and its picture is what they print.

Its `sh` blocks run in one folder, in order, as a reader would: the first two in every run, all of
them in the slow one. What installs packages or runs the tests is held to a list instead.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hydraplan.cli.app import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
INSTALLS = {
    "python3 -m venv .venv && .venv/bin/pip install -e . && . .venv/bin/activate",
    ".venv/bin/pip install -e '.[torch]' && .venv/bin/hydraplan demo",
    ".venv/bin/pip install -e '.[dev]' && scripts/test",
}
"""Commands that need a network, or are the tests; the demo has a test of its own."""


def commands(block: str) -> list[str]:
    lines = block.replace("\\\n", " ").splitlines()
    return [line.partition(" #")[0].strip() for line in lines]


def typed_in_shell(line: str) -> str:
    bins = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": bins, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", line],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def typed(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command line prints on stdout; fails where it does."""
    if not line.startswith("hydraplan ") or " execute " in line:
        return typed_in_shell(line)
    code = run(shlex.split(line)[1:])
    out, err = capsys.readouterr()
    assert code == 0, f"{line}\n{err}"
    return out


def test_every_block_is_run_by_a_test() -> None:
    assert len(BLOCKS) >= 5
    installs = [set(commands(block)) & INSTALLS for block in BLOCKS]
    assert set().union(*installs) == INSTALLS
    for block, known in zip(BLOCKS, installs, strict=True):
        assert not known or set(commands(block)) == known


def run_blocks(most: int, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the commands of the first `most` blocks print, by command."""
    blocks = [commands(block) for block in BLOCKS]
    shown = [block for block in blocks if not INSTALLS & set(block)]
    return {line: typed(line, capsys) for block in shown[:most] for line in block}


def test_the_first_commands_run_as_typed_and_the_picture_is_what_show_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = run_blocks(2, capsys)
    (picture,) = re.findall(r"^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    parts = [part.strip("\n") for part in picture.split("[...]\n") if part.strip()]
    assert len(parts) >= 3
    for part in parts:
        assert part in printed["hydraplan show run.plan"]
    assert any(line.startswith("hydraplan check mine.plan") for line in printed)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(500)
def test_all_commands_run_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = run_blocks(len(BLOCKS), capsys)
    assert "small.plan: measured on cpu, pp 2 x ranks 2" in printed["hydraplan show first.run"]
    assert (tmp_path / "learnt.profile.parquet").is_file()
    assert "so it is the device, not the" in printed["hydraplan show slow.run"]
