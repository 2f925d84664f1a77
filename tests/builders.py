"""Small plans for tests."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hydraplan.layout import rank_tokens_max
from hydraplan.model import Sequences


class Place(NamedTuple):
    """Where one sequence lies; its sequence_id is its place in the list."""

    length: int
    first_rank: int = 0
    ulysses_size: int = 1
    ring_size: int = 1
    microbatch: int = 0


def placed_sequences(places: Sequence[Place]) -> Sequences:
    """Placed sequences in the global order: microbatch, then degree descending, then id."""
    length, first, u, r, microbatch = np.array(places, np.int64).reshape(-1, 5).T
    ids = np.arange(len(places), dtype=np.int64)
    order = np.zeros(len(places), np.int64)
    for m in np.unique(microbatch):
        inside = np.flatnonzero(microbatch == m)
        order[inside[np.argsort(-(u * r)[inside], kind="stable")]] = np.arange(len(inside))
    return Sequences(
        sequence_id=ids,
        length_tokens=length,
        valid_tokens=np.maximum(length - 1, 0),
        microbatch=microbatch,
        order=order,
        first_rank=first,
        degree=u * r,
        ulysses_size=u,
        ring_size=r,
        rank_tokens_max=rank_tokens_max(length, u, r),
        predicted_s=np.zeros(len(places)),
        status=("placed",) * len(places),
    ).placed()
