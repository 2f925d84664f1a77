"""Op times of a run: `ops.parquet`, a row per step, stage, lane and position.

Of every op three things stand apart: own work (`busy_s`), waiting inside it for members of the
rank's context-parallel groups (`group_wait_s`), and waiting before it for messages between stages
(`transfer_s`). What is left of `waiting_s` is waiting for a core. Beside them stands when the
plan's cost model has the same op run, noise-free, from the start of the step.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import pyarrow as pa

from hydraplan.errors import InputError
from hydraplan.files.parquet import column, open_parquet, read_rows
from hydraplan.model import Op, OpKind, Timeline, Waits

SYNC = "sync"
"""Name of the gradient sync among the ops; its microbatch and chunk are -1."""

PREDICTED = "predicted_"
"""Before the names of the columns that the plan's cost model fills."""

MOST_S = 1e12
"""No step lasts so long; in microseconds still far below what a float holds."""

SECONDS = (
    "start_s",
    "end_s",
    "busy_s",
    "waiting_s",
    "group_wait_s",
    "transfer_s",
    "predicted_start_s",
    "predicted_end_s",
    "predicted_busy_s",
)
OPS_SCHEMA = pa.schema(
    [
        pa.field(name, pa.string() if name == "op" else kind, nullable=False)
        for names, kind in (
            (("step", "stage", "lane", "position", "op", "microbatch", "chunk"), pa.int64()),
            (SECONDS, pa.float64()),
        )
        for name in names
    ]
)


class StepOps(NamedTuple):
    """Op times of a step, what held each op up, and the times its plan predicts."""

    timeline: Timeline
    waits: Waits
    predicted: Timeline


def simulated_waits(timeline: Timeline) -> Waits:
    """Waits of a simulated run: inside an op for its group, before it for what it is handed."""
    group, transfer = [], []
    first_s = min(float(start.min()) for start in timeline.start_s)
    for start, end, busy in zip(timeline.start_s, timeline.end_s, timeline.busy_s, strict=True):
        before = np.vstack([np.full((1, start.shape[1]), first_s), end[:-1]])
        group.append(end - start - busy)
        transfer.append(np.maximum(0.0, start - before))
    return Waits(tuple(group), tuple(transfer))


def ops_table(steps: Sequence[tuple[int, StepOps]]) -> pa.Table:
    """A row per step, stage, position and lane, ascending; the gradient sync comes last."""
    parts = [
        _stage_columns(step, stage, ops)
        for step, ops in steps
        for stage in range(len(ops.timeline.schedule))
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in OPS_SCHEMA.names}
    return pa.table(columns, schema=OPS_SCHEMA)


def _stage_columns(step: int, stage: int, found: StepOps) -> dict[str, Any]:
    ops, lanes = found.timeline.schedule[stage], found.timeline.start_s[stage].shape[1]
    position, lane = np.divmod(np.arange((len(ops) + 1) * lanes), lanes)
    start_s, end_s, busy_s = _with_sync(found.timeline, stage)
    predicted = _with_sync(found.predicted, stage)
    none = np.zeros(lanes)
    return {
        "step": np.full(len(position), step),
        "stage": np.full(len(position), stage),
        "lane": lane,
        "position": position,
        "op": np.array([*(op.kind for op in ops), SYNC])[position],
        "microbatch": np.array([*(op.microbatch for op in ops), -1])[position],
        "chunk": np.array([*(op.chunk for op in ops), -1])[position],
        "start_s": start_s,
        "end_s": end_s,
        "busy_s": busy_s,
        "waiting_s": end_s - start_s - busy_s,
        "group_wait_s": np.append(found.waits.group_s[stage], none),
        "transfer_s": np.append(found.waits.transfer_s[stage], none),
        "predicted_start_s": predicted[0],
        "predicted_end_s": predicted[1],
        "predicted_busy_s": predicted[2],
    }


def _with_sync(timeline: Timeline, stage: int) -> tuple[Any, Any, Any]:
    """Start, end and busy seconds of all rows of a stage; the sync of a lane follows its ops."""
    lane_end_s = timeline.end_s[stage].max(axis=0)
    sync_end_s = np.full(len(lane_end_s), lane_end_s.max() + timeline.grad_sync_s[stage])
    return (
        np.append(timeline.start_s[stage], lane_end_s),
        np.append(timeline.end_s[stage], sync_end_s),
        np.append(timeline.busy_s[stage], np.zeros(len(lane_end_s))),
    )


def read_ops(path: Path, step: int, pp: int, ranks: int) -> StepOps:
    """Op times of one step.

    Raises:
        InputError: The file is damaged, rows of some lane are missing, or they are none of a step.
    """
    table = read_rows(open_parquet(path, OPS_SCHEMA), path)
    return _step_of(table, path, step, pp, ranks)


def each_ops(path: Path, steps: int, pp: int, ranks: int, first: int = 0) -> Iterator[StepOps]:
    """Op times of steps `first` to `steps` - 1, one after the other; errors as `read_ops`."""
    table = read_rows(open_parquet(path, OPS_SCHEMA), path)
    ends = np.searchsorted(column(table, "step"), np.arange(first, steps + 1))
    for step, (start, stop) in enumerate(pairwise(ends.tolist()), first):
        yield _step_of(table.slice(start, stop - start), path, step, pp, ranks)


def _step_of(table: pa.Table, path: Path, step: int, pp: int, ranks: int) -> StepOps:
    table = table.take(pa.array(np.flatnonzero(column(table, "step") == step)))
    kinds = np.array(table.column("op").to_pylist())
    columns = {name: column(table, name) for name in OPS_SCHEMA.names if name != "op"}
    names = [name for name in SECONDS if name != "waiting_s"]
    if not _are_times(columns):
        raise InputError(f"{path}: times of step {step} are not those of ops that ran")
    schedule, times, syncs = [], [], []
    for stage in range(pp):
        here = np.flatnonzero(columns["stage"] == stage)
        here = here[np.lexsort((columns["lane"][here], columns["position"][here]))]
        count = len(here) // ranks
        places = np.indices((count, ranks)).reshape(2, -1)
        found = [columns["position"][here], columns["lane"][here]]
        if count < 2 or not np.array_equal(found, places):
            raise InputError(f"{path}: step {step}, stage {stage} lacks rows of some lane")
        told = [
            (str(kinds[i]), int(columns["microbatch"][i]), int(columns["chunk"][i])) for i in here
        ]
        lists = [told[lane::ranks] for lane in range(ranks)]
        if any(other != lists[0] for other in lists) or not _is_list(lists[0]):
            raise InputError(f"{path}: step {step}, stage {stage} holds ops that no worker runs")
        schedule.append(tuple(Op(cast(OpKind, kind), m, c) for kind, m, c in lists[0][:-1]))
        ops, sync = here[:-ranks], here[-ranks:]
        times.append([columns[name][ops].reshape(-1, ranks) for name in names])
        syncs.append(
            [
                float(columns[f"{of}end_s"][sync].max() - columns[f"{of}start_s"][sync].max())
                for of in ("", PREDICTED)
            ]
        )
    start, end, busy, group, transfer, *then = (
        tuple(stage[i] for stage in times) for i in range(len(names))
    )
    measured_sync, predicted_sync = np.array(syncs).T
    return StepOps(
        Timeline(tuple(schedule), start, end, busy, measured_sync),
        Waits(group, transfer),
        Timeline(tuple(schedule), then[0], then[1], then[2], predicted_sync),
    )


def _are_times(columns: dict[str, Any]) -> bool:
    """Whether all seconds are numbers a run can have, and nothing ends before it starts."""
    rests = ("waiting_s", "group_wait_s")  # differences, which may round below zero
    told = all((np.abs(columns[name]) < MOST_S).all() for name in SECONDS)
    told = told and all((columns[name] >= 0).all() for name in SECONDS if name not in rests)
    spans = ((columns[f"{of}start_s"], columns[f"{of}end_s"]) for of in ("", PREDICTED))
    return told and all((start <= end).all() for start, end in spans)


def _is_list(ops: Sequence[tuple[str, int, int]]) -> bool:
    """Whether these are the ops of a lane, each once, and the gradient sum after them."""
    *before, last = ops
    is_once = len(set(before)) == len(before)
    known = all(kind in get_args(OpKind) and min(m, chunk) >= 0 for kind, m, chunk in before)
    return last == (SYNC, -1, -1) and is_once and known
