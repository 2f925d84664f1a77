"""Where a run is kept: the folder asked for, which one process at a time writes, or none."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hydraplan.errors import InputError


@contextmanager
def run_folder(output: Path | None) -> Iterator[Path]:
    """Where the run folder goes: `output`, or a place that is removed afterwards."""
    if output is not None:
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="hydraplan-") as spare:
        yield Path(spare) / "kept-nowhere.run"


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process at a time look into a folder and make a run there; the others wait."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold an existing run folder against other writers; it is free again however this one ends.

    A file system without locks holds nobody off.

    Raises:
        InputError: Another process writes the run.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"run {folder} is being written by another process", "wait until it has ended"
                ) from None
        yield
    finally:
        os.close(handle)
