"""What the ranks of a run held at most: `memory.parquet`, a row per step, stage and lane.

Beside what was measured stands what the plan predicts for the same ops; nothing is measured in a
simulated run, and bytes on GPUs alone.
"""

from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa

from hydraplan.errors import InputError
from hydraplan.files.parquet import column
from hydraplan.model import FloatArray

MEMORY_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64(), nullable=False) for name in ("step", "stage", "lane")),
        pa.field("peak_live_tokens", pa.float64()),
        pa.field("predicted_peak_live_tokens", pa.float64(), nullable=False),
        pa.field("peak_bytes", pa.float64()),
        pa.field("predicted_peak_bytes", pa.float64()),
    ]
)

FIGURES = ("peak_live_tokens", "predicted_peak_live_tokens", "peak_bytes", "predicted_peak_bytes")
"""Columns of what `Peaks` holds, in its order."""

ROUNDING = 1e-9
"""Share by which sums of shares of tokens may round."""


class Peaks(NamedTuple):
    """Most tokens whose activations each rank held at once, shape (..., stages, lanes).

    `measured` is None where nothing was. `measured_bytes`: the most that torch's allocator held
    since the run began, None but on GPUs. `predicted_bytes` of the fullest rank of the stage,
    without communicators, which are not torch's (`hydraplan.memory`); None where nobody asked.
    """

    measured: FloatArray | None
    predicted: FloatArray
    measured_bytes: FloatArray | None = None
    predicted_bytes: FloatArray | None = None

    def differ(self) -> list[tuple[int, ...]]:
        """Index of every rank that held something else than predicted."""
        if self.measured is None:
            return []
        same = np.isclose(self.measured, self.predicted, rtol=ROUNDING, atol=0)
        return [tuple(index) for index in np.argwhere(~same).tolist()]


def memory_table(step: int, peaks: Peaks) -> pa.Table:
    """Rows of one step, ascending by stage and lane; `peaks` of shape (stages, lanes)."""
    stage, lane = np.indices(peaks.predicted.shape).reshape(2, -1)
    told = (peaks.measured, peaks.predicted, peaks.measured_bytes, peaks.predicted_bytes)
    columns = {"step": np.full(len(stage), step), "stage": stage, "lane": lane} | {
        name: pa.nulls(len(stage), pa.float64()) if values is None else values.ravel()
        for name, values in zip(FIGURES, told, strict=True)
    }
    return pa.table(columns, schema=MEMORY_SCHEMA)


def peaks_of(table: pa.Table, steps: int, pp: int, ranks: int, name: str) -> Peaks:
    """What the rows say of the first `steps` steps, shape (steps, stages, lanes).

    Raises:
        InputError: They are not those of so many steps and ranks; `name` is where they stand.
    """
    shape = (steps, pp, ranks)
    table = table.slice(0, steps * pp * ranks)
    found = [column(table, key) for key in ("step", "stage", "lane")]
    is_whole = np.array_equal(found, np.indices(shape).reshape(3, -1))
    told = []
    for key in FIGURES:
        missing = table.column(key).null_count
        is_whole &= missing in (0, len(table)) and (key != FIGURES[1] or not missing)
        told.append(None if missing else column(table, key))
    known = [values for values in told if values is not None]
    if not is_whole or not all(np.isfinite(v).all() and (v >= 0).all() for v in known):
        raise InputError(f"{name}: its rows are not those of {steps} steps of {pp} x {ranks} ranks")
    measured, predicted, *of_bytes = (None if v is None else v.reshape(shape) for v in told)
    return Peaks(measured, cast("FloatArray", predicted), *of_bytes)
