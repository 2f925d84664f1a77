"""docs/tutorial.md: every command runs, and prints what stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"```sh(?: exit=(\d))?\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


@pytest.mark.slow
@pytest.mark.dist
def test_the_tour_can_be_walked(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == PAGE.read_text().count("```sh") == 10
    bins = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for code, commands, said in blocks:
        done = subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=tmp_path,
            env=os.environ | {"PATH": bins, "COLUMNS": "80", "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == int(code or 0), f"{commands}\n{done.stderr}"
        printed = iter(done.stdout.splitlines())
        for line in said.splitlines():
            assert line in printed, f"{commands}\nprints no line {line!r} after those before"
