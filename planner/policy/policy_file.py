"""Policies as `.npz`: the arrays of a network and how it was made, nothing that could be run.

`about` is JSON: schema version, names of features and actions, and texts such as the command that
trained it. A file whose features or actions are not those of this version is refused, since its
numbers would mean something else. Same policy, same bytes.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydraplan.errors import InputError, first_line
from hydraplan.files.parquet import beside
from hydraplan.planner.policy.episode import NUM_ACTIONS
from hydraplan.planner.policy.features import NAMES
from hydraplan.planner.policy.network import Floats, Policy, Weights

SCHEMA_VERSION = 1
ACTIONS = ("F", "B", "W", "wait", "lightest", "heaviest")
SHIPPED = Path(__file__).parent / "data" / "policy.npz"
"""The policy of this version."""
MOST_BYTES, MOST_WIDTH = 1 << 24, 1024
"""Of a file and of each array in it; of a hidden layer."""
NOTHING: Mapping[str, Floats] = MappingProxyType({})
_HINT = "train one with: hydraplan train-policy -o FILE.npz"
_DAMAGED = (
    OSError,
    MemoryError,
    ValueError,
    KeyError,
    EOFError,
    zipfile.BadZipFile,
    NotImplementedError,  # what zipfile says of a compression that it does not know
)


def save_policy(policy: Policy, path: Path, more: Mapping[str, Floats] = NOTHING) -> None:
    """Write a policy; a file that stands there is replaced when all is written.

    Args:
        more: Other arrays by name, for `load_with`.
    """
    about = {
        "schema_version": SCHEMA_VERSION, "features": NAMES, "actions": ACTIONS, **policy.about,
    }  # fmt: skip
    packed = io.BytesIO()
    arrays: dict[str, Any] = {**policy.weights._asdict(), **more}
    np.savez(packed, about=np.array(json.dumps(about)), **arrays)
    with beside(path) as spare:
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
    arrays = _arrays(path, {"about", *Weights._fields, *more})
    about = _about(path, arrays.pop("about"))
    weights = Weights(*(np.require(arrays[name], requirements="C") for name in Weights._fields))
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


def _arrays(path: Path, wanted: set[str]) -> dict[str, Any]:
    """The arrays by name: finite numbers of float32, `about` as text."""
    try:
        with zipfile.ZipFile(path) as file:
            sizes = {entry.filename.removesuffix(".npy"): entry.file_size for entry in
                     file.infolist()}  # fmt: skip
        if sizes.keys() != wanted or max(sizes.values()) > MOST_BYTES:
            raise InputError(
                f"policy {path} holds {', '.join(sorted(sizes)) or 'nothing'}, not"
                f" {', '.join(sorted(wanted))} of at most {MOST_BYTES} bytes each",
                _HINT,
            )
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in wanted}
    except _DAMAGED as error:
        raise InputError(
            f"policy {path} is no .npz of arrays: {first_line(error)}", _HINT
        ) from error
    for name, array in arrays.items():
        kind = "U" if name == "about" else "f"
        if array.dtype.kind != kind or (kind == "f" and array.dtype != np.float32):
            wanted_type = "text" if kind == "U" else "float32"
            raise InputError(f"policy {path}: {name} is {array.dtype}, not {wanted_type}", _HINT)
        if kind == "f" and not np.isfinite(array).all():
            raise InputError(f"policy {path}: {name} has numbers that are not finite", _HINT)
    return arrays


def _about(path: Path, text: NDArray[np.generic]) -> dict[str, str]:
    """How it was made; its version, features and actions are checked and left out."""
    try:
        about = json.loads(str(text))
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
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"
