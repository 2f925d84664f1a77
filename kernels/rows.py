"""Pick and place rows of packed tensors by the index maps of `packing`.

A map of ascending rows that happens to be one run becomes a view, so the common case copies
nothing. None stands for all rows. Maps are copied to the device of the tensor at each use.
"""

import torch
from torch import Tensor

from hydraplan.model import IntArray


def take(x: Tensor, rows: IntArray | None) -> Tensor:
    """The rows of `x` named by ascending `rows`, a view where they are one run."""
    if rows is None:
        return x
    run = _run(rows)
    return x[run] if run else x.index_select(0, _index(rows, x.device))


def put(x: Tensor, rows: IntArray | None, value: Tensor) -> None:
    """Write `value` to the ascending `rows` of `x`."""
    run = slice(None) if rows is None else _run(rows)
    if run:
        x[run] = value
    else:
        x.index_copy_(0, _index(rows, x.device), value)


def add(x: Tensor, rows: IntArray | None, value: Tensor) -> None:
    """Add `value` to the ascending `rows` of `x`."""
    run = slice(None) if rows is None else _run(rows)
    if run:
        x[run] += value
    else:
        x.index_add_(0, _index(rows, x.device), value.to(x.dtype))


def permute(x: Tensor, order: IntArray | None) -> Tensor:
    """All rows of `x` in another order."""
    return x if order is None else x.index_select(0, _index(order, x.device))


def _run(rows: IntArray) -> slice | None:
    """The slice that ascending `rows` are, if they are one."""
    if len(rows) == 0:
        return slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else None


def _index(rows: IntArray | None, device: torch.device) -> Tensor:
    assert rows is not None
    return torch.from_numpy(rows).to(device)
