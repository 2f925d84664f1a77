"""Global batches of a length file: where each begins, and which of its rows get a place.

A file is checked whole before anything is planned, in one pass over its lengths; the rows of a
batch are built only when it is asked for, so that memory does not grow with their number.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible, InputError, many
from hydraplan.files.lengths import Lengths
from hydraplan.layout import MAX_LENGTH_TOKENS, legal_degrees
from hydraplan.model import UNPLACED, IntArray, Sequences, Status
from hydraplan.planheader import PlanOptions
from hydraplan.planner.placement.degrees import offered_levels
from hydraplan.planner.placement.sizing import fits


@dataclass(frozen=True, slots=True)
class Batches:
    """Checked batches of a file: first and last-plus-one row of each. `batches[i]` builds one."""

    cost: CostModel
    length_tokens: IntArray
    bounds: list[tuple[int, int]]
    options: PlanOptions

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, index: int) -> Sequences:
        """Rows of one batch with their status; places are still open."""
        start, stop = self.bounds[index]
        length = self.length_tokens[start:stop].copy()
        status: list[Status] = ["empty" if n == 0 else "placed" for n in length]
        cap = self.options.max_tokens_per_rank
        offered = _offered(self.cost, self.options)
        for i in np.flatnonzero(too_long(self.cost, length, cap, offered)):
            if self.options.on_overlong == "truncate":
                length[i] = most_tokens(self.cost, cap, offered)
                status[i] = "truncated"
            else:
                status[i] = "overlong"
        count = len(length)
        nowhere = np.full(count, UNPLACED, np.int64)
        zero = np.zeros(count, np.int64)
        return Sequences(
            sequence_id=np.arange(start, stop, dtype=np.int64),
            length_tokens=length,
            valid_tokens=np.maximum(0, length - 1),
            microbatch=nowhere,
            order=nowhere,
            first_rank=nowhere,
            degree=zero,
            ulysses_size=zero,
            ring_size=zero,
            rank_tokens_max=zero,
            predicted_s=np.zeros(count),
            status=tuple(status),
        )


def open_batches(
    cost: CostModel, lengths: Lengths, options: PlanOptions, bounds: list[tuple[int, int]]
) -> Batches:
    """Refuse, before any batch is planned, what cannot be; `bounds` come from `cut_batches`.

    Raises:
        InputError: A length beyond reason, or a batch with nothing to train on.
        Infeasible: A row that no degree can hold, under `on_overlong="error"`, or a batch of fewer
            sequences than microbatches that were asked for.
    """
    longest = int(lengths.length_tokens.argmax())
    if lengths.length_tokens[longest] > MAX_LENGTH_TOKENS:
        raise InputError(
            f"{lengths.name}: row {longest} has {lengths.length_tokens[longest]} tokens,"
            f" beyond {MAX_LENGTH_TOKENS}"
        )
    length = lengths.length_tokens[: bounds[-1][1]]
    offered = _offered(cost, options)
    overlong = too_long(cost, length, options.max_tokens_per_rank, offered)
    overlong[: bounds[0][0]] = False
    if options.on_overlong == "error" and overlong.any():
        row = int(np.where(overlong, length, 0).argmax())
        raise _overlong(cost, row, int(length[row]), options, offered)
    empty = length == 0
    open_rows = ~empty if options.on_overlong == "truncate" else ~(empty | overlong)
    trained = np.add.reduceat(open_rows, [start for start, _ in bounds], dtype=np.int64)
    if not trained.all():
        start, stop = bounds[int((trained == 0).argmax())]
        raise InputError(
            f"rows {start}..{stop - 1} hold nothing to train on: {empty[start:stop].sum()} are"
            f" empty, {overlong[start:stop].sum()} too long",
            "check the length file, or take larger batches",
        )
    fewest = options.microbatches or options.microbatch_multiple
    if (trained < fewest).any():
        raise _too_few(options, fewest, trained, bounds)
    return Batches(cost, lengths.length_tokens, bounds, options)


def cut_batches(
    length_tokens: IntArray, options: PlanOptions, num_batches: int | None
) -> list[tuple[int, int]]:
    """First and last-plus-one row of each batch, in file order; the last may be short.

    The first begins at `options.first_row`. Under `batch_tokens` a batch ends before the row that
    would exceed it, and holds at least one row.
    """
    total = len(length_tokens)
    bounds: list[tuple[int, int]] = []
    running = np.concatenate([[0], np.cumsum(length_tokens)])
    start = options.first_row
    while start < total and (num_batches is None or len(bounds) < num_batches):
        if options.batch_sequences is not None:
            stop = min(total, start + options.batch_sequences)
        else:
            assert options.batch_tokens is not None
            limit = running[start] + options.batch_tokens
            stop = max(start + 1, int(np.searchsorted(running, limit, side="right")) - 1)
        bounds.append((start, stop))
        start = stop
    if num_batches is not None and len(bounds) < num_batches:
        raise InputError(
            f"the file's {total - options.first_row} rows fill {len(bounds)} batches,"
            f" --num-batches asks {num_batches}",
            f"use --num-batches {len(bounds)} or all",
        )
    return bounds


def too_long(
    cost: CostModel, length_tokens: IntArray, cap_tokens: int, offered: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which rows no offered degree can hold under the cap, (num_rows,); each length asked once."""
    result = length_tokens > cap_tokens if offered[0] else length_tokens > 0
    length, inverse = np.unique(length_tokens[result], return_inverse=True)
    result[result] = ~fits(cost, length, cap_tokens, offered)[inverse]
    return result


def most_tokens(cost: CostModel, cap_tokens: int, offered: NDArray[np.bool_]) -> int:
    """What the largest offered degree holds at the most, in tokens."""
    return cap_tokens * int(legal_degrees(cost.ranks)[offered].max())


def _offered(cost: CostModel, options: PlanOptions) -> NDArray[np.bool_]:
    return offered_levels(cost.ranks, options.min_degree, options.max_groups)


def _overlong(
    cost: CostModel, row: int, length: int, options: PlanOptions, offered: NDArray[np.bool_]
) -> Infeasible:
    cap = options.max_tokens_per_rank
    available = most_tokens(cost, 1, offered)
    needed = 1 << max(0, (-(-length // cap) - 1).bit_length())
    enough = -(-length // available)
    while not fits(cost, np.array([length]), enough, offered)[0]:
        enough += 1
    return Infeasible(
        f"sequence {row} of {length} tokens needs degree {needed} under the cap of {cap} tokens"
        f" per rank, {available} is available; the smallest cap that fits is {enough}",
        "use --recompute selective|full, more --pp or --ranks, or --on-overlong skip|truncate"
        if options.cap_is_derived
        else f"use --max-tokens-per-rank {enough}, more --ranks, or --on-overlong skip|truncate",
    )


def _too_few(
    options: PlanOptions, fewest: int, trained: IntArray, bounds: list[tuple[int, int]]
) -> Infeasible:
    """Some batch has fewer sequences than microbatches; `trained` counts those of each batch."""
    name, most = "--microbatches", int(trained.min())
    if options.microbatches is None:
        name = "--microbatch-multiple"
    index = int((trained < fewest).argmax())
    start, stop = bounds[index]
    only_last = len(bounds) > 1 and index == len(bounds) - 1
    return Infeasible(
        f"batch {index}, rows {start}..{stop - 1}: {name} asks for {fewest} microbatches of at"
        f" least one sequence each, it has {many(int(trained[index]), 'sequence')} to"
        " train on",
        f"use {name} {most} or less, or larger batches"
        + (f", or leave the last batch out with --num-batches {index}" if only_last else ""),
    )
