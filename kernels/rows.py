"""Pick and place rows of packed tensors by the index maps of `packing`.

A map of ascending rows that happens to be one run becomes a view, so the common case copies
nothing. None stands for all rows. A map is copied to the device of the tensor at its first use
and kept there as long as the map lives, since every layer uses it, forward and backward.
"""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hydraplan.kernels.packing import RowMap

_ON_DEVICE: WeakKeyDictionary[RowMap, Tensor] = WeakKeyDictionary()


def take(x: Tensor, rows: RowMap | None) -> Tensor:
    """The rows of `x` named by ascending `rows`, a view where they are one run."""
    if rows is None:
        return x
    run = rows.run
    return x[run] if run else x.index_select(0, index_on(rows, x.device))


def put(x: Tensor, rows: RowMap | None, value: Tensor) -> None:
    """Write `value` to the ascending `rows` of `x`."""
    run = slice(None) if rows is None else rows.run
    if run:
        x[run] = value
    else:
        x.index_copy_(0, index_on(rows, x.device), value)


def add(x: Tensor, rows: RowMap | None, value: Tensor) -> None:
    """Add `value` to the ascending `rows` of `x`."""
    run = slice(None) if rows is None else rows.run
    if run:
        x[run] += value
    else:
        x.index_add_(0, index_on(rows, x.device), value.to(x.dtype))


def permute(x: Tensor, order: RowMap | None) -> Tensor:
    """All rows of `x` in another order."""
    return x if order is None else x.index_select(0, index_on(order, x.device))


def index_on(rows: RowMap | None, device: torch.device) -> Tensor:
    """The rows of a map on a device, side by side in memory; the same tensor at every use."""
    assert rows is not None
    index = _ON_DEVICE.get(rows)
    if index is None or index.device != device:
        _ON_DEVICE[rows] = index = torch.from_numpy(rows.index).contiguous().to(device)
    return index
