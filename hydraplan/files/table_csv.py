"""Rows of a plan or a run as CSV: sequences of batches, or steps.

Columns are those of the Parquet files, spelt and ordered as there; no number is empty. A plan is
written a batch at a time, so memory does not grow with batches.
"""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc

from hydraplan.files.parquet import beside, open_parquet, read_rows
from hydraplan.files.planfile import SEQUENCES_SCHEMA, Plan
from hydraplan.files.runfile import STEPS_SCHEMA, Run


def write_sequences(output: Path, plan: Plan, batch: int | None) -> int:
    """Sequences of all batches, or of one; the number of rows written."""
    path = plan.path / "sequences.parquet"
    file = open_parquet(path, SEQUENCES_SCHEMA)
    groups = range(file.num_row_groups) if batch is None else [batch]
    return _write(output, SEQUENCES_SCHEMA, (read_rows(file, path, group) for group in groups))


def write_steps(output: Path, run: Run) -> int:
    """Finished steps of a run; the number of rows written."""
    return _write(output, STEPS_SCHEMA, [pa.Table.from_pylist(run.steps, schema=STEPS_SCHEMA)])


def _write(output: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    count = 0
    with beside(output) as spare, pc.CSVWriter(spare, schema) as writer:
        for table in tables:
            writer.write_table(table.replace_schema_metadata(None))
            count += table.num_rows
    return count
