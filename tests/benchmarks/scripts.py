"""Scripts of the benchmarks, imported as they import their neighbours: by plain name."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARITY, PIPELINE, PLANNER = (BENCHMARKS / name for name in ("parity", "pipeline", "planner"))
POLICY = BENCHMARKS / "policy"


def script(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> ModuleType:
    """The script of that name; its folder is on the path until the test ends."""
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(name)
