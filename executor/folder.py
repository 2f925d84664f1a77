"""Where a run is kept: the folder asked for, or one that vanishes with the command."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def run_folder(output: Path | None) -> Iterator[Path]:
    """Where the run folder goes: `output`, or a place that is removed afterwards."""
    if output is not None:
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="hydraplan-") as spare:
        yield Path(spare) / "kept-nowhere.run"
