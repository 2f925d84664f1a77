"""Sequence lengths from a file: Parquet, Megatron `.idx`, NumPy `.npy`, CSV, or text.

The kind is told by the suffix `.parquet`, `.idx` or `.npy`, else by the first bytes. What is none
of them is text with one integer a line, or CSV if its first line begins like a name; Parquet and
CSV have one column with a name of `LENGTH_COLUMNS`. Rows keep the order of the file, row i is
`sequence_id` i. Zero is a legal length (planning lists such rows as empty), everything else that
is not a count of tokens is refused with its row. Token ids are not read here.
"""

import csv
import hashlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hydraplan.errors import InputError, first_line, many, printable
from hydraplan.files.megatron_idx import MAGIC, Unit, read_lengths_only
from hydraplan.files.parquet import DAMAGED
from hydraplan.model import IntArray

LENGTH_COLUMNS = ("length", "length_tokens", "seqlen")
MAX_TOTAL_TOKENS = 2**63 - 1
_PARQUET_MAGIC = b"PAR1"
_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEADER = re.compile(
    rb"\{'descr': '([<>|][iu][1248])', 'fortran_order': (?:True|False),"
    rb" 'shape': \(([0-9]{1,18}),\), ?\}\s*"
)
_INTEGER = re.compile(rb"-?[0-9]{1,30}")
_HEADER = re.compile(rb"(\xef\xbb\xbf)?\s*\"?[A-Za-z_]")
FORMS = "lengths come from Parquet or CSV, a Megatron .idx, .npy, or text with one integer a line"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of every row of a file, shape (num_sequences,), at least one row, none negative."""

    name: str
    unit: Unit
    length_tokens: IntArray


def read_lengths(path: Path, unit: Unit = "sequences") -> Lengths:
    """Read the lengths a file holds; `unit` documents sums the sequences of each document.

    Raises:
        InputError: The file is absent, empty or damaged, or a row is not a count of tokens.
    """
    kind = _kind(path)
    if unit == "documents" and kind != "idx":
        raise InputError(
            f"{path} knows no documents, --unit documents needs a Megatron .idx",
            "leave --unit out",
        )
    readers = {"parquet": _read_parquet, "npy": _read_npy, "text": _read_text}
    try:
        length_tokens = read_lengths_only(path, unit) if kind == "idx" else readers[kind](path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(length_tokens) == 0:
        raise InputError(f"{path} holds no rows")
    if length_tokens.min() < 0:
        row = int(np.argmax(length_tokens < 0))
        raise InputError(f"{path}: row {row} has length {length_tokens[row]}, below 0")
    total = length_tokens.sum(dtype=np.float64)
    if total >= MAX_TOTAL_TOKENS:
        raise InputError(f"{path} sums to {total:.3g} tokens, more than {MAX_TOTAL_TOKENS}")
    return Lengths(printable(path.name), unit, length_tokens)


def digest(length_tokens: IntArray) -> str:
    """SHA-256 of the lengths as little-endian int64, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(length_tokens, "<i8").data).hexdigest()


def _kind(path: Path) -> str:
    if not path.exists():
        raise InputError(f"length file {path} does not exist", "check the path")
    if not path.is_file():
        raise InputError(f"length file {path} is not a regular file", "give one file")
    if path.suffix in (".parquet", ".idx", ".npy"):
        return path.suffix[1:]
    try:
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    if head.startswith(_NPY_MAGIC):
        return "npy"
    return "idx" if head == MAGIC else "text"


def _read_parquet(path: Path) -> IntArray:
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty")
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            name = _length_column(path, schema.names)
            kind = schema.field(name).type
            if not pa.types.is_integer(kind):
                raise InputError(f"{path}: column {name} holds {kind}, lengths are integers")
            values = file.read([name]).column(name)
            if values.null_count:
                row = values.is_null().index(True).as_py()
                raise InputError(f"{path}: row {row} of column {name} is empty")
            cast = values.cast(pa.int64())
    except DAMAGED as error:
        raise InputError(f"{path} is not Parquet with lengths: {first_line(error)}") from None
    result: IntArray = cast.to_numpy()
    return result


def _length_column(path: Path, names: list[str]) -> str:
    found = [name for name in names if name in LENGTH_COLUMNS]
    if not found:
        raise InputError(
            f"{path} has no column {', '.join(LENGTH_COLUMNS[:-1])} or {LENGTH_COLUMNS[-1]};"
            f" it has {printable(', '.join(names)[:80])}",
            "rename the column that counts the tokens of a row",
        )
    if len(found) > 1:
        raise InputError(
            f"{path} is ambiguous: each of the columns {', '.join(found)} could be the length",
            f"keep one of {', '.join(LENGTH_COLUMNS)}",
        )
    return found[0]


def _read_npy(path: Path) -> IntArray:
    """A one-dimensional array of integers; the header is matched, never evaluated."""
    raw = path.read_bytes()
    size_bytes = 2 if raw[6:8] == b"\x01\x00" else 4  # format 1.0, or later ones
    start = len(_NPY_MAGIC) + 2 + size_bytes
    end = start + int.from_bytes(raw[start - size_bytes : start], "little")
    if not raw.startswith(_NPY_MAGIC) or len(raw) < end:
        raise InputError(f"{path} is not .npy, or ends in its header", FORMS)
    header = _NPY_HEADER.fullmatch(raw[start:end])
    if header is None:
        raise InputError(
            f"{path} holds no integers in one dimension: {ascii(raw[start:end].strip()[:80])[1:]}",
            "save an array of shape (rows,) and an integer type",
        )
    dtype, rows = np.dtype(header[1].decode()), int(header[2])
    if len(raw) - end != rows * dtype.itemsize:
        raise InputError(f"{path} promises {rows} {dtype}, {len(raw) - end} bytes follow")
    values = np.frombuffer(raw, dtype, offset=end)
    if rows and values.max() > MAX_TOTAL_TOKENS:
        row = int(np.argmax(values > MAX_TOTAL_TOKENS))
        raise InputError(f"{path}: row {row} is beyond {MAX_TOTAL_TOKENS}: {values[row]}")
    return values.astype(np.int64)


def _read_text(path: Path) -> IntArray:
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
        column = names.index(_length_column(path, names))
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
