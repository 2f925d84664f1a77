"""Sequence lengths from NumPy `.npy`: integers in one dimension.

The header is matched, never evaluated, so arrays of objects (pickles) cannot be opened.
"""

import re
from pathlib import Path

import numpy as np

from hydraplan.errors import InputError
from hydraplan.files.lengths_columns import MAX_TOTAL_TOKENS
from hydraplan.model import IntArray

NPY_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    rb"\{'descr': '([<>|][iu][1248])', 'fortran_order': (?:True|False),"
    rb" 'shape': \(([0-9]{1,18}),\), ?\}\s*"
)


def read_npy(path: Path) -> IntArray:
    """The numbers of an array of shape (rows,).

    Raises:
        InputError: The file is damaged, or holds anything else.
    """
    raw = path.read_bytes()
    size_bytes = 2 if raw[6:8] == b"\x01\x00" else 4  # format 1.0, or later ones
    start = len(NPY_MAGIC) + 2 + size_bytes
    end = start + int.from_bytes(raw[start - size_bytes : start], "little")
    if not raw.startswith(NPY_MAGIC) or len(raw) < end:
        raise InputError(
            f"{path} is not .npy, or ends in its header (byte {len(raw)})",
            "save an array of shape (rows,) and an integer type with numpy.save",
        )
    header = _HEADER.fullmatch(raw[start:end])
    if header is None:
        raise InputError(
            f"{path} holds no integers in one dimension: {ascii(raw[start:end].strip()[:80])[1:]}",
            "save an array of shape (rows,) and an integer type",
        )
    dtype, rows = np.dtype(header[1].decode()), int(header[2])
    if len(raw) - end != rows * dtype.itemsize:
        raise InputError(
            f"{path} promises {rows} {dtype}, {len(raw) - end} bytes follow byte {end}"
        )
    values = np.frombuffer(raw, dtype, offset=end)
    if rows and values.max() > MAX_TOTAL_TOKENS:
        row = int(np.argmax(values > MAX_TOTAL_TOKENS))
        raise InputError(f"{path}: row {row} is beyond {MAX_TOTAL_TOKENS}: {values[row]}")
    return values.astype(np.int64)
