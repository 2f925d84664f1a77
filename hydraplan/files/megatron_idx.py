"""Megatron indexed dataset: `.idx` says where every sequence lies in `.bin`.

Layout of `.idx`, little-endian, without padding, S sequences, D entries of the document
index (documents + 1):

    0         9   "MMIDIDX" and two zero bytes        34         4S  int32 length, tokens
    9         8   uint64 version, 1                   34 +  4S   8S  int64 offset in .bin, bytes
    17        1   uint8 dtype code                    34 + 12S   8D  int64 document index
    18 / 26   8   uint64 S / uint64 D                 34 + 12S + 8D  S  int8 mode (optional)

Document i holds sequences [d[i], d[i+1]); d starts at 0 and ends at S. `.bin` holds the ids
of all sequences back to back, without a header.

Size, header, lengths and documents are always checked, offsets when they are asked for:
lengths alone need neither them nor the `.bin`. Nothing is written here.

Source: format description in the project's data notes, checked there against Megatron-LM's reader.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hydraplan.errors import InputError
from hydraplan.model import IntArray

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPES: dict[int, str] = {
    1: "u1",
    2: "i1",
    3: "<i2",
    4: "<i4",
    5: "<i8",
    6: "<f8",
    7: "<f4",
    8: "<u2",
}
_HEADER_BYTES = 34

Unit = Literal["sequences", "documents"]


@dataclass(frozen=True, slots=True)
class IndexedDataset:
    """A checked index: S sequences in D - 1 documents.

    `lengths` tokens, shape (S,); `offsets` bytes into `.bin`, shape (S,); `dtype` of an id;
    `documents` first sequence of every document and S at the end, shape (D,).
    """

    lengths: IntArray
    offsets: IntArray
    dtype: "np.dtype[Any]"
    documents: IntArray


def read_index(path: Path) -> IndexedDataset:
    """Read and check a whole `.idx`.

    Raises:
        InputError: Anything in the file contradicts the layout; the byte offset is named.
    """
    raw, dtype, lengths, documents = _read(path)
    start = _HEADER_BYTES + 4 * len(lengths)
    offsets = np.frombuffer(raw, "<i8", len(lengths), start).astype(np.int64)
    right = (np.cumsum(lengths) - lengths) * dtype.itemsize
    wrong = np.flatnonzero(offsets != right)
    if len(wrong):
        i = int(wrong[0])
        raise _damaged(
            path,
            start + 8 * i,
            f"offset of sequence {i} is {offsets[i]}, the lengths before it give {right[i]}",
        )
    return IndexedDataset(lengths, offsets, dtype, documents.astype(np.int64))


def read_lengths_only(path: Path, unit: Unit = "sequences") -> IntArray:
    """Tokens of every sequence or document of an `.idx`, without reading the offsets."""
    _, _, lengths, documents = _read(path)
    return lengths if unit == "sequences" else document_lengths(lengths, documents)


def document_lengths(lengths: IntArray, documents: IntArray) -> IntArray:
    """Tokens of every document, shape (D - 1,); a document without sequences has none."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return np.diff(before[documents])


def check_bin(index: IndexedDataset, bin_path: Path) -> NDArray[Any]:
    """Map the ids of a `.bin` whose size the index explains; shape (tokens,), dtype of an id.

    Raises:
        InputError: The file is absent, of another size, or holds no integers.
    """
    if index.dtype.kind not in "iu":
        raise InputError(f"{bin_path} holds {index.dtype.name}, token ids are integers")
    if not bin_path.is_file():
        raise InputError(
            f"{bin_path} is not a file", "token ids lie in the .bin beside the .idx; give both"
        )
    expected, found = int(index.lengths.sum()) * index.dtype.itemsize, bin_path.stat().st_size
    if found != expected:
        raise InputError(f"{bin_path} has {found} bytes, its index says {expected}")
    if expected == 0:
        return np.empty(0, index.dtype)
    return np.memmap(bin_path, index.dtype, mode="r")


def sequence_tokens(
    tokens: NDArray[Any], index: IndexedDataset, i: int, unit: Unit = "sequences"
) -> IntArray:
    """Token ids of sequence (or document) i from the ids `check_bin` gave, shape (length,)."""
    first, last = (i, i + 1) if unit == "sequences" else index.documents[i : i + 2]
    start = int(index.offsets[first]) // index.dtype.itemsize if first < last else 0
    result: IntArray = tokens[start : start + int(index.lengths[first:last].sum())].astype(np.int64)
    return result


def _read(path: Path) -> tuple[NDArray[np.uint8], "np.dtype[Any]", IntArray, IntArray]:
    """Mapped bytes, dtype, lengths and documents; everything but the offsets is checked."""
    size = path.stat().st_size
    if size == 0:
        raise InputError(f"{path} is empty")
    raw: NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r")
    magic = raw[: len(MAGIC)].tobytes()
    if magic != MAGIC[: len(magic)]:
        raise _damaged(path, 0, f"starts with {magic!r} instead of {MAGIC!r}")
    if size < _HEADER_BYTES:
        raise _truncated(path, size, f"the header alone has {_HEADER_BYTES}")
    version, code, num_sequences, num_entries = struct.unpack(
        "<QBQQ", raw[len(MAGIC) : _HEADER_BYTES].tobytes()
    )
    if version != VERSION:
        raise _damaged(path, 9, f"version is {version}, only {VERSION} is known")
    if code not in DTYPES:
        raise _damaged(path, 17, f"dtype code is {code}, known are 1..{max(DTYPES)}")
    if num_sequences == 0:
        raise _damaged(path, 18, "holds 0 sequences")
    start = _HEADER_BYTES + 12 * num_sequences
    end = start + 8 * num_entries
    named = f"{num_sequences} sequences and {num_entries} document entries need {end}"
    if size < end:
        raise _truncated(path, size, named)
    if size not in (end, end + num_sequences):
        raise _damaged(path, end, f"{size - end} bytes too many: {named}")
    lengths = np.frombuffer(raw, "<i4", num_sequences, _HEADER_BYTES).astype(np.int64)
    if lengths.min() < 0:
        i = int(np.argmax(lengths < 0))
        raise _damaged(path, _HEADER_BYTES + 4 * i, f"length of sequence {i} is {lengths[i]}")
    documents = np.frombuffer(raw, "<i8", num_entries, start)  # not aligned, and not copied
    _check_documents(path, start, documents, num_sequences)
    return raw, np.dtype(DTYPES[code]), lengths, documents


def _check_documents(path: Path, start: int, documents: IntArray, num_sequences: int) -> None:
    if len(documents) < 2:
        raise _damaged(path, 26, f"document index has {len(documents)} entries, at least 2 needed")
    if documents[0] != 0:
        raise _damaged(path, start, f"document index starts with {documents[0]} instead of 0")
    falls = documents[1:] < documents[:-1]
    if falls.any():
        i = int(np.argmax(falls)) + 1
        raise _damaged(
            path,
            start + 8 * i,
            f"entry {i} of the document index falls from {documents[i - 1]} to {documents[i]}",
        )
    if documents[-1] != num_sequences:
        raise _damaged(
            path,
            start + 8 * (len(documents) - 1),
            f"document index ends at {documents[-1]}, not at the {num_sequences} sequences",
        )


def _damaged(path: Path, offset: int, what: str) -> InputError:
    return InputError(f"{path} is not a sound Megatron index: byte {offset}: {what}")


def _truncated(path: Path, size: int, need: str) -> InputError:
    return _damaged(path, size, f"file ends here, {need} bytes")
