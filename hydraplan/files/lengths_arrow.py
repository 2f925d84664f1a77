"""Sequence lengths from Arrow: stream files, as Hugging Face `datasets` saves them, and IPC files.

The file is mapped and of a list only the offsets are touched, so token ids are never read. A
folder that `save_to_disk` wrote names its files in `state.json`. A stream has to end with its end
mark: a shard that was cut between two batches looks whole otherwise.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from hydraplan.errors import InputError, first_line, printable
from hydraplan.files.lengths_batches import columns_to_read, count_rows
from hydraplan.files.parquet import DAMAGED
from hydraplan.model import IntArray

STREAM_MAGIC = b"\xff\xff\xff\xff"
FILE_MAGIC = b"ARROW1"
STATE = "state.json"
SPLITS = "dataset_dict.json"
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def read_arrow(path: Path) -> IntArray:
    """Tokens of every sequence, in the order of the file.

    Raises:
        InputError: The file is damaged, has no column of lengths, or a row is no length.
    """
    size = path.stat().st_size
    if size == 0:
        raise InputError(f"{path} is empty")
    at = 0
    try:
        with pa.memory_map(str(path)) as source:
            if source.read(len(FILE_MAGIC)) == FILE_MAGIC:
                file = pa.ipc.open_file(source)
                names = columns_to_read(path, file.schema)
                every = (file.get_batch(i) for i in range(file.num_record_batches))
                return count_rows(path, (batch.select(names) for batch in every), names)
            source.seek(max(size - len(_END), 0))
            if source.read() != _END:
                raise InputError(
                    f"{path} ends at byte {size} without the end mark of an Arrow stream",
                    "the file was cut, or its writer did not close it",
                )
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            names = columns_to_read(path, stream.schema)

            def batches() -> Iterator[pa.RecordBatch]:
                nonlocal at
                for batch in stream:
                    yield batch.select(names)
                    at = source.tell()

            counted = count_rows(path, batches(), names)
            if (at := source.tell()) != size:
                raise InputError(f"{path}: the Arrow stream ends at byte {at} of {size}")
            return counted
    except DAMAGED as error:
        raise InputError(
            f"{path} is not Arrow with lengths: at or after byte {at}: {first_line(error)}"
        ) from None


def saved_files(folder: Path) -> list[Path]:
    """The Arrow files of a folder that `save_to_disk` wrote, in the order of their rows.

    Raises:
        InputError: `state.json` is damaged or names what is not in the folder, or the folder
            holds several splits.
    """
    if (folder / SPLITS).is_file():
        splits = sorted(path.parent.name for path in folder.glob(f"*/{STATE}"))
        raise InputError(
            f"folder {folder} is a dataset of several splits:"
            f" {printable(', '.join(splits)) or 'none is there'}",
            f"name one, as {folder / splits[0]}" if splits else "check the folder",
        )
    state = folder / STATE
    try:
        found = json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{state} is not JSON: {first_line(error)}") from None
    files = found.get("_data_files") if isinstance(found, dict) else None
    if not isinstance(files, list) or not files:
        raise InputError(f"{state} names no _data_files", "save the dataset with save_to_disk")
    paths = []
    for file in files:
        name = file.get("filename") if isinstance(file, dict) else None
        if not isinstance(name, str) or "\0" in name or Path(name).name != name:
            raise InputError(f"{state}: {json.dumps(file)[:80]} names no file of the folder")
        paths.append(folder / name)
    return paths
