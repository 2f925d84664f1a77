"""Pick the heads of every peer out of whole tensors, and put what peers send back together.

What an inner group exchanges lies in one flat buffer, a peer after the other; in a peer's part
the heads of all tensors lie side by side, row after row. The two functions are each other's
transpose. Only copies and sums, no communication.

T rows, H heads of a whole tensor, D head_dim.
"""

from collections.abc import Sequence

from torch import Tensor

from hydraplan.heads import Heads
from hydraplan.kernels.merge import accumulator_dtype


def head_counts(heads: Sequence[Sequence[Heads]]) -> list[int]:
    """Heads that each peer holds, of all tensors together; `heads[tensor][peer]`."""
    return [sum(map(len, held)) for held in zip(*heads, strict=True)]


def gather_heads(parts_THD: Sequence[Tensor], heads: Sequence[Sequence[Heads]]) -> Tensor:
    """The flat buffer of tensors (T, H, D), each head as often as peers hold it."""
    rows, _, width = parts_THD[0].shape
    flat = parts_THD[0].new_empty(rows * sum(head_counts(heads)) * width)
    for peer, places in enumerate(_places(flat, rows, width, heads)):
        for place_THD, part_THD, held in zip(places, parts_THD, heads, strict=True):
            place_THD.copy_(part_THD[:, _columns(held[peer])])
    return flat


def scatter_heads(
    flat: Tensor, rows: int, width: int, heads: Sequence[Sequence[Heads]], num_heads: Sequence[int]
) -> list[Tensor]:
    """Whole tensors (T, H, D) of a flat buffer, `num_heads` heads each.

    What several peers hold of one head is summed, in the accumulator type.
    """
    pieces = zip(*_places(flat, rows, width, heads), strict=True)
    return [_join(*whole) for whole in zip(pieces, heads, num_heads, strict=True)]


def _join(pieces_THD: Sequence[Tensor], heads: Sequence[Heads], num_heads: int) -> Tensor:
    narrow, (rows, _, width) = pieces_THD[0].dtype, pieces_THD[0].shape
    if sum(map(len, heads)) == num_heads:
        whole_THD = pieces_THD[0].new_empty((rows, num_heads, width))
        for piece_THD, held in zip(pieces_THD, heads, strict=True):
            whole_THD[:, _columns(held)] = piece_THD
        return whole_THD
    sum_THD = pieces_THD[0].new_zeros((rows, num_heads, width), dtype=accumulator_dtype(narrow))
    for piece_THD, held in zip(pieces_THD, heads, strict=True):
        sum_THD[:, _columns(held)] += piece_THD
    return sum_THD.to(narrow)


def _places(
    flat: Tensor, rows: int, width: int, heads: Sequence[Sequence[Heads]]
) -> list[tuple[Tensor, ...]]:
    """Views of the buffer, `[peer][tensor]`, each (rows, heads of the peer, width)."""
    counts = head_counts(heads)
    slots = flat.split([rows * n * width for n in counts])
    return [
        slot.view(rows, n, width).split([len(held[peer]) for held in heads], dim=1)
        for peer, (slot, n) in enumerate(zip(slots, counts, strict=True))
    ]


def _columns(heads: Heads) -> slice | list[int]:
    """An index of these heads: a view where they are one range."""
    if not heads:
        return slice(0, 0)
    first, last = heads[0], heads[-1]
    return slice(first, last + 1) if last - first + 1 == len(heads) else list(heads)
