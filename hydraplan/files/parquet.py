"""Parquet with a schema constant, JSON in the footer, and no half-written files.

Everything is written beside its place and renamed. Nothing that changes from run to run
(times, hosts) is written, so same inputs give same bytes.
"""

import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from hydraplan.config import Config, validation_text
from hydraplan.errors import InputError, RunFailed, first_line

FOOTER_KEY = b"hydraplan"

DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What pyarrow raises over a damaged file; the last where a name or a text is no UTF-8."""

H = TypeVar("H", bound=Config)


def refuse_existing(
    path: Path, force: bool, folder_of: Collection[str] = (), option: str = "-o"
) -> None:
    """Raise unless `path` is free, or `force` allows what stands there to be replaced.

    Args:
        folder_of: Names of the files that our folder holds. A folder with anything else in it
            is never replaced, so that a slip in -o cannot delete other people's files. Empty
            for an output that is a file, which never replaces a folder.
        option: What the user gave `path` by.
    """
    if path.name in ("", ".."):
        raise InputError(
            f"{option} {path} names no new file or folder", "give it a name of its own"
        )
    if not path.parent.is_dir():
        raise InputError(f"folder {path.parent} of {path} does not exist", "create it first")
    if not (path.exists() or path.is_symlink()):
        return
    if not force:
        raise InputError(f"{path} exists", f"add --force to replace it, or choose another {option}")
    if not folder_of and not path.is_file():
        raise InputError(
            f"{path} is not a file, --force does not replace it", f"choose another {option}"
        )
    if folder_of:
        ours = path.is_dir() and not path.is_symlink()
        foreign = [f.name for f in path.iterdir() if f.name not in folder_of] if ours else []
        if not ours or foreign:
            what = f"it holds {sorted(foreign)[0]}" if foreign else "it is no folder"
            raise InputError(
                f"{path} is not a folder that hydraplan wrote: {what}; --force does not replace it",
                f"choose another {option}",
            )


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Give a free path next to `path`; on success it takes its place, else it vanishes.

    What is neither file nor folder, such as /dev/stdout, is given itself: nothing can take its
    place.

    Raises:
        InputError: A file would take the place of a folder.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path
        return
    spare = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield spare
        if path.is_dir():
            if not spare.is_dir():
                raise InputError(f"{path} is a folder", "name a file")
            old = spare.with_suffix(".old")
            path.rename(old)
            try:
                spare.rename(path)
            except BaseException:
                old.rename(path)
                raise
            shutil.rmtree(old)
        else:
            os.replace(spare, path)
    except OSError as error:
        if error.filename:  # people know the place, not the spare
            error.filename = str(error.filename).replace(str(spare), str(path))
        raise
    finally:
        if spare.is_dir():
            shutil.rmtree(spare)
        else:
            spare.unlink(missing_ok=True)


@contextmanager
def seen_to_disk(path: Path) -> Iterator[None]:
    """Say where the disk refused what the block writes to `path`; pyarrow itself names no file.

    Raises:
        RunFailed: It did.
    """
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else first_line(error)
        raise RunFailed(
            f"{error.filename or path}: {why}",
            "see that the folder is there and its disk has room, then go on with --resume",
        ) from None


def with_footer(schema: pa.Schema, header: Config) -> pa.Schema:
    """The schema with `header` as JSON in its metadata."""
    return schema.with_metadata({FOOTER_KEY: header.model_dump_json().encode()})


def open_parquet(path: Path, schema: pa.Schema, *older: pa.Schema) -> pq.ParquetFile:
    """Open a file of ours; refuse one that is absent, damaged, or of another schema.

    Schemas of `older` versions are fine, too.
    """
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    try:
        file = pq.ParquetFile(path)
        found = file.schema_arrow.remove_metadata()
        names = found.names
    except DAMAGED as error:
        raise InputError(f"{path} is not readable Parquet: {first_line(error)}") from None
    if not any(found.equals(known) for known in (schema, *older)):
        wrong = [i for i, f in enumerate(schema) if i >= len(names) or found.field(i) != f]
        what = (
            f"column {schema.names[wrong[0]]} differs"
            if wrong
            else f"{names[len(schema)]!a} is one too many"
        )
        raise InputError(f"{path} does not have the schema of this version ({what})")
    return file


def read_rows(file: pq.ParquetFile, path: Path, group: int | None = None) -> pa.Table:
    """All rows of an opened file, or those of one row group; refuse what is damaged."""
    try:
        table = file.read(use_threads=False) if group is None else file.read_row_group(group)
        table.validate(full=True)
    except DAMAGED as error:
        raise InputError(f"{path} is damaged: {first_line(error)}") from None
    return table


def read_batches(file: pq.ParquetFile, path: Path, rows: int) -> Iterator[pa.RecordBatch]:
    """All rows of an opened file, so many at a time; refuse what is damaged."""
    try:
        yield from file.iter_batches(rows, use_threads=False)
    except DAMAGED as error:
        raise InputError(f"{path} is damaged: {first_line(error)}") from None


def read_footer(file: pq.ParquetFile, path: Path, header: type[H]) -> H:
    """The checked JSON header of an opened file."""
    raw: bytes | None = (file.schema_arrow.metadata or {}).get(FOOTER_KEY)
    if raw is None:
        raise InputError(f"{path} has no hydraplan footer")
    try:
        return header.model_validate_json(raw)
    except ValidationError as error:
        raise InputError(f"footer of {path}: {validation_text(error)}") from None


def column(table: pa.Table, name: str) -> Any:
    """One column as a numpy array, not to be written to.

    Plain numbers go by way of DLPack: pyarrow's own way imports pandas, a third of a second.
    """
    values = table.column(name).combine_chunks()
    plain = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    return np.from_dlpack(values) if plain and not values.null_count else values.to_numpy(False)
