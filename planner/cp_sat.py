"""CP-SAT of ortools, asked so that it returns the same on every run.

One thread with all strategies interleaved, a fixed seed, and a limit of deterministic work instead
of seconds. Interleaved strategies on one thread found and proved more per CPU second than two
threads, interleaved or racing, and far more than one strategy alone.
"""

from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

from hydraplan.errors import MissingDependency


def cp_sat(what: str, instead: str) -> ModuleType:
    """The module, imported only where it is used: it takes a second and 200 MB.

    Raises:
        MissingDependency: ortools is not installed; the message names `what` needs it, the hint
            what to use `instead`.
    """
    try:
        from ortools.sat.python import cp_model  # noqa: PLC0415
    except ImportError as error:
        hint = f"pip install ortools, or use {instead}"
        raise MissingDependency(f"{what} needs ortools: {error}", hint) from None
    module: ModuleType = cp_model
    return module


def solved(module: ModuleType, model: Any, deterministic_s: float) -> tuple[Any, int]:
    """Solver and status after at most that much work; two CPU seconds or so each."""
    solver = module.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.interleave_search = True
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = deterministic_s
    solver.parameters.catch_sigint_signal = False  # an interrupted search is no result
    return solver, _interruptibly(solver, model)


def _interruptibly(solver: Any, model: Any) -> int:
    """Solve on a second thread, so that this one can be interrupted; then the search stops too."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            status: int = pool.submit(solver.solve, model).result()
        except BaseException:
            solver.stop_search()
            raise
    return status
