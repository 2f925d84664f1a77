"""Op times as a Chrome trace, which chrome://tracing and Perfetto show.

A process a stage, a track a lane, a slice an op with its own duration; a forward and a backward
that run at the same time share one. What one stage sends another is an arrow from the end of the op
that makes it to the start of the op that takes it; lanes without rows in a microbatch send nothing.
Times are whole parts of a microsecond, so that adding a duration to a start is exact and slices
that touch do not overlap.

Source: the trace event format (complete events, flow events with `bp: "e"`).
"""

import json
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from hydraplan.files.parquet import beside
from hydraplan.model import IntArray, Op, Timeline
from hydraplan.route import NOWHERE, Route

Event = dict[str, Any]

MOST_EVENTS = 1 << 20
"""Events of a file. A line has about 150 bytes, so this is some 160 MB: chrome://tracing ends at
256 MB or about as many events, Perfetto's page at the 2 GB that a browser lets it hold at once.
Source: google/perfetto issue 99, golang/go issue 11520, perfetto.dev/docs "large traces"."""

PARTS = 64
"""Parts of a microsecond that times are rounded to; a power of two."""

_CATEGORY = {"F": "forward", "B": "backward", "BW": "backward", "W": "weight"}


def trace_events(
    timeline: Timeline, way: Route, rows: IntArray, lanes: range | None = None
) -> Iterator[Event]:
    """Events of a run, simulated or measured: names of the tracks, slices, then arrows.

    Args:
        rows: Rows of every slot, shape (lanes, microbatches).
        lanes: Lanes to show; None for all.
    """
    ranks = rows.shape[0]
    shown = range(ranks) if lanes is None else lanes
    for stage in range(len(timeline.schedule)):
        yield _named("process_name", f"stage {stage}", stage)
        for lane in shown:
            yield _named("thread_name", f"lane {lane}, rank {stage * ranks + lane}", stage, lane)
    yield from _slices(timeline, way.num_chunks, shown)
    yield from _arrows(timeline, way, rows, shown)


def lane_events(timeline: Timeline, way: Route, rows: IntArray) -> IntArray:
    """How many events `trace_events` has of every lane, shape (lanes,); a stage has one more."""
    slices = sum(not op.joined for ops in timeline.schedule for op in ops)
    synced = sum(bool(_micro(sync) > 0) for sync in timeline.grad_sync_s)
    messages = np.zeros(rows.shape[1], np.int64)
    for *_, microbatch, _ in _crossings(timeline, way):
        messages[microbatch] += 1
    return len(timeline.schedule) + slices + synced + 2 * ((rows > 0) @ messages)


def write_trace(path: Path, events: Iterable[Event], about: dict[str, object]) -> int:
    """Write events one a line, the file whole or not at all; returns their number."""
    number = 0
    with beside(path) as spare, spare.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms",\n"otherData": ' + json.dumps(about))
        file.write(',\n"traceEvents": [')
        for number, event in enumerate(events, 1):
            file.write(("\n" if number == 1 else ",\n") + json.dumps(event, allow_nan=False))
        file.write("\n]}\n")
    return number


def _named(what: str, name: str, stage: int, lane: int = 0) -> Event:
    return {"name": what, "ph": "M", "pid": stage, "tid": lane, "args": {"name": name}}


def _slices(timeline: Timeline, chunks: int, lanes: range) -> Iterator[Event]:
    for stage, ops in enumerate(timeline.schedule):
        start, end = _micro(timeline.start_s[stage]), _micro(timeline.end_s[stage])
        busy = _micro(timeline.busy_s[stage])
        for i, op in enumerate(ops):
            if i and ops[i - 1].joined:
                continue
            both = ops[i : i + 1 + op.joined]
            name = " + ".join(_op_name(o, chunks) for o in both)
            for lane in lanes:
                begin, stop = start[i, lane], end[i, lane]
                own = float(busy[i : i + len(both), lane].sum())
                yield {
                    "name": name,
                    "cat": "joined" if op.joined else _CATEGORY[op.kind],
                    "ph": "X",
                    "pid": stage,
                    "tid": lane,
                    "ts": float(begin),
                    "dur": float(stop - begin),
                    "args": {
                        "microbatch": op.microbatch,
                        "chunk": op.chunk,
                        "busy_us": own,
                        "waiting_us": max(0.0, float(stop - begin) - own),
                    },
                }
        sync = float(_micro(timeline.grad_sync_s[stage]))
        for lane in lanes if sync > 0 else ():
            where = {"pid": stage, "tid": lane, "ts": float(end.max()), "dur": sync}
            yield {"name": "gradient sync", "cat": "sync", "ph": "X", **where}


def _arrows(timeline: Timeline, way: Route, rows: IntArray, lanes: range) -> Iterator[Event]:
    """A start and a finish for every message, of the same id."""
    start, end = ([_micro(t) for t in side] for side in (timeline.start_s, timeline.end_s))
    numbers = count(1)
    for stage, i, to_stage, j, microbatch, forward in _crossings(timeline, way):
        for lane in (r for r in lanes if rows[r, microbatch]):
            leaves = max(float(start[stage][i, lane]), float(end[stage][i, lane]) - 1 / PARTS)
            what = {
                "name": "activation" if forward else "gradient",
                "cat": "message",
                "id": next(numbers),
            }
            yield {**what, "ph": "s", "pid": stage, "tid": lane, "ts": leaves}
            taken = float(start[to_stage][j, lane])
            yield {**what, "ph": "f", "bp": "e", "pid": to_stage, "tid": lane, "ts": taken}


def _crossings(timeline: Timeline, way: Route) -> Iterator[tuple[int, int, int, int, int, bool]]:
    """Messages of a full lane: stage and position of both ops, microbatch, whether forward."""
    place = {
        (stage, op.chunk, op.microbatch, op.kind == "F"): i
        for stage, ops in enumerate(timeline.schedule)
        for i, op in enumerate(ops)
        if op.kind != "W"
    }
    for (stage, chunk, microbatch, forward), i in place.items():
        node = int((way.after if forward else way.before)[stage, chunk])
        to_stage, to_chunk = divmod(node, way.num_chunks)
        j = place.get((to_stage, to_chunk, microbatch, forward))
        if node != NOWHERE and to_stage != stage and j is not None:
            yield stage, i, to_stage, j, microbatch, forward


def _op_name(op: Op, chunks: int) -> str:
    return f"{op.kind}{op.microbatch}" + (f" chunk {op.chunk}" if chunks > 1 else "")


def _micro(seconds: Any) -> Any:
    """Seconds as whole parts of a microsecond, in microseconds."""
    return np.rint(np.asarray(seconds) * (1e6 * PARTS)) / PARTS
