"""Sequence lengths from a file: Parquet, Arrow, Megatron `.idx`, JSONL, NumPy `.npy`, CSV, or text.

The kind is told by the suffix, else by the first bytes; what is none of them is text. Rows keep
the order of the file, row i is `sequence_id` i. Zero is a legal length (planning lists such rows
as empty), everything else that is not a count of tokens is refused with its row. Each kind has a
reader of its own; token ids are not kept.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from hydraplan.errors import InputError, printable
from hydraplan.files.lengths_arrow import FILE_MAGIC, STREAM_MAGIC, read_arrow
from hydraplan.files.lengths_columns import MAX_TOTAL_TOKENS
from hydraplan.files.lengths_jsonl import read_jsonl
from hydraplan.files.lengths_npy import NPY_MAGIC, read_npy
from hydraplan.files.lengths_parquet import PARQUET_MAGIC, read_parquet
from hydraplan.files.lengths_text import read_text
from hydraplan.files.megatron_idx import MAGIC, Unit, read_lengths_only
from hydraplan.model import IntArray

Kind = Literal["parquet", "arrow", "idx", "npy", "jsonl", "text"]

SUFFIXES: dict[str, Kind] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".idx": "idx",
    ".npy": "npy",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
"""Kind of a file by its suffix; any other is told by its first bytes."""

_FIRST_BYTES: dict[bytes, Kind] = {
    PARQUET_MAGIC: "parquet",
    STREAM_MAGIC: "arrow",
    FILE_MAGIC: "arrow",
    NPY_MAGIC: "npy",
    MAGIC: "idx",
    b"{": "jsonl",
    b"\xef\xbb\xbf{": "jsonl",
}

_READERS: dict[Kind, Callable[[Path], IntArray]] = {
    "parquet": read_parquet,
    "arrow": read_arrow,
    "npy": read_npy,
    "jsonl": read_jsonl,
    "text": read_text,
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of every row of a file, shape (num_sequences,), at least one row, none negative.

    `source` tells where drawn lengths come from; empty for those of a file.
    """

    name: str
    unit: Unit
    length_tokens: IntArray
    source: str = ""


def read_lengths(path: Path, unit: Unit = "sequences", tokenizer: Path | None = None) -> Lengths:
    """Read the lengths a file holds.

    Args:
        unit: "documents" sums the sequences of each document of an `.idx`.
        tokenizer: A `tokenizer.json` that counts the texts or messages of a JSONL.

    Raises:
        InputError: The file is absent, empty or damaged, or a row is not a count of tokens.
    """
    kind = _kind(path)
    refuse_unknown(str(path), kind, unit, tokenizer)
    try:
        if kind == "idx":
            length_tokens = read_lengths_only(path, unit)
        elif tokenizer is not None:
            length_tokens = read_jsonl(path, tokenizer)
        else:
            length_tokens = _READERS[kind](path)
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


def refuse_unknown(name: str, kind: str, unit: Unit, tokenizer: Path | None) -> None:
    """Refuse documents of what is no `.idx`, and a tokenizer for what is no JSONL."""
    if unit == "documents" and kind != "idx":
        raise InputError(
            f"{name} knows no documents, --unit documents needs a Megatron .idx",
            "leave --unit out",
        )
    if tokenizer is not None and kind != "jsonl":
        raise InputError(
            f"{name} is read by its lengths or ids, --tokenizer is for texts of JSONL",
            "leave --tokenizer out",
        )


def digest(length_tokens: IntArray) -> str:
    """SHA-256 of the lengths as little-endian int64, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(length_tokens, "<i8").data).hexdigest()


def _kind(path: Path) -> Kind:
    if not path.exists():
        raise InputError(
            f"length file {path} does not exist", "check the path, or try 'synthetic:chat-long'"
        )
    if not path.is_file():
        raise InputError(f"length file {path} is not a regular file", "give one file")
    if path.suffix in SUFFIXES:
        return SUFFIXES[path.suffix]
    try:
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    found = [kind for first, kind in _FIRST_BYTES.items() if head.startswith(first)]
    return found[0] if found else "text"
