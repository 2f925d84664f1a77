"""Sequence lengths from a file: Parquet, Megatron `.idx`, or text with one integer a line.

The kind is told by the suffix `.parquet` or `.idx`, else by the first bytes; what is neither
is text. Rows keep the order of the file, row i is `sequence_id` i. Zero is a legal length
(planning lists such rows as empty), everything else that is not a count of tokens is
refused with its row. Token ids are not read here.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hydraplan.errors import InputError, printable
from hydraplan.files.megatron_idx import MAGIC, Unit, read_lengths_only
from hydraplan.files.parquet import DAMAGED, first_line
from hydraplan.model import IntArray

LENGTH_COLUMNS = ("length", "length_tokens", "seqlen")
MAX_TOTAL_TOKENS = 2**63 - 1
_PARQUET_MAGIC = b"PAR1"
_INTEGER = re.compile(rb"-?[0-9]{1,30}")


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
    try:
        if kind == "idx":
            length_tokens = read_lengths_only(path, unit)
        else:
            length_tokens = _read_parquet(path) if kind == "parquet" else _read_text(path)
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
    if path.suffix in (".parquet", ".idx"):
        return path.suffix[1:]
    try:
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
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
            f" it has {', '.join(names)}",
            "rename the column that counts the tokens of a row",
        )
    if len(found) > 1:
        raise InputError(
            f"{path} is ambiguous: each of the columns {', '.join(found)} could be the length",
            f"keep one of {', '.join(LENGTH_COLUMNS)}",
        )
    return found[0]


def _read_text(path: Path) -> IntArray:
    raw = path.read_bytes()
    if not raw:
        raise InputError(f"{path} is empty")
    lines = raw.removesuffix(b"\n").split(b"\n")
    values = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not _INTEGER.fullmatch(text):
            raise InputError(
                f"{path}: line {number} is not an integer: {ascii(line[:40])[1:]}",
                "lengths come from Parquet, a Megatron .idx, or text with one integer a line",
            )
        values.append(int(text))
        if values[-1] > MAX_TOTAL_TOKENS or values[-1] < -MAX_TOTAL_TOKENS:
            raise InputError(f"{path}: line {number} is beyond {MAX_TOTAL_TOKENS}: {values[-1]}")
    return np.array(values, np.int64)
