"""Lengths and a profile in, a plan out: cut batches, sort out rows, place, order, score."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible, InputError
from hydraplan.files.lengths import Lengths, digest
from hydraplan.files.profilefile import Profile
from hydraplan.layout import MAX_LENGTH_TOKENS
from hydraplan.model import (
    PLACE_COLUMNS,
    UNPLACED,
    BatchPlan,
    IntArray,
    Sequences,
    Status,
)
from hydraplan.planheader import PlanHeader, PlanOptions
from hydraplan.planner.figures import batch_figures, predicted
from hydraplan.planner.pipeline.order import ORDERS
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.placement.cost_table import cost_table, fits, num_levels
from hydraplan.planner.placement.draft import Draft, Request
from hydraplan.planner.placement.strategies import STRATEGIES
from hydraplan.planner.placement.window import microbatch_window
from hydraplan.slots import check_size
from hydraplan.stages import check_tensor_parallel, split_layers
from hydraplan.version import __version__


def plan(
    lengths: Lengths, profile: Profile, options: PlanOptions, num_batches: int | None
) -> tuple[PlanHeader, Iterator[BatchPlan]]:
    """Check the request and return the header and the batches, planned one by one on demand.

    Arguments and errors as `prepare`.
    """
    header, batches = prepare(lengths, profile, options, num_batches)
    cost = header.cost_model()
    return header, (plan_batch(cost, options, i, rows) for i, rows in enumerate(batches))


def prepare(
    lengths: Lengths, profile: Profile, options: PlanOptions, num_batches: int | None
) -> tuple[PlanHeader, list[Sequences]]:
    """Check a request, cut the batches and sort out their rows; nothing is placed yet.

    Args:
        num_batches: How many to plan from the start of the file; None for all it holds.

    Raises:
        InputError: An option is wrong, or some batch has nothing to train on.
        Infeasible: A row that no degree can hold, under `on_overlong="error"`.
    """
    for kind, name, known in (
        ("strategy", options.strategy, STRATEGIES),
        ("pipeline", options.pipeline, SCHEDULES),
        ("microbatch order", options.microbatch_order, (*ORDERS, "auto")),
    ):
        if name not in known:
            raise InputError(f"unknown {kind} {name!r}", f"known: {', '.join(known)}")
    model = profile.header.model
    check_tensor_parallel(model, options.tp, profile.header.fit.devices_per_node)
    layers = tuple(tuple(row) for row in split_layers(model.num_layers, options.pp))
    bounds = cut_batches(lengths.length_tokens, options, num_batches)
    longest = int(lengths.length_tokens.argmax())
    if lengths.length_tokens[longest] > MAX_LENGTH_TOKENS:
        raise InputError(
            f"{lengths.name}: row {longest} has {lengths.length_tokens[longest]} tokens,"
            f" beyond {MAX_LENGTH_TOKENS}"
        )
    header = PlanHeader(
        tool_version=__version__,
        options=options,
        model=model,
        cluster=profile.header.cluster,
        fit=profile.header.fit,
        layers=layers,
        profile_mode=profile.header.mode,
        profile_digest=profile.digest,
        lengths_digest=digest(lengths.length_tokens),
        lengths_name=lengths.name,
        lengths_unit=lengths.unit,
        invariants=STRATEGIES[options.strategy].invariants,
        num_batches=len(bounds),
    )
    cost = header.cost_model()
    return header, [sort_out(cost, lengths.length_tokens, *rows, options) for rows in bounds]


def cut_batches(
    length_tokens: IntArray, options: PlanOptions, num_batches: int | None
) -> list[tuple[int, int]]:
    """First and last-plus-one row of each batch, in file order; the last may be short.

    Under `batch_tokens` a batch ends before the row that would exceed it, and holds at least
    one row.
    """
    total = len(length_tokens)
    bounds: list[tuple[int, int]] = []
    running = np.concatenate([[0], np.cumsum(length_tokens)])
    start = 0
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
            f"the file's {total} rows fill {len(bounds)} batches, --num-batches asks {num_batches}",
            f"use --num-batches {len(bounds)} or all",
        )
    return bounds


def sort_out(
    cost: CostModel, length_tokens: IntArray, start: int, stop: int, options: PlanOptions
) -> Sequences:
    """Rows of one batch with their status; places are still open.

    Raises:
        Infeasible: A row is too long and `on_overlong` is "error".
        InputError: No row is left to train on.
    """
    cap = options.max_tokens_per_rank
    length = length_tokens[start:stop].copy()
    status: list[Status] = ["empty" if n == 0 else "placed" for n in length]
    for i in np.flatnonzero(~fits(cost, length, cap)):
        if options.on_overlong == "error":
            raise _overlong(cost, start + int(i), int(length[i]), cap)
        if options.on_overlong == "truncate":
            length[i] = cap << (num_levels(cost.ranks) - 1)
            status[i] = "truncated"
        else:
            status[i] = "overlong"
    if not any(s in ("placed", "truncated") for s in status):
        raise InputError(
            f"rows {start}..{stop - 1} hold nothing to train on: {status.count('empty')} are"
            f" empty, {status.count('overlong')} too long",
            "check the length file, or take larger batches",
        )
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


def _overlong(cost: CostModel, row: int, length: int, cap: int) -> Infeasible:
    available = 1 << (num_levels(cost.ranks) - 1)
    needed = 1 << max(0, (-(-length // cap) - 1).bit_length())
    enough = -(-length // available)
    while not fits(cost, np.array([length]), enough)[0]:
        enough += 1
    return Infeasible(
        f"sequence {row} of {length} tokens needs degree {needed} under the cap of {cap} tokens"
        f" per rank, {available} is available; the smallest cap that fits is {enough}",
        f"use --max-tokens-per-rank {enough}, more --ranks, or --on-overlong skip|truncate",
    )


def plan_batch(cost: CostModel, options: PlanOptions, batch: int, rows: Sequences) -> BatchPlan:
    """Place one batch by the named strategy and compute its figures."""
    request = open_request(cost, options, rows)
    return finish(request, options, batch, rows, STRATEGIES[options.strategy].place(request))


def open_request(cost: CostModel, options: PlanOptions, rows: Sequences) -> Request:
    """What the strategy is asked: the rows that get a place, and their cost table."""
    open_rows = rows.take(rows.on_ranks())
    order, cap = options.microbatch_order, options.max_tokens_per_rank
    least = -(-int(open_rows.length_tokens.sum()) // (cost.ranks * cap))
    check_size(cost.pp, cost.ranks, options.microbatches or least)
    table = cost_table(cost, open_rows.length_tokens, cap)
    return Request(
        cost=cost,
        table=table,
        sequences=open_rows,
        cap_tokens=cap,
        window=microbatch_window(table, open_rows.length_tokens, cost.ranks, cap),
        microbatches=options.microbatches,
        orders=ORDERS if order == "auto" else (order,),
        schedule=SCHEDULES[options.pipeline],
    )


def finish(
    request: Request, options: PlanOptions, batch: int, rows: Sequences, draft: Draft
) -> BatchPlan:
    """The draft with all rows, its op order, and its figures."""
    ops = request.schedule(request.cost.pp, draft.num_microbatches)
    figures, timeline = batch_figures(
        request.cost,
        draft.sequences,
        draft.num_microbatches,
        ops,
        request.cap_tokens,
        draft.search.load_target_s,
    )
    start, end = predicted(timeline)
    return BatchPlan(
        batch=batch,
        sequences=merged(rows, draft.sequences),
        num_microbatches=draft.num_microbatches,
        schedule=ops,
        strategy=options.strategy,
        winner=draft.winner,
        microbatch_order=draft.microbatch_order,
        pipeline=options.pipeline,
        predicted_start_s=start,
        predicted_end_s=end,
        figures=figures,
        search=draft.search,
    )


def merged(rows: Sequences, placed: Sequences) -> Sequences:
    """All rows again, those on ranks with their place; `placed` keeps the order of `rows`."""
    on = rows.on_ranks()
    columns = {}
    for name in PLACE_COLUMNS:
        column = getattr(rows, name).copy()
        column[on] = getattr(placed, name)
        columns[name] = column
    return replace(rows, **columns)
