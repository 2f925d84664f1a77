"""What the ranks of a run held at most: `memory.parquet`, a row per step, stage and lane.

Beside what was measured stands what the plan predicts for the same ops; nothing is measured in a
simulated run.
"""

from typing import NamedTuple

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
    ]
)

ROUNDING = 1e-9
"""Share by which sums of shares of tokens may round."""


class Peaks(NamedTuple):
    """Most tokens whose activations each rank held at once, shape (..., stages, lanes).

    `measured` is None where nothing was.
    """

    measured: FloatArray | None
    predicted: FloatArray

    def differ(self) -> list[tuple[int, ...]]:
        """Index of every rank that held something else than predicted."""
        if self.measured is None:
            return []
        same = np.isclose(self.measured, self.predicted, rtol=ROUNDING, atol=0)
        return [tuple(index) for index in np.argwhere(~same).tolist()]


def memory_table(step: int, peaks: Peaks) -> pa.Table:
    """Rows of one step, ascending by stage and lane; `peaks` of shape (stages, lanes)."""
    stage, lane = np.indices(peaks.predicted.shape).reshape(2, -1)
    measured = peaks.measured
    columns = {
        "step": np.full(len(stage), step),
        "stage": stage,
        "lane": lane,
        "peak_live_tokens": pa.nulls(len(stage), pa.float64())
        if measured is None
        else measured.ravel(),
        "predicted_peak_live_tokens": peaks.predicted.ravel(),
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
    predicted = column(table, "predicted_peak_live_tokens")
    measured = table.column("peak_live_tokens")
    wanted = np.indices(shape).reshape(3, -1)
    is_whole = np.array_equal(found, wanted) and measured.null_count in (0, len(measured))
    values = [predicted] if measured.null_count else [predicted, column(table, "peak_live_tokens")]
    if not is_whole or not all(np.isfinite(v).all() and (v >= 0).all() for v in values):
        raise InputError(f"{name}: its rows are not those of {steps} steps of {pp} x {ranks} ranks")
    held = None if measured.null_count else values[1].reshape(shape)
    return Peaks(held, predicted.reshape(shape))
