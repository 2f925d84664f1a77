"""Sequence lengths from text: one integer a line, or CSV with a column of them.

It is CSV if the first line begins like a name. Lines are counted from 1, as editors do.
"""

import csv
import io
import re
from pathlib import Path

import numpy as np

from hydraplan.errors import InputError, many
from hydraplan.files.lengths_columns import LENGTH_COLUMNS, MAX_TOTAL_TOKENS, counted_column
from hydraplan.model import IntArray

FORMS = (
    "lengths come from Parquet, Arrow, CSV or JSONL, a Megatron .idx, .npy, or text with one"
    " integer a line"
)
_INTEGER = re.compile(rb"-?[0-9]{1,30}")
_HEADER = re.compile(rb"(\xef\xbb\xbf)?[\s,]*\"?[A-Za-z_]")  # pandas leaves its index unnamed


def read_text(path: Path) -> IntArray:
    """The integers of a text file, or of the length column of a CSV.

    Raises:
        InputError: The file is empty, or a line holds anything else; the line is named.
    """
    raw = path.read_bytes()
    if not raw:
        raise InputError(f"{path} is empty")
    if _HEADER.match(raw):
        return _read_csv(path, raw)
    lines = raw.removesuffix(b"\n").split(b"\n")
    values = [_integer(path, number, line, FORMS) for number, line in enumerate(lines, 1)]
    return np.array(values, np.int64)


def _read_csv(path: Path, raw: bytes) -> IntArray:
    """The length column of a CSV with a header; every row must have as many cells as that."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason})", FORMS) from None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    values = []
    try:
        names = [name.strip() for name in next(rows)]
        column = names.index(counted_column(str(path), names, LENGTH_COLUMNS))
        for row in rows:
            if len(row) != len(names):
                raise InputError(
                    f"{path}: line {rows.line_num} has {many(len(row), 'cell')}, the header"
                    f" {len(names)}",
                    "give every row a cell for every column",
                )
            cell = row[column].encode()
            values.append(
                _integer(path, rows.line_num, cell, f"column {names[column]} counts tokens")
            )
    except csv.Error as error:
        raise InputError(f"{path} is not CSV: {error}") from None
    return np.array(values, np.int64)


def _integer(path: Path, number: int, raw: bytes, hint: str) -> int:
    text = raw.strip()
    if not _INTEGER.fullmatch(text):
        raise InputError(f"{path}: line {number} is not an integer: {ascii(raw[:40])[1:]}", hint)
    value = int(text)
    if not -MAX_TOTAL_TOKENS <= value <= MAX_TOTAL_TOKENS:
        raise InputError(f"{path}: line {number} is beyond {MAX_TOTAL_TOKENS}: {value}")
    return value
