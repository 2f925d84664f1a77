import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.planner.twin import results

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The same work in a process that compiles nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.planner.twin"],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_plain_python_plans_and_places_the_same_to_the_last_bit(plain: dict[str, Any]) -> None:
    compiled = results()
    for part, found in compiled.items():
        for name, value in found.items():
            assert value == plain["results"][part][name], name
        assert found.keys() == plain["results"][part].keys()


def test_every_compiled_function_has_run_in_plain_python(plain: dict[str, Any]) -> None:
    assert len(plain["ran"]) > 40
    assert [name for name, ran in plain["ran"].items() if not ran] == []
