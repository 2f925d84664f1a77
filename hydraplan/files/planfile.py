"""Plan folder: sequences, schedule and batches as Parquet, one row group a batch.

Every file carries the same header in its footer, so that a plan can be checked, simulated
and shown without the profile and the lengths it was made from.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hydraplan.errors import InputError, many
from hydraplan.files.parquet import (
    beside,
    column,
    open_parquet,
    read_footer,
    read_rows,
    with_footer,
)
from hydraplan.metrics import FIGURES
from hydraplan.model import ARRAY_COLUMNS, BatchPlan, Op, Search, Sequences
from hydraplan.planheader import PlanHeader
from hydraplan.slots import check_size

if TYPE_CHECKING:
    import pandas as pd


def _required(*fields: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])


_SEARCH_TYPES = dict.fromkeys(
    ("window_min", "window_max", "num_candidates", "num_rejected"), pa.int64()
) | dict.fromkeys(("window_advice", "exact_status", "ops_status", "ops_from"), pa.string())

SEQUENCES_SCHEMA = _required(
    ("batch", pa.int64()),
    *((name, pa.int64()) for name in ("sequence_id", "length_tokens", "valid_tokens")),
    *((name, pa.int64()) for name in ("microbatch", "order", "first_rank", "degree")),
    *((name, pa.int64()) for name in ("ulysses_size", "ring_size", "rank_tokens_max")),
    ("predicted_s", pa.float64()),
    ("status", pa.string()),
)
SCHEDULE_SCHEMA = _required(
    *((name, pa.int64()) for name in ("batch", "stage", "position")),
    ("op", pa.string()),
    *((name, pa.int64()) for name in ("microbatch", "chunk")),
    *((name, pa.float64()) for name in ("predicted_start_s", "predicted_end_s")),
)
BATCHES_SCHEMA = _required(
    *((name, pa.int64()) for name in ("batch", "num_microbatches")),
    *((name, pa.string()) for name in ("strategy", "winner", "microbatch_order", "pipeline")),
    *((name, _SEARCH_TYPES.get(name, pa.float64())) for name in Search.__dataclass_fields__),
    *((name, pa.float64()) for name in FIGURES),
)


class Plan(NamedTuple):
    """An opened plan folder; batches are read one at a time with `read_batch`."""

    path: Path
    header: PlanHeader


class PlanFrames(NamedTuple):
    """A whole plan as pandas tables, for notebooks."""

    header: PlanHeader
    sequences: "pd.DataFrame"
    schedule: "pd.DataFrame"
    batches: "pd.DataFrame"


PLAN_FILES = {
    "sequences.parquet": SEQUENCES_SCHEMA,
    "schedule.parquet": SCHEDULE_SCHEMA,
    "batches.parquet": BATCHES_SCHEMA,
}


def write_plan(path: Path, header: PlanHeader, batches: Iterable[BatchPlan]) -> None:
    """Write a plan folder atomically; batches are consumed one by one."""
    with beside(path) as spare:
        spare.mkdir()
        writers = [
            pq.ParquetWriter(spare / name, with_footer(schema, header))
            for name, schema in PLAN_FILES.items()
        ]
        try:
            for batch in batches:
                tables = (_sequences_table(batch), _schedule_table(batch), _batch_table(batch))
                for writer, table in zip(writers, tables, strict=True):
                    writer.write_table(
                        table.cast(writer.schema), row_group_size=max(1, table.num_rows)
                    )
        finally:
            for writer in writers:
                writer.close()


def open_plan(path: Path) -> Plan:
    """Open a plan folder and check that its three files belong together."""
    if not path.is_dir():
        raise InputError(f"plan {path} is not a folder", "make one: hydraplan plan LENGTHS ...")
    if (path / "steps.parquet").is_file():
        raise InputError(
            f"folder {path} is a run, not a plan",
            f"give the plan that it ran; what the run holds: hydraplan show {path}",
        )
    missing = [name for name in PLAN_FILES if not (path / name).is_file()]
    if missing:
        raise InputError(
            f"folder {path} is no plan: it holds no {missing[0]}",
            "make one: hydraplan plan LENGTHS ...",
        )
    headers = []
    for name, schema in PLAN_FILES.items():
        file = open_parquet(path / name, schema)
        header = read_footer(file, path / name, PlanHeader)
        if file.num_row_groups != header.num_batches:
            raise InputError(
                f"{path / name} holds {file.num_row_groups} row groups,"
                f" its footer says {header.num_batches} batches"
            )
        headers.append(header)
    if any(h != headers[0] for h in headers):
        raise InputError(f"the three files of {path} have different footers")
    return Plan(path, headers[0])


def read_batch(plan: Plan, batch: int) -> BatchPlan:
    """Read one batch: one row group of each file."""
    if not 0 <= batch < plan.header.num_batches:
        raise InputError(f"batch {batch} is not in {plan.path}: 0..{plan.header.num_batches - 1}")
    sequences, schedule, row = (
        _read_group(plan.path / name, schema, batch) for name, schema in PLAN_FILES.items()
    )
    if row.num_rows != 1:
        raise InputError(f"batches.parquet of {plan.path}: batch {batch} has {row.num_rows} rows")
    values = row.to_pylist()[0]
    count, pp = values["num_microbatches"], plan.header.options.pp
    if not 1 <= count <= schedule.num_rows // pp:
        raise InputError(
            f"batches.parquet of {plan.path}: batch {batch} has {many(count, 'microbatch')},"
            f" its schedule {many(schedule.num_rows, 'op')} on {many(pp, 'stage')}"
        )
    check_size(pp, plan.header.options.ranks, count)
    stages = column(schedule, "stage")
    kinds = schedule.column("op").to_pylist()
    microbatch, chunk = column(schedule, "microbatch"), column(schedule, "chunk")
    per_stage = [np.flatnonzero(stages == s) for s in range(pp)]
    for i in np.flatnonzero((stages < 0) | (stages >= pp)):
        raise InputError(
            f"schedule.parquet of {plan.path}: batch {batch}, row {i}: stage {stages[i]}, the plan"
            f" has 0..{pp - 1}",
            _DAMAGED,
        )
    position = column(schedule, "position")
    for stage, rows in enumerate(per_stage):
        for i in np.flatnonzero(position[rows] != np.arange(len(rows))):
            raise InputError(
                f"schedule.parquet of {plan.path}: batch {batch}, stage {stage}: position"
                f" {position[rows[i]]} stands where {i} belongs; they count 0..{len(rows) - 1}",
                _DAMAGED,
            )
    return BatchPlan(
        batch=values["batch"],
        sequences=Sequences(
            **{name: column(sequences, name) for name in ARRAY_COLUMNS},
            status=tuple(sequences.column("status").to_pylist()),
        ),
        num_microbatches=values["num_microbatches"],
        schedule=tuple(
            tuple(Op(kinds[i], int(microbatch[i]), int(chunk[i])) for i in rows)
            for rows in per_stage
        ),
        strategy=values["strategy"],
        winner=values["winner"],
        microbatch_order=values["microbatch_order"],
        pipeline=values["pipeline"],
        predicted_start_s=tuple(column(schedule, "predicted_start_s")[rows] for rows in per_stage),
        predicted_end_s=tuple(column(schedule, "predicted_end_s")[rows] for rows in per_stage),
        figures={name: values[name] for name in FIGURES},
        search=Search(**{name: values[name] for name in Search.__dataclass_fields__}),
    )


_DAMAGED = "its files were changed or damaged after planning; make the plan again"


def load_plan(path: str | Path) -> PlanFrames:
    """Load a whole plan folder as pandas DataFrames."""
    plan = open_plan(Path(path))
    paths = ((plan.path / name, schema) for name, schema in PLAN_FILES.items())
    tables = (read_rows(open_parquet(path, schema), path).to_pandas() for path, schema in paths)
    return PlanFrames(plan.header, *tables)


def _read_group(path: Path, schema: pa.Schema, index: int) -> pa.Table:
    table = read_rows(open_parquet(path, schema), path, index)
    if any(table.column(name).null_count for name in schema.names):
        raise InputError(f"{path}: batch {index} holds empty cells")
    if any(b != index for b in column(table, "batch")):
        raise InputError(f"{path}: row group {index} holds rows of another batch")
    return table


def _sequences_table(plan: BatchPlan) -> pa.Table:
    s = plan.sequences
    columns: dict[str, object] = {"batch": np.full(len(s), plan.batch, np.int64)}
    columns |= {name: getattr(s, name) for name in SEQUENCES_SCHEMA.names[1:]}
    return pa.table(columns)


def _schedule_table(plan: BatchPlan) -> pa.Table:
    ops = [(stage, i, op) for stage, ops in enumerate(plan.schedule) for i, op in enumerate(ops)]
    return pa.table(
        {
            "batch": np.full(len(ops), plan.batch, np.int64),
            "stage": [stage for stage, _, _ in ops],
            "position": [i for _, i, _ in ops],
            "op": [op.kind for _, _, op in ops],
            "microbatch": [op.microbatch for _, _, op in ops],
            "chunk": [op.chunk for _, _, op in ops],
            "predicted_start_s": np.concatenate(plan.predicted_start_s),
            "predicted_end_s": np.concatenate(plan.predicted_end_s),
        }
    )


def _batch_table(plan: BatchPlan) -> pa.Table:
    values: dict[str, object] = {name: getattr(plan, name) for name in BATCHES_SCHEMA.names[:6]}
    values |= {name: getattr(plan.search, name) for name in Search.__dataclass_fields__}
    values |= plan.figures
    return pa.Table.from_pylist([values])
