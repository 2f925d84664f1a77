"""Whether compiled code lies in the cache, and what of numba it is made without."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numba.core.errors import NumbaError

from hydraplan.planner import compiled as module

SOURCE = """
from hydraplan.planner.compiled import compiled


@compiled
def twice(number):
    return 2 * number
"""

ARRAYS = """
from typing import Any, NamedTuple

import numpy as np

from hydraplan.planner.compiled import compiled, compiled_in_place


class Two(NamedTuple):
    these: Any
    those: Any


def add(two, number):
    for i in range(len(two.these)):
        two.these[i] += number * two.those[i]


in_place = compiled_in_place(add)


@compiled_in_place
def adds_in_place(two):
    in_place(Two(two.those, two.these), 2)


usual = compiled(add)


@compiled
def adds(two):
    usual(Two(two.those, two.these), 2)


@compiled_in_place
def makes_an_array(number):
    return np.zeros(number).sum()
"""


def loaded(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_cache_is_warm_from_the_first_call_until_the_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_dispatchers", [])
    assert not module.is_cold("of_a_test")
    path = tmp_path / "of_a_test.py"
    made = loaded(path, SOURCE)
    assert module.is_cold("of_a_test")
    assert not module.is_cold("another")
    assert made.twice(3) == 6
    assert not module.is_cold("of_a_test")
    later_s = path.stat().st_mtime + 60
    os.utime(path, (later_s, later_s))
    assert module.is_cold("of_a_test")


def test_numba_still_has_the_private_option_that_leaves_references_uncounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails for a new numba, see `compiled_in_place` and measure inference anew."""
    monkeypatch.setattr(module, "_dispatchers", [])
    made = loaded(tmp_path / "of_arrays.py", ARRAYS)
    counts = {}
    for work in (made.adds_in_place, made.adds):
        two = made.Two(np.ones(3), np.zeros(3))
        work(two)
        assert two.those.tolist() == [2, 2, 2]
        (code,) = work.inspect_llvm().values()
        counts[work.__name__] = code.count("NRT_incref") + code.count("NRT_decref")
    assert counts["adds_in_place"] == 0 < counts["adds"]
    with pytest.raises(NumbaError, match="zeros"):
        made.makes_an_array(3)
