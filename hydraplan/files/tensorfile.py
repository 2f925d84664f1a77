"""Named arrays in one file, as safetensors has it: the length of a JSON header, the header, bytes.

Nothing in it can run when it is read. A file is written to the disk before its writer returns its
digest, and what is read is checked whole: the digest, the header, and that the arrays fill the
rest of the file without holes. It knows float64 and float32, what weights and moments are kept in.

Source: the format is that of https://huggingface.co/docs/safetensors, so other tools read the
files; the checks are ours.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from hydraplan.config import Config, validation_text
from hydraplan.errors import InputError

SUFFIX = ".safetensors"
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 1 << 27
"""Far beyond the header of any model."""

TYPES: dict[str, np.dtype[Any]] = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4")}
_ALIGNMENT = 8
Size = Annotated[int, Field(ge=0, le=1 << 48)]
Array = NDArray[np.floating[Any]]


class _Entry(Config):
    """What the header says of an array; `data_offsets` count from the end of the header."""

    dtype: Literal["F64", "F32"]
    shape: tuple[Size, ...]
    data_offsets: tuple[Size, Size]


_HEADER = TypeAdapter(dict[str, _Entry])


def write_tensors(path: Path, arrays: Mapping[str, Array]) -> str:
    """Write arrays in the order given and see them to the disk; the file's SHA-256."""
    names = {kind: name for name, kind in TYPES.items()}
    header, start = {}, 0
    for name, array in arrays.items():
        end = start + array.nbytes
        kind = names[array.dtype.newbyteorder("<")]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": (start, end)}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    total = hashlib.sha256()
    with path.open("xb") as file:
        parts = (a.astype(a.dtype.newbyteorder("<")).tobytes() for a in arrays.values())
        for part in (len(text).to_bytes(LENGTH_BYTES, "little"), text, *parts):
            total.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return total.hexdigest()


def tensor_names(path: Path) -> list[str]:
    """Names of the arrays of a file, from its header alone."""
    return list(_header(path)[0])


def read_tensors(path: Path, sha256: str) -> dict[str, Array]:
    """All arrays of a file.

    Raises:
        InputError: It is not the file whose digest is `sha256`, or no file of this kind.
    """
    entries, start = _header(path)
    raw = path.read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != sha256:
        raise InputError(
            f"{path} is damaged: its digest is {found[:16]}, {sha256[:16]} was written", DAMAGED
        )
    return {
        name: np.frombuffer(raw[start + begin : start + end], TYPES[e.dtype]).reshape(e.shape)
        for name, e in entries.items()
        for begin, end in [e.data_offsets]
    }


DAMAGED = "its checkpoint cannot be used; remove that folder to go on from the one before it"


def _header(path: Path) -> tuple[dict[str, _Entry], int]:
    """What a file says it holds, and where the arrays begin; refused unless it is just that."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if length > min(MAX_HEADER_BYTES, size - LENGTH_BYTES):
                raise InputError(
                    f"{path} is damaged: a header of {length} bytes in {size}", DAMAGED
                )
            text = file.read(length)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", DAMAGED) from None
    try:
        entries = _HEADER.validate_json(text)
    except ValidationError as error:
        raise InputError(f"header of {path}: {validation_text(error)}", DAMAGED) from None
    end = 0
    for name, entry in entries.items():
        begin, stop = entry.data_offsets
        held = prod(entry.shape) * TYPES[entry.dtype].itemsize
        if begin != end or stop - begin != held:
            raise InputError(
                f"{path}: {name!a} lies at {begin}..{stop}, {held} bytes from {end} on are its own",
                DAMAGED,
            )
        end = stop
    if LENGTH_BYTES + length + end != size:
        raise InputError(
            f"{path} has {size} bytes, its header tells of {LENGTH_BYTES + length + end}", DAMAGED
        )
    return entries, LENGTH_BYTES + length
