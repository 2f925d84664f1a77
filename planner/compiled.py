"""Compile the planner's inner loops with numba; the Python source stays the readable twin.

Each compiled function keeps its Python original as `py_func`, which the tests run as oracle.
The compiled code is cached on disk, so only the first plan on a machine waits for it, and `is_cold`
tells whether one is due.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])

_dispatchers: list[Any] = []


def compiled(function: F) -> F:
    """Compile on first call for the argument types seen; same results as the original."""
    return _kept(function, numba.njit(cache=True)(function))


def compiled_in_place(function: F) -> F:
    """As `compiled`, for functions that fill arrays given to them and return numbers, no arrays.

    They count no references and are put into their callers whole: where many arrays are handed on
    in tuples, both cost ten times as much as the work itself. To make an array in one is a compile
    error; so is to give a slice an array, which might need a copy.
    """
    # `_nrt` is numba's own name for it: the request to make it public (numba issue 1204) was closed
    # without one. Inlining alone leaves an episode of the policy three to five times as long, and
    # past its goals (benchmarks/policy). A test tells if a numba drops or changes the option.
    options: dict[str, Any] = {"_nrt": False, "forceinline": True}  # mypy does not know the first
    return _kept(function, numba.njit(cache=True, **options)(function))


def _kept(function: F, dispatcher: Any) -> F:
    """The dispatcher, noted for `is_cold`."""
    if hasattr(dispatcher, "py_func"):  # numba hands the function back where it is switched off
        _dispatchers.append(dispatcher)
    return cast(F, dispatcher)


WAIT = "note: compiling the planner's loops, once on this machine: about a minute"
"""What a command says before its first plan where the cache is cold."""


def is_cold(package: str) -> bool:
    """Whether a package has compiled functions loaded, and none of them has code in the cache.

    Code older than its source does not count, since numba would compile that again.
    """
    loaded = [d for d in _dispatchers if d.py_func.__module__.startswith(package)]
    return bool(loaded) and not any(map(_is_cached, loaded))


def _is_cached(dispatcher: Any) -> bool:
    code, name = dispatcher.py_func.__code__, dispatcher.py_func.__qualname__
    source = Path(code.co_filename)
    index = f"{source.stem}.{name}-{code.co_firstlineno}.py*.nbi"
    saved_s = source.stat().st_mtime
    return any(
        found.stat().st_mtime >= saved_s for found in Path(dispatcher.stats.cache_path).glob(index)
    )
