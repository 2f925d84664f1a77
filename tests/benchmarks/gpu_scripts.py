"""Modules of benchmarks/gpu, which also import those of two other benchmarks by plain name."""

from types import ModuleType

import pytest

from tests.benchmarks.scripts import BENCHMARKS, PLANNER, script

GPU = BENCHMARKS / "gpu"


def gpu_script(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """The module of that name; its folders are on the path until the test ends."""
    for folder in (BENCHMARKS / "prediction", PLANNER):
        monkeypatch.syspath_prepend(str(folder))
    return script(monkeypatch, GPU, name)
