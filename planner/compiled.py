"""Compile the planner's inner loops with numba; the Python source stays the readable twin.

Each compiled function keeps its Python original as `py_func`, which the tests run as oracle.
The compiled code is cached on disk, so only the first plan on a machine waits for it.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile on first call for the argument types seen; same results as the original."""
    return cast(F, numba.njit(cache=True)(function))
