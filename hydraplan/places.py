"""Where the sequences of a batch go: four numbers each, from which the rest of a placement follows.

So a batch that is placed anew while a run goes on can be told to all workers, kept in
`decisions.parquet` and repeated. Which places are worth it is decided in `planner`; the rows that
are trained on are those of the plan.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hydraplan.errors import InputError
from hydraplan.layout import MAX_RANKS, rank_tokens_max
from hydraplan.model import BatchPlan, IntArray, Sequences

MOST = 2**31 - 1
"""Largest number of a place."""


class Places(NamedTuple):
    """Of every sequence on ranks, `sequence_id` ascending: microbatch, first rank, u and r."""

    microbatch: tuple[int, ...]
    first_rank: tuple[int, ...]
    ulysses_size: tuple[int, ...]
    ring_size: tuple[int, ...]

    @property
    def total(self) -> int:
        """How many sequences have a place."""
        return len(self.microbatch)

    @property
    def num_microbatches(self) -> int:
        """Microbatches; the last of them holds a sequence, as all do."""
        return 1 + max(self.microbatch, default=-1)

    def on_lane(self, lane: int) -> int:
        """Sequences that a lane holds, whole or in part."""
        blocks = zip(self.first_rank, self.ulysses_size, self.ring_size, strict=True)
        return sum(first <= lane < first + u * r for first, u, r in blocks)

    def to_json(self) -> dict[str, list[int]]:
        """Plain lists, a field each."""
        return {name: list(values) for name, values in self._asdict().items()}


def places_of(sequences: Sequences) -> Places:
    """The places of a placed batch."""
    rows = _by_id(sequences)
    return Places(*(tuple(getattr(sequences, name)[rows].tolist()) for name in Places._fields))


def with_places(sequences: Sequences, places: Places) -> Sequences:
    """The same rows at other places; predicted seconds stay those of the plan.

    Raises:
        InputError: There are more places than sequences on ranks, or fewer, or more microbatches.
    """
    rows = _by_id(sequences)
    if len(rows) != places.total:
        raise InputError(f"{places.total} places for {len(rows)} sequences on ranks")
    if places.num_microbatches > len(rows):
        raise InputError(f"{places.num_microbatches} microbatches for {len(rows)} sequences")
    microbatch, first, u, r = (np.array(values, np.int64) for values in places)
    columns = {
        "microbatch": microbatch,
        "first_rank": first,
        "degree": u * r,
        "ulysses_size": u,
        "ring_size": r,
        "rank_tokens_max": rank_tokens_max(sequences.length_tokens[rows], u, r),
    }
    found = {name: getattr(sequences, name).copy() for name in (*columns, "order")}
    for name, values in columns.items():
        found[name][rows] = values
    found["order"][rows] = global_order(sequences.sequence_id[rows], u * r, microbatch)
    return replace(sequences, **found)


def at_places(batch: BatchPlan, places: Places) -> BatchPlan:
    """The batch at other places, its op order still that of the plan. Errors as `with_places`."""
    sequences = with_places(batch.sequences, places)
    return replace(batch, sequences=sequences, num_microbatches=places.num_microbatches)


def global_order(sequence_id: IntArray, degree: IntArray, microbatch: IntArray) -> IntArray:
    """Number of every sequence in the order that all ranks run those of its microbatch.

    Degree descending, then sequence_id: members of aligned groups then arrive together, and
    one order for all ranks keeps their collectives from crossing.
    """
    by = np.lexsort((sequence_id, -degree, microbatch))
    ascending = microbatch[by]
    order = np.empty_like(by)
    order[by] = np.arange(len(by)) - np.searchsorted(ascending, ascending)
    return order


def places_from(found: Any) -> Places:
    """Places from what `to_json` gave, read back from a file; a plan's rules tie them to a batch.

    Raises:
        InputError: It is of another form.
    """
    if not isinstance(found, dict) or tuple(found) != Places._fields:
        raise InputError(f"places are not an object of {', '.join(Places._fields)}")
    for name, values in found.items():
        if not isinstance(values, list):
            raise InputError(f"places: {name} is no list")
        least, most = (1, MAX_RANKS) if name.endswith("_size") else (0, MOST)
        for value in values:
            if type(value) is not int or not least <= value <= most:
                raise InputError(f"places: {name} holds {value!r:.20}, no number {least} to {most}")
    if any(len(a) != len(b) for a, b in pairwise(found.values())):
        raise InputError("places: not as many of each")
    return Places(**{name: tuple(values) for name, values in found.items()})


def _by_id(sequences: Sequences) -> IntArray:
    """Indices of the rows on ranks, `sequence_id` ascending."""
    rows = sequences.on_ranks()
    return rows[np.argsort(sequences.sequence_id[rows], kind="stable")]
