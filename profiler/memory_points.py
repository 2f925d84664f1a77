"""Memory bandwidth: copies of tensors too large for any cache.

Bytes count both directions, as the cost model counts bytes moved by element-wise work.
"""

from collections.abc import Sequence

import torch

from hydraplan.files.profilefile import Measurement
from hydraplan.profiler.measure import Call, Point

COPY_BYTES = (2**26, 3 * 2**25, 2**27)


def memory_points(device: torch.device) -> list[Point]:
    """One copy a size; the work of these points is their bytes."""
    return [_point(device, size) for size in COPY_BYTES]


def _point(device: torch.device, size: int) -> Point:
    row = Measurement("memory", "send", dtype="uint8", kernel="torch", bytes=2.0 * size)

    def prepare() -> Sequence[Call]:
        source = torch.ones(size, dtype=torch.uint8, device=device)
        target = torch.zeros_like(source)
        return (Call(row, lambda: target.copy_(source)),)

    return Point("memory", row.bytes, prepare)
