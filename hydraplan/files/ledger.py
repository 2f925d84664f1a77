"""The ledger of a run: the rows of `steps.parquet`, which say what was trained.

A checkpoint holds the digest of the rows before it, so both say the same or the run is not gone
on with. Steps after the checkpoint are lost with whatever ended the run: they are taken out, and
done again.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hydraplan.errors import InputError
from hydraplan.files.checkpointfile import (
    CHECKPOINTS,
    Saved,
    newest_checkpoint,
    remove_unfinished,
)
from hydraplan.files.parquet import beside, open_parquet, read_batches, with_footer
from hydraplan.files.runfile import ROWS_OF_A_GROUP, RUN_FILES, Run, RunHeader, unfinished_files

LEDGER_COLUMNS = (
    "step", "batch", "first_sequence_id", "num_sequences", "tokens", "valid_tokens", "loss",
)  # fmt: skip
"""What is digested; times are of no matter to what was trained."""


_CHANGED = "one of the two was changed or comes from another run; put back what the run wrote"


class Ledger:
    """Digest of the steps so far, one after the other."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._total: Final = hashlib.sha256()
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in the next step."""
        self._total.update(repr([row[name] for name in LEDGER_COLUMNS]).encode())

    @property
    def digest(self) -> str:
        """SHA-256 of everything that was taken in."""
        return self._total.hexdigest()


def check_ledger(run: Run, saved: Saved) -> None:
    """Refuse a checkpoint of another plan, or of other steps than the run's.

    Raises:
        InputError: They do not agree; both values are named.
    """
    path, about = run.path / "steps.parquet", saved.about
    if about.plan_digest != run.header.plan_digest:
        raise InputError(
            f"{saved.path} is of plan {about.plan_digest[:16]}, the run of"
            f" {run.header.plan_digest[:16]}",
            "put back the folder that the run wrote",
        )
    if about.steps > len(run.steps):
        raise InputError(
            f"{path} ends after {len(run.steps)} steps, {saved.path} was written after"
            f" {about.steps}",
            _CHANGED,
        )
    found = Ledger(run.steps[: about.steps]).digest
    if found != about.ledger_digest:
        raise InputError(
            f"{path}: the first {about.steps} steps have digest {found[:16]}, {saved.path} was"
            f" written after {about.ledger_digest[:16]}",
            _CHANGED,
        )


def last_checkpoint(run: Run) -> Saved | None:
    """The newest checkpoint of a run, if it has one, and agrees with the run.

    Raises:
        InputError: The run keeps none, lost them, or the newest is damaged or of other steps.
    """
    every = run.header.checkpoint_every
    if run.header.mode != "measured" or every is None:
        raise InputError(
            f"run {run.path} has no checkpoints to go on from",
            "train it with --checkpoint-every" if every is None else "",
        )
    saved = newest_checkpoint(run.path)
    if saved is not None:
        check_ledger(run, saved)
    elif len(run.steps) > every:
        raise InputError(
            f"run {run.path} holds {len(run.steps)} steps, with a checkpoint every {every}, but no"
            f" checkpoint is in {run.path / CHECKPOINTS}",
            "put them back, or start over with --force",
        )
    return saved


def next_row(rows: Sequence[Mapping[str, Any]], first_row: int) -> int:
    """Row of the length file after the last that was trained; `first_row` if none was yet."""
    if not rows:
        return first_row
    return int(rows[-1]["first_sequence_id"] + rows[-1]["num_sequences"])


def rewind(path: Path, header: RunHeader, steps: int) -> None:
    """Keep the first `steps` steps of a run, under a new header, and nothing half-written.

    The ledger is cut first, so that it never tells of a step that other files do not hold.
    """
    for name in unfinished_files(path):
        (path / name).unlink()
    remove_unfinished(path)
    for name in ("steps.parquet", *(n for n in RUN_FILES if n != "steps.parquet")):
        _keep(path / name, RUN_FILES[name], header, steps)


def _keep(path: Path, schema: pa.Schema, header: RunHeader, steps: int) -> None:
    file = open_parquet(path, schema)
    with beside(path) as spare, pq.ParquetWriter(spare, with_footer(schema, header)) as writer:
        for batch in read_batches(file, path, ROWS_OF_A_GROUP):
            kept = batch.filter(pc.less(batch.column("step"), steps))
            if len(kept):
                writer.write_batch(kept)
