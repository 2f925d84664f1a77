import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_every_example_runs_and_says_something(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "figures (simulated)" in done.stdout


def test_there_are_examples() -> None:
    assert EXAMPLES
