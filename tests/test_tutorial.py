"""Pages of docs that are walked: every command runs, and prints what stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"```sh(?: exit=(\d))?\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("page", "count"),
    [
        pytest.param("tutorial.md", 10, marks=pytest.mark.slow),
        ("nested-cp.md", 1),
        ("schedules.md", 1),
        pytest.param("load-target.md", 1, marks=pytest.mark.slow),
        pytest.param("noise.md", 1, marks=pytest.mark.slow),
    ],
)
def test_a_page_can_be_walked(page: str, count: int, tmp_path: Path) -> None:
    text = (DOCS / page).read_text()
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("```sh") == count
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
