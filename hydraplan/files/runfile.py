"""Run folder: steps, op times and decisions as Parquet, kept whole after every step.

A step is appended by writing the file anew beside itself and renaming it, ops before steps,
so that whatever ends a run leaves only finished steps. This costs a rewrite a step, which is
small beside a step. Every footer says what ran: the plan in full, its digest, measured or
simulated, seed and data.
"""

import hashlib
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import PositiveInt

from hydraplan.config import Config
from hydraplan.errors import InputError
from hydraplan.files.parquet import beside, column, open_parquet, read_footer, with_footer
from hydraplan.files.planfile import Plan
from hydraplan.metrics import shares
from hydraplan.model import Op, Timeline
from hydraplan.planheader import PlanHeader

RUN_SCHEMA_VERSION: Final = 1

SHARES = ("busy", "pipeline_bubble", "dp_bubble", "group_wait", "grad_sync")

SYNC = "sync"
"""Name of the gradient sync among the ops; its microbatch and chunk are -1."""


def _required(*fields: tuple[str, pa.DataType]) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name, kind in fields]


STEPS_SCHEMA = pa.schema(
    [
        *_required(*((n, pa.int64()) for n in ("step", "batch", "tokens", "valid_tokens"))),
        pa.field("loss", pa.float64()),
        *_required(*((n, pa.float64()) for n in ("iteration_s", *SHARES))),
    ]
)
OPS_SCHEMA = pa.schema(
    _required(
        *((name, pa.int64()) for name in ("step", "stage", "lane", "position")),
        ("op", pa.string()),
        *((name, pa.int64()) for name in ("microbatch", "chunk")),
        *((name, pa.float64()) for name in ("start_s", "end_s", "busy_s", "waiting_s")),
    )
)
DECISIONS_SCHEMA = pa.schema(
    _required(
        ("step", pa.int64()),
        ("kind", pa.string()),
        ("reason", pa.string()),
        ("predicted_gain_s", pa.float64()),
        ("measured_gain_s", pa.float64()),
        ("change", pa.string()),
    )
)
RUN_FILES = {
    "steps.parquet": STEPS_SCHEMA,
    "ops.parquet": OPS_SCHEMA,
    "decisions.parquet": DECISIONS_SCHEMA,
}


class RunHeader(Config):
    """Footer of the files of a run. `data` is the file ids came from, or "generated"."""

    schema_version: Literal[1] = RUN_SCHEMA_VERSION
    tool_version: str
    mode: Literal["measured", "simulated"]
    device: str
    dtype: str
    plan_name: str
    plan_digest: str
    plan: PlanHeader
    steps: PositiveInt
    seed: int
    learning_rate: float | None
    data: str


class Step(NamedTuple):
    """What a finished step adds to a run; `loss` is None in a simulated one."""

    step: int
    batch: int
    tokens: int
    valid_tokens: int
    loss: float | None
    timeline: Timeline


class Run(NamedTuple):
    """An opened run folder and the rows of its steps."""

    path: Path
    header: RunHeader
    steps: list[dict[str, Any]]


def plan_digest(plan: Plan) -> str:
    """SHA-256 of the three files of a plan folder, in hexadecimal."""
    total = hashlib.sha256()
    for name in ("sequences", "schedule", "batches"):
        total.update(hashlib.sha256((plan.path / f"{name}.parquet").read_bytes()).digest())
    return total.hexdigest()


def create_run(path: Path, header: RunHeader) -> None:
    """Make a run folder without steps, in place of whatever run was there."""
    with beside(path) as spare:
        spare.mkdir()
        for name, schema in RUN_FILES.items():
            pq.write_table(with_footer(schema, header).empty_table(), spare / name)


def append_step(path: Path, step: Step) -> None:
    """Add one finished step to a run folder."""
    figures = shares(step.timeline)
    row = step._asdict() | {name: figures[name] for name in ("iteration_s", *SHARES)}
    del row["timeline"]
    _append(path / "ops.parquet", _ops_table(step))
    _append(path / "steps.parquet", pa.Table.from_pylist([row], schema=STEPS_SCHEMA))


def open_run(path: Path) -> Run:
    """Open a run folder, finished or not."""
    if not path.is_dir():
        raise InputError(f"run {path} is not a folder", "make one: hydraplan execute PLAN -o ...")
    file = open_parquet(path / "steps.parquet", STEPS_SCHEMA)
    header = read_footer(file, path / "steps.parquet", RunHeader)
    return Run(path, header, file.read(use_threads=False).to_pylist())


def read_timeline(run: Run, step: int) -> Timeline:
    """Op times of one step, as the figures take them."""
    path = run.path / "ops.parquet"
    table = open_parquet(path, OPS_SCHEMA).read(use_threads=False)
    rows = np.flatnonzero(column(table, "step") == step)
    if not len(rows):
        raise InputError(f"step {step} is not in {run.path}, it has {len(run.steps)} steps")
    table = table.take(pa.array(rows))
    kinds = np.array(table.column("op").to_pylist())
    columns = {name: column(table, name) for name in OPS_SCHEMA.names if name != "op"}
    schedule, times, syncs = [], [], []
    for stage in range(run.header.plan.options.pp):
        here = columns["stage"] == stage
        ops, sync = np.flatnonzero(here & (kinds != SYNC)), np.flatnonzero(here & (kinds == SYNC))
        shape = (-1, run.header.plan.options.ranks)
        ops = ops[np.lexsort((columns["lane"][ops], columns["position"][ops]))]
        first = ops.reshape(shape)[:, 0]
        schedule.append(
            tuple(
                Op(kinds[i], int(columns["microbatch"][i]), int(columns["chunk"][i])) for i in first
            )
        )
        times.append([columns[n][ops].reshape(shape) for n in ("start_s", "end_s", "busy_s")])
        syncs.append(float(columns["end_s"][sync].max() - columns["start_s"][sync].max()))
    start, end, busy = (tuple(stage[i] for stage in times) for i in range(3))
    return Timeline(tuple(schedule), start, end, busy, np.array(syncs))


def _append(path: Path, rows: pa.Table) -> None:
    file = pq.ParquetFile(path)
    with beside(path) as spare, pq.ParquetWriter(spare, file.schema_arrow) as writer:
        for group in range(file.num_row_groups):
            writer.write_table(file.read_row_group(group, use_threads=False))
        writer.write_table(rows.cast(file.schema_arrow), row_group_size=max(1, rows.num_rows))


def _ops_table(step: Step) -> pa.Table:
    """A row per op, stage, lane and position ascending; the gradient sync comes last."""
    parts = []
    timeline = step.timeline
    for stage, ops in enumerate(timeline.schedule):
        lanes = timeline.start_s[stage].shape[1]
        position, lane = np.divmod(np.arange(len(ops) * lanes), lanes)
        parts.append(
            pa.table(
                {
                    "step": np.full(len(position), step.step),
                    "stage": np.full(len(position), stage),
                    "lane": lane,
                    "position": position,
                    "op": np.array([op.kind for op in ops])[position],
                    "microbatch": np.array([op.microbatch for op in ops])[position],
                    "chunk": np.array([op.chunk for op in ops])[position],
                    "start_s": timeline.start_s[stage].ravel(),
                    "end_s": timeline.end_s[stage].ravel(),
                    "busy_s": timeline.busy_s[stage].ravel(),
                    "waiting_s": (
                        timeline.end_s[stage] - timeline.start_s[stage] - timeline.busy_s[stage]
                    ).ravel(),
                }
            ).cast(OPS_SCHEMA)
        )
        lane_end = timeline.end_s[stage].max(axis=0)
        end = lane_end.max() + timeline.grad_sync_s[stage]
        parts.append(
            pa.table(
                {
                    "step": np.full(lanes, step.step),
                    "stage": np.full(lanes, stage),
                    "lane": np.arange(lanes),
                    "position": np.full(lanes, len(ops)),
                    "op": [SYNC] * lanes,
                    "microbatch": np.full(lanes, -1),
                    "chunk": np.full(lanes, -1),
                    "start_s": lane_end,
                    "end_s": np.full(lanes, end),
                    "busy_s": np.zeros(lanes),
                    "waiting_s": end - lane_end,
                }
            ).cast(OPS_SCHEMA)
        )
    return pa.concat_tables(parts)
