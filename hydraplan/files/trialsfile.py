"""Trials of a simulated run: `trials.parquet`, a row per step, trial and cause.

Every row repeats the iteration of its trial, with noise and without any. What a rank's time went to
is a mean over the ranks; `without_s` is the same trial without that source of noise, null for what
is none. Written whole, once, when all trials have run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hydraplan.config import Config
from hydraplan.errors import InputError
from hydraplan.files.parquet import beside, column, open_parquet, read_rows, with_footer
from hydraplan.model import FloatArray

TRIALS_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("trial", pa.int64(), nullable=False),
        pa.field("iteration_s", pa.float64(), nullable=False),
        pa.field("nominal_s", pa.float64(), nullable=False),
        pa.field("cause", pa.string(), nullable=False),
        pa.field("lost_s", pa.float64(), nullable=False),
        pa.field("without_s", pa.float64()),
    ]
)


CORRECTION = "correction"
"""Cause under which a corrected run holds the same trials as planned; it takes no time itself."""


class Trials(NamedTuple):
    """Trials of a run or of one of its steps; arrays of shape (trials,), seconds.

    Of a run everything is the mean over its steps. `nominal_s`: the iteration without noise.
    `lost_s`: mean over ranks by cause, adding up to `iteration_s`. `without_s`: iteration without
    one source of noise. `step_s`: `iteration_s` of every step of a run, shape (steps, trials); None
    for one of its steps.
    """

    iteration_s: FloatArray
    nominal_s: float
    lost_s: Mapping[str, FloatArray]
    without_s: Mapping[str, FloatArray]
    step_s: FloatArray | None = None


def write_trials(path: Path, header: Config, steps: Sequence[Trials]) -> None:
    """Write the trials of every step to a file, replacing it."""
    parts = [_table(step, trials) for step, trials in enumerate(steps)]
    table = pa.concat_tables(parts).cast(with_footer(TRIALS_SCHEMA, header))
    with beside(path) as spare:
        pq.write_table(table, spare)


def _table(step: int, trials: Trials) -> pa.Table:
    """Rows of a step: all trials of the first cause, then those of the next."""
    count, causes = len(trials.iteration_s), list(trials.lost_s)
    none = np.full(count, np.nan)
    without_s = np.concatenate([trials.without_s.get(cause, none) for cause in causes])
    columns = {
        "step": np.full(count * len(causes), step),
        "trial": np.tile(np.arange(count), len(causes)),
        "iteration_s": np.tile(trials.iteration_s, len(causes)),
        "nominal_s": np.full(count * len(causes), trials.nominal_s),
        "cause": np.repeat(causes, count),
        "lost_s": np.concatenate(list(trials.lost_s.values())),
        "without_s": pa.array(without_s, mask=np.isnan(without_s)),
    }
    return pa.table(columns, schema=TRIALS_SCHEMA)


def read_trials(path: Path, num_trials: int) -> Trials | None:
    """Trials of a run, None where none were written.

    Raises:
        InputError: The file is damaged, or holds rows that no run leaves.
    """
    if not path.is_file():
        return None
    table = read_rows(open_parquet(path, TRIALS_SCHEMA), path)
    if not table.num_rows:
        return None
    causes = list(dict.fromkeys(table.column("cause").to_pylist()))
    shape = (-1, len(causes), num_trials)
    values = {name: column(table, name) for name in ("step", "trial", "iteration_s", "nominal_s")}
    without_s = table.column("without_s").to_numpy()
    lost_s = column(table, "lost_s")
    wanted = np.tile(np.arange(num_trials), max(1, len(lost_s) // num_trials))
    finite = np.isfinite([values["iteration_s"].sum(), values["nominal_s"].sum(), lost_s.sum()])
    if not np.array_equal(values["trial"], wanted) or len(wanted) % len(causes) or not finite.all():
        raise InputError(f"{path}: its rows are not those of {num_trials} trials of every step")
    by_cause = lost_s.reshape(shape).mean(axis=0)
    left_out = without_s.reshape(shape).mean(axis=0)
    step_s = values["iteration_s"].reshape(shape)[:, 0]
    return Trials(
        iteration_s=step_s.mean(axis=0),
        nominal_s=float(values["nominal_s"].reshape(shape)[:, 0].mean()),
        lost_s=dict(zip(causes, by_cause, strict=True)),
        without_s={
            name: row for name, row in zip(causes, left_out, strict=True) if np.isfinite(row).all()
        },
        step_s=step_s,
    )
