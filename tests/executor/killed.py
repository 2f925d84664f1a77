"""Kill a worker at any moment of its life, the same one in every run of a test.

A moment is a number of calls and returns, of Python or C, that the worker has made since it was
forked: in the middle of an op, of a message, of a checkpoint, of the renaming of a file.
"""

import os
import signal
import sys
from pathlib import Path

from hydraplan.executor import launch


def count_calls(monkeypatch, folder: Path) -> None:
    """Have every worker write down, in a file named after its rank, how many calls it makes."""

    def join(entry, world, timeout_s):
        counted = _counting(0)
        joined(entry, world, timeout_s)
        sys.setprofile(None)
        (folder / str(world.rank)).write_text(str(counted[0]))

    joined = launch._join_world
    monkeypatch.setattr(launch, "_join_world", join)


def kill_at(monkeypatch, rank: int, calls: int, once: Path | None = None) -> None:
    """Have one worker end by SIGKILL when it has made so many calls; with `once` only one time."""

    def join(entry, world, timeout_s):
        if world.rank == rank and not (once and once.exists()):
            if once:
                once.write_text("")
            _counting(calls)
        joined(entry, world, timeout_s)

    joined = launch._join_world
    monkeypatch.setattr(launch, "_join_world", join)


def _counting(last: int) -> list[int]:
    counted = [0]

    def called(frame: object, event: str, argument: object) -> None:
        counted[0] += 1
        if counted[0] == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(called)
    return counted
