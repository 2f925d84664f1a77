"""Batches planned by forked processes, in order and flat memory; trials of a simulation alike.

Every worker is forked at the start, before the caller begins threads such as a progress bar's,
and is then told one batch number after the other. It inherits the work by the fork, so only
results travel, over a pipe of its own. A batch is begun only if it is among the next few that
the reader wants; whatever their number, no more results than that wait. No thread, no lock
and no file is involved, so a worker can be killed at any time: all are when the block is left,
and the kernel does it should this process end without.

Order and content do not depend on the number of workers, nor does the error: that of the first
batch that fails is raised when its turn has come.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

from hydraplan.errors import MissingDependency, RunFailed
from hydraplan.host import begin_as_child

T = TypeVar("T")

AHEAD = 2
"""Results a worker may have finished before their turn."""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the command; this process takes them and ends the workers."""


@contextmanager
def in_order(
    work: Callable[[int], T], count: int, workers: int, doing: str = "planning batch"
) -> Iterator[Iterator[T]]:
    """`work(0)` to `work(count - 1)` in order, computed by so many processes; one is this one.

    More processes than there is work for are not started. `doing` is what errors say of a number.

    Raises:
        MissingDependency: The system does not allow so many processes or pipes.
        RunFailed: A worker was killed; names the batch it had in hand.
        Exception: Whatever `work` raised; its note holds the worker's traceback.
    """
    workers = min(workers, count)
    if workers == 1:
        yield map(work, range(count))
        return
    team: dict[Connection, ForkProcess] = {}
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            for _ in range(workers):
                _fork(work, before, team, doing)
        except OSError as error:
            raise MissingDependency(
                f"only {len(team)} of {workers} workers could be started: {error.strerror}",
                f"use --workers {max(1, len(team) // 2)}",
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield _results(team, count, doing)
    finally:
        for process in team.values():
            process.kill()
        for pipe, process in team.items():
            process.join()
            pipe.close()


def _fork(
    work: Callable[[int], T],
    mask: set[int | signal.Signals],
    team: dict[Connection, ForkProcess],
    doing: str,
) -> None:
    """Add a worker to the team."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    args = work, theirs, os.getpid(), mask, doing
    process = context.Process(target=_work_off, args=args, daemon=True)
    process.start()
    theirs.close()
    team[ours] = process


def _work_off(
    work: Callable[[int], T],
    pipe: Connection,
    parent: int,
    mask: set[int | signal.Signals],
    doing: str,
) -> None:
    """Body of a worker: answer every number with a result or an error."""
    begin_as_child(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    while True:
        batch = pipe.recv()
        try:
            answer: tuple[object, Exception | None] = work(batch), None
        except Exception as error:
            error.add_note(f"{doing} {batch}:\n{traceback.format_exc()}")
            answer = None, error
        pipe.send(answer)


def _results(team: dict[Connection, ForkProcess], count: int, doing: str) -> Iterator[Any]:
    busy: dict[Connection, int] = {}
    done: dict[int, tuple[Any, Exception | None]] = {}
    begun = 0
    for wanted in range(count):
        while wanted not in done:
            for pipe in team:
                if pipe not in busy and begun < min(count, wanted + AHEAD * len(team)):
                    with _alive(team[pipe], doing, begun):
                        pipe.send(begun)
                    busy[pipe] = begun
                    begun += 1
            ready = wait(list(busy))
            for pipe in [p for p in busy if p in ready]:
                batch = busy.pop(pipe)
                with _alive(team[pipe], doing, batch):
                    done[batch] = pipe.recv()
        result, error = done.pop(wanted)
        if error is not None:
            raise error
        yield result


@contextmanager
def _alive(process: ForkProcess, doing: str, batch: int) -> Iterator[None]:
    """Turn a pipe whose other end is gone into one line."""
    try:
        yield
    except (EOFError, OSError):
        process.join()
        code = process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"gone with code {code}"
        raise RunFailed(
            f"the worker {doing} {batch} is {how}",
            "if nobody killed it, the machine ran out of memory: use fewer --workers",
        ) from None
