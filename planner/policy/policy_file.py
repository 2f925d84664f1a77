"""Policies as `.npz`: the arrays of a network and how it was made, nothing that could be run.

`about` is JSON: schema version, names of features and actions, and texts such as the command that
trained it. A file whose features or actions are not those of this version is refused, since its
numbers would mean something else. Same policy, same bytes.
"""

import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hydraplan.errors import InputError, first_line
from hydraplan.files.parquet import beside, seen_to_disk
from hydraplan.planner.policy.episode import NUM_ACTIONS
from hydraplan.planner.policy.features import NAMES
from hydraplan.planner.policy.network import Floats, Policy, Weights

SCHEMA_VERSION = 1
ACTIONS = ("F", "B", "W", "wait", "lightest", "heaviest")
SHIPPED = Path(__file__).parent / "data" / "policy.npz"
"""The policy of this version."""
MOST_BYTES, MOST_WIDTH, MOST_NUMBER = 1 << 24, 1024, 1e6
"""Of each array in a file; of a hidden layer; of any number, so that preferences, sums of products
of three of them, stay finite in single precision."""
NOTHING: Mapping[str, Floats] = MappingProxyType({})
_HINT = "train one with: hydraplan train-policy -o FILE.npz"
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([\w<>|=]{1,20})', 'fortran_order': False,"
    rb" 'shape': \(([0-9, ]{0,60})\), \} *\n",
    re.DOTALL,
)
_DAMAGED = (
    OSError,
    MemoryError,
    ValueError,
    EOFError,
    OverflowError,  # of a place beyond all files
    zipfile.BadZipFile,
    NotImplementedError,  # zipfile raises it at a file whose version or form it does not know
)


def save_policy(policy: Policy, path: Path, more: Mapping[str, Floats] = NOTHING) -> None:
    """Write a policy; a file that stands there is replaced when all is written.

    Args:
        more: Other arrays by name, for `load_with`.

    Raises:
        RunFailed: The disk refuses it.
    """
    about = {
        "schema_version": SCHEMA_VERSION, "features": NAMES, "actions": ACTIONS, **policy.about,
    }  # fmt: skip
    packed = io.BytesIO()
    named = {**policy.weights._asdict(), **more}
    arrays: dict[str, Any] = {name: np.ascontiguousarray(named[name]) for name in named}
    np.savez(packed, about=np.array(json.dumps(about)), **arrays)
    with seen_to_disk(path), beside(path) as spare:
        spare.write_bytes(packed.getvalue())


def load_policy(path: Path = SHIPPED) -> Policy:
    """Read a policy, everything checked.

    Raises:
        InputError: The file is missing, damaged, or of another version or other features.
    """
    return load_with(path, ())[0]


def load_with(path: Path, more: Sequence[str]) -> tuple[Policy, dict[str, Floats]]:
    """As `load_policy`, of a file with other arrays beside, whose shapes the caller checks."""
    if not path.is_file():
        raise InputError(f"policy {path} does not exist", _HINT)
    members = _members(path, {"about", *Weights._fields, *more})
    arrays = {name: _array(path, name, raw) for name, raw in members.items()}
    about = _about(path, arrays.pop("about"))
    weights = Weights(*(arrays[name] for name in Weights._fields))
    first, second = weights.bias_1.size, weights.bias_2.size
    shapes = ((len(NAMES), first), (first,), (first, second), (second,), (second, NUM_ACTIONS),
              (NUM_ACTIONS,), (1,))  # fmt: skip
    for name, array, shape in zip(Weights._fields, weights, shapes, strict=True):
        if array.shape != shape or max(shape) > MOST_WIDTH or not min(shape):
            raise InputError(
                f"policy {path}: {name} has shape {array.shape}, not {shape}, of at most"
                f" {MOST_WIDTH} hidden units",
                _HINT,
            )
    return Policy(weights, about), {name: arrays[name] for name in more}


def _members(path: Path, wanted: set[str]) -> dict[str, bytes]:
    """The files of the archive by name: those, neither compressed nor encrypted."""
    try:
        with zipfile.ZipFile(path) as file:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in file.infolist()}
            if entries.keys() != wanted:
                raise InputError(
                    f"policy {path} holds {_cut(', '.join(sorted(entries))) or 'nothing'}, not"
                    f" {', '.join(sorted(wanted))}",
                    _HINT,
                )
            for name, entry in entries.items():
                if entry.compress_type or entry.flag_bits or entry.file_size > MOST_BYTES:
                    raise InputError(
                        f"policy {path}: {name} is compressed, encrypted or of more than"
                        f" {MOST_BYTES} bytes",
                        _HINT,
                    )
            return {name: file.read(entry) for name, entry in entries.items()}
    except _DAMAGED as error:
        raise InputError(
            f"policy {path} is no .npz of arrays: {first_line(error)}", _HINT
        ) from error


def _array(path: Path, name: str, raw: bytes) -> Any:
    """Numbers of float32, or the text `about`, from a file of the form that we write.

    numpy would take the header for an expression of Python, and fail in as many ways.
    """
    head = _HEADER.match(raw)
    if head is None:
        raise InputError(f"policy {path}: {name} is no .npy of one array by rows", _HINT)
    kind, body = head[1].decode(), raw[head.end() :]
    if name == "about":
        if not kind.startswith("<U"):
            raise InputError(f"policy {path}: about is {kind}, not text", _HINT)
        return body.decode("utf-32-le", "replace")
    if kind != "<f4":
        raise InputError(f"policy {path}: {name} is {kind}, not <f4", _HINT)
    shape = tuple(map(int, head[2].replace(b",", b" ").split()))
    if len(body) != 4 * prod(shape):
        raise InputError(f"policy {path}: {name} of {len(body)} bytes has not shape {shape}", _HINT)
    array = np.frombuffer(body, "<f4").astype(np.float32).reshape(shape)
    if not (np.abs(array) <= MOST_NUMBER).all():
        raise InputError(
            f"policy {path}: {name} has numbers that are not finite, or beyond {MOST_NUMBER:g}",
            _HINT,
        )
    return array


def _about(path: Path, text: str) -> dict[str, str]:
    """How it was made; its version, features and actions are checked and left out."""
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"policy {path}: about is no JSON: {first_line(error)}", _HINT) from error
    if not isinstance(about, dict):
        raise InputError(f"policy {path}: about is {type(about).__name__}, no object", _HINT)
    wanted = {"schema_version": SCHEMA_VERSION, "features": [*NAMES], "actions": [*ACTIONS]}
    for name, value in wanted.items():
        found = about.pop(name, None)
        if found != value:
            raise InputError(
                f"policy {path}: {name} is {_short(found)}, this version takes {_short(value)}",
                _HINT,
            )
    if not all(isinstance(value, str) for value in about.values()):
        raise InputError(f"policy {path}: about holds something other than texts", _HINT)
    return about


def _short(value: object) -> str:
    """A value from a file in a message."""
    return _cut(json.dumps(value))


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
