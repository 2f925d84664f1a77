"""Whether compiled code lies in the cache."""

import importlib.util
import os
from pathlib import Path

import pytest

from hydraplan.planner import compiled as module

SOURCE = """
from hydraplan.planner.compiled import compiled


@compiled
def twice(number):
    return 2 * number
"""


def test_a_cache_is_warm_from_the_first_call_until_the_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_dispatchers", [])
    assert not module.is_cold("of_a_test")
    path = tmp_path / "of_a_test.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("of_a_test", path)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert module.is_cold("of_a_test")
    assert not module.is_cold("another")
    assert made.twice(3) == 6
    assert not module.is_cold("of_a_test")
    later_s = path.stat().st_mtime + 60
    os.utime(path, (later_s, later_s))
    assert module.is_cold("of_a_test")
