"""Sequence lengths from record batches, as Parquet and Arrow files give them.

Three forms, told by the name of a column: counts (`length`); lists of ids (`input_ids`), whose
offsets alone are looked at; packs, rows that hold several sequences back to back. A pack's
boundaries rise from 0: `seq_start_id` are the starts, its last sequence ends with `input_ids`;
`cu_seqlens` has the end as well, then any number of -1. A row i is counted over all batches.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hydraplan.errors import InputError
from hydraplan.files.lengths_columns import (
    BOUNDARY_COLUMNS,
    ID_COLUMNS,
    LENGTH_COLUMNS,
    counted_column,
)
from hydraplan.model import IntArray

PADDING = -1


def columns_to_read(path: Path, schema: pa.Schema) -> list[str]:
    """The column to count by; beside boundaries the ids, where there are any.

    Raises:
        InputError: There is no such column, several, or one of another type.
    """
    names = schema.names
    name = counted_column(str(path), names, BOUNDARY_COLUMNS, LENGTH_COLUMNS, ID_COLUMNS)
    ids = [n for n in names if n in ID_COLUMNS] if name in BOUNDARY_COLUMNS else []
    if len(ids) > 1 or names.count(name) > 1:
        raise InputError(f"{path} has a column {(ids or [name])[0]} twice")
    if name == "seq_start_id" and not ids:
        raise InputError(
            f"{path} has seq_start_id and no input_ids: where the last sequence ends is unknown",
            "keep the column input_ids, or write cu_seqlens",
        )
    for column in (name, *ids):
        kind = schema.field(column).type
        lists = column not in LENGTH_COLUMNS
        if not pa.types.is_integer(kind.value_type if lists and _is_list(kind) else kind) or (
            lists and not _is_list(kind)
        ):
            what = "are lists of integers" if lists else "are integers"
            subject = "ids" if column in ID_COLUMNS else "boundaries" if lists else "lengths"
            raise InputError(f"{path}: column {column} holds {kind}, {subject} {what}")
    return [name, *ids]


def count_rows(path: Path, batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> IntArray:
    """Tokens of every sequence of all batches, which hold the columns `columns_to_read` gave.

    Raises:
        InputError: A cell is empty, or boundaries are none; the row is named.
    """
    counts, row = [np.empty(0, np.int64)], 0
    for batch in batches:
        batch.validate(full=True)
        for name in names:
            _refuse_empty(path, batch.column(name), name, row)
        if names[0] in LENGTH_COLUMNS:
            counts.append(batch.column(names[0]).cast(pa.int64()).to_numpy())
        elif names[0] in ID_COLUMNS:
            counts.append(_list_lengths(batch.column(names[0])))
        else:
            ends = _list_lengths(batch.column(names[1])) if len(names) > 1 else None
            counts.append(_packed(path, batch.column(names[0]), names[0], ends, row))
        row += batch.num_rows
    return np.concatenate(counts)


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _list_lengths(column: pa.Array) -> IntArray:
    result: IntArray = pc.list_value_length(column).cast(pa.int64()).to_numpy()
    return result


def _refuse_empty(path: Path, column: pa.Array, name: str, row: int) -> None:
    """Refuse a cell, or an entry of a list, that is null."""
    if column.null_count:
        where = column.is_null().index(True).as_py()
        raise InputError(f"{path}: row {row + where} of column {name} is empty")
    if _is_list(column.type) and (entries := column.flatten()).null_count:
        first = entries.is_null().index(True).as_py()
        where = int(np.searchsorted(np.cumsum(_list_lengths(column)), first, side="right"))
        raise InputError(f"{path}: row {row + where} of column {name} has an empty entry")


def _packed(path: Path, column: pa.Array, name: str, ends: IntArray | None, row: int) -> IntArray:
    """Lengths of the sequences of every pack; `ends` ids of every row, shape (rows,)."""
    counts = _list_lengths(column)
    pack = np.repeat(np.arange(len(counts)), counts)
    bound: IntArray = column.flatten().cast(pa.int64()).to_numpy()
    if name == "cu_seqlens":
        padding = bound == PADDING
        follows = ~padding[1:] & padding[:-1] & (pack[1:] == pack[:-1])
        if follows.any():
            at = int(np.argmax(follows))
            raise _refused(path, row + pack[at], name, f"has {bound[at + 1]} after {PADDING}")
        pack, bound = pack[~padding], bound[~padding]
    else:
        assert ends is not None
        last = np.cumsum(counts)
        pack = np.insert(pack, last, np.arange(len(counts)))
        bound = np.insert(bound, last, ends)
    held = np.bincount(pack, minlength=len(counts))
    if (held < 2).any():
        at = int(np.argmax(held < 2))
        raise _refused(path, row + at, name, "bounds no sequence")
    first = np.cumsum(held) - held
    if (bound[first] != 0).any():
        at = int(np.argmax(bound[first] != 0))
        raise _refused(path, row + at, name, f"starts with {bound[first][at]}, not with 0")
    inside = pack[1:] == pack[:-1]
    falls = inside & (bound[1:] <= bound[:-1])
    if falls.any():
        at = int(np.argmax(falls))
        raise _refused(
            path, row + pack[at], name, f"does not rise: {bound[at + 1]} after {bound[at]}"
        )
    final = bound[first + held - 1]
    if ends is not None and (final != ends).any():
        at = int(np.argmax(final != ends))
        raise _refused(
            path, row + at, name, f"ends at {final[at]}, the row has {ends[at]} input_ids"
        )
    result: IntArray = np.diff(bound)[inside]
    return result


def _refused(path: Path, row: int, name: str, why: str) -> InputError:
    return InputError(
        f"{path}: row {row}: {name} {why}",
        "boundaries rise from 0 to the number of ids; padding is -1, behind them",
    )
