"""Where a run is kept: the folder asked for, which one process at a time writes, or none."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    with _locked(folder, fcntl.LOCK_EX):
        yield


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold an existing run folder against other writers; it is free again however this one ends.

    Raises:
        InputError: Another process writes the run.
    """
    with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_mine:
        if not is_mine:
            raise InputError(
                f"run {folder} is being written by another process", "wait until it has ended"
            )
        yield


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[bool]:
    """Lock a folder while the block runs; whether nobody else holds it.

    A file system without locks holds nobody off.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        is_mine = True
        try:
            fcntl.flock(handle, how)
        except BlockingIOError:
            is_mine = False
        except OSError:
            pass
        yield is_mine
    finally:
        os.close(handle)
