"""Sequence lengths from Parquet: a column of counts, of ids, or of boundaries of packs.

Columns are streamed, a few rows at a time and never a whole row group, so memory does not grow
with the file. Parquet keeps where lists end in the pages of their values, and pyarrow reads no page
without its values, so ids are decoded on the way (80 to 130 million a second), and dropped.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hydraplan.errors import InputError, first_line
from hydraplan.files.lengths_batches import columns_to_read, count_rows
from hydraplan.files.lengths_columns import LENGTH_COLUMNS
from hydraplan.files.parquet import DAMAGED
from hydraplan.model import IntArray

PARQUET_MAGIC = b"PAR1"

BUFFER_BYTES = 2**20
ROWS_AT_A_TIME = 2**16
LISTS_AT_A_TIME = 256
"""What is read and held at once. Our choice: larger ones are no faster, and lists may be long."""


def read_parquet(path: Path) -> IntArray:
    """Tokens of every sequence, in the order of the file.

    Raises:
        InputError: The file is damaged, has no column of lengths, or a row is no length.
    """
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty")
    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES) as file:
            names = columns_to_read(path, file.schema_arrow)
            return count_rows(path, _batches(path, file, names), names)
    except DAMAGED as error:
        raise InputError(f"{path} is not Parquet with lengths: {first_line(error)}") from None


def _batches(path: Path, file: pq.ParquetFile, names: list[str]) -> Iterator[pa.RecordBatch]:
    """The columns, a few rows at a time; of the footer pyarrow is asked for nothing but types.

    (What it holds of a column chunk ends the process where it is damaged, in pyarrow 26.)
    """
    at_a_time = ROWS_AT_A_TIME if names[0] in LENGTH_COLUMNS else LISTS_AT_A_TIME
    for index in range(file.num_row_groups):
        try:
            yield from file.iter_batches(at_a_time, [index], names, use_threads=False)
        except DAMAGED as error:
            raise InputError(f"{path}: row group {index} is damaged: {first_line(error)}") from None
