"""What the ranks of a run sent: `traffic.parquet`, a row per step, stage and lane, in bytes.

Counted where it is sent, beside what the formulas of `hydraplan.traffic` give for the same batch;
nothing is counted in a simulated run. Gradients count as a ring all-reduce sends them.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from hydraplan.errors import InputError
from hydraplan.files.parquet import column
from hydraplan.model import IntArray

KINDS = ("message_bytes", "group_bytes", "grad_sync_bytes")
"""Messages between stages, exchanges of context-parallel groups, the sum of gradients."""

TRAFFIC_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64(), nullable=False) for name in ("step", "stage", "lane")),
        *(pa.field(name, pa.int64()) for name in KINDS),
        *(pa.field(f"predicted_{name}", pa.int64(), nullable=False) for name in KINDS),
    ]
)


class Traffic(NamedTuple):
    """Bytes each rank sent, shape (3, stages, lanes) in the order of `KINDS`.

    Over several steps (steps, 3, stages, lanes). `measured` is None where nothing was.
    """

    measured: IntArray | None
    predicted: IntArray


def traffic_table(step: int, traffic: Traffic) -> pa.Table:
    """Rows of one step, ascending by stage and lane."""
    stage, lane = np.indices(traffic.predicted.shape[1:]).reshape(2, -1)
    columns = {"step": np.full(len(stage), step), "stage": stage, "lane": lane}
    for kind, name in enumerate(KINDS):
        columns[f"predicted_{name}"] = traffic.predicted[kind].ravel()
        if traffic.measured is not None:
            columns[name] = traffic.measured[kind].ravel()
    nothing = pa.nulls(len(stage), pa.int64())
    return pa.table(
        {name: columns.get(name, nothing) for name in TRAFFIC_SCHEMA.names}, schema=TRAFFIC_SCHEMA
    )


def traffic_of(table: pa.Table, steps: int, pp: int, ranks: int, name: str) -> Traffic:
    """What the rows say of the first `steps` steps, shape (steps, 3, stages, lanes).

    Raises:
        InputError: They are not those of so many steps and ranks; `name` is where they stand.
    """
    shape = (steps, pp, ranks)
    table = table.slice(0, steps * pp * ranks)
    found = [column(table, key) for key in ("step", "stage", "lane")]
    nulls = {table.column(kind).null_count for kind in KINDS}
    is_whole = np.array_equal(found, np.indices(shape).reshape(3, -1)) and len(nulls) == 1
    is_whole &= nulls <= {0, len(table)}
    kinds = [f"predicted_{kind}" for kind in KINDS]
    kinds += [] if nulls != {0} else KINDS
    values = [column(table, kind) for kind in kinds] if is_whole else []
    if not is_whole or any((v < 0).any() for v in values):
        raise InputError(f"{name}: its rows are not those of {steps} steps of {pp} x {ranks} ranks")
    predicted, *measured = np.array(values).reshape(len(kinds) // 3, 3, *shape).swapaxes(1, 2)
    return Traffic(measured[0] if measured else None, predicted)
