"""Runs the tests of the Triton kernels in Triton's interpreter, and compiles for GPUs.

Each in a process of its own: see `tests/triton_device`, and a compiler leaves threads behind that
forked tests would not have.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

pytest.importorskip("triton")

pytestmark = pytest.mark.timeout(300)


def run(*command: str, **environment: str) -> str:
    environment = {**os.environ, "TRITON_INTERPRET": "0", **environment}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def interpreted(modules: list[str], marker: str) -> None:
    paths = [str(HERE / f"test_triton_{module}.py") for module in modules]
    said = run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marker, *paths, TRITON_INTERPRET="1"
    )
    assert "passed" in said
    assert "skipped" not in said, said


EVERY_TYPE = "bfloat16,float16,float32,float64"


@pytest.mark.parametrize(
    ("types", "archs", "kernels"),
    [
        ("bfloat16", ("90",), 6),
        pytest.param(EVERY_TYPE, ("80", "100"), 48, marks=pytest.mark.slow),
    ],
)
def test_for_gpus_they_compile_once_for_all_rows_and_write_sixteen_bytes_at_once(
    types, archs, kernels, tmp_path
):
    said = run("-m", "tests.triton_compiled", types, *archs, TRITON_CACHE_DIR=str(tmp_path))
    lines = said.splitlines()
    assert [line.endswith("writes 16 bytes at once") for line in lines[:-3]] == [True] * kernels
    assert lines[-3:] == [f"{rows} rows need the same kernels" for rows in (2, 33, 61)]


def test_in_the_interpreter_the_kernels_do_what_torch_does():
    interpreted(["merge", "heads"], "not slow")


@pytest.mark.slow
def test_in_the_interpreter_whole_engines_and_far_offsets_are_right():
    interpreted(["merge", "heads", "nested"], "slow")
