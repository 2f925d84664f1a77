"""PyTorch pipelining CSV, in and out: a row a rank, a cell an action of that rank, in order.

PyTorch numbers the chunks of all ranks in the order forward passes them and calls each a stage;
`0F3` is the forward of microbatch 3 through the first, `I` the input gradient, `W` the weight
gradient, `B` both, `(4F1;0B2)OVERLAP_F_B` a forward and a backward at the same time. Compute-only
files may hold empty cells (idle); files with communication name every send and receive. Writing
then reading gives the same, and the same bytes when it is written again. What a whole file has to
hold is checked by `pytorch_rows`; DualPipe has no form here, since its stages hold two models.

Source: the format of PyTorch 2.13 (`_PipelineScheduleRuntime`), which itself reads `0F0junk` as
`0F0` and takes doubled ops; that nothing but the exact grammar is read is our choice.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hydraplan.errors import InputError
from hydraplan.files.parquet import beside
from hydraplan.files.pytorch_rows import Action, Row, check_rows
from hydraplan.model import Op, Schedule
from hydraplan.route import Route, RouteName, route

MOST_BYTES = 1 << 24
"""A larger file is no schedule: the longest legal one has 7 actions, of 6 to 17 characters, a
microbatch and stage (`MAX_STAGE_MICROBATCHES`)."""

MOST_CELLS = 1 << 20
"""Cells that are looked at, a second or two; the longest legal file has half as many actions."""

_NUMBER = r"(0|[1-9][0-9]{0,8})"
_COMPUTE = re.compile(rf"{_NUMBER}([FIWB]){_NUMBER}")
_MESSAGE = re.compile(rf"{_NUMBER}(SEND_F|RECV_F|SEND_B|RECV_B){_NUMBER}")
_WHOLE = re.compile(rf"{_NUMBER}(UNSHARD|RESHARD|REDUCE_GRAD)")
_PAIR = re.compile(r"\(([0-9]+F[0-9]+);([0-9]+[IB][0-9]+)\)OVERLAP_F_B")

_OUR_KIND = {"F": "F", "I": "B", "W": "W", "B": "BW"}
PYTORCH_WORD = {ours: theirs for theirs, ours in _OUR_KIND.items()}
"""PyTorch's word for each of our kinds of ops."""


class PyTorchSchedule(NamedTuple):
    """What a file holds: the op order, the way through the chunks, and every cell as it stands."""

    schedule: Schedule
    route: RouteName
    num_chunks: int
    num_microbatches: int
    rows: tuple[Row, ...]


def read_csv(path: Path) -> PyTorchSchedule:
    """Read and check a file of either kind.

    Raises:
        InputError: It is no such file; the message names row and column, counted from 1.
    """
    return parse(_text(path), str(path))


def parse(text: str, name: str) -> PyTorchSchedule:
    """The schedule in the text of a file; errors as `read_csv`, which name it `name`."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n")
    if (count := 1 + text.count(",") + text.count("\n")) > MOST_CELLS:
        raise InputError(f"{name} has {count:,} cells, beyond {MOST_CELLS:,}", "is it a schedule?")
    lines = text.split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        cells = [
            _cell(text.strip(" "), f"{name}: row {number}, column {column}")
            for column, text in enumerate(line.split(","), 1)
        ]
        if not any(cells):
            raise InputError(f"{name}: row {number}, column 1: the row holds no action", _ROWS)
        rows.append(tuple(cells))
    found = check_rows(tuple(rows), name)
    index = stage_indices(route(found.route, len(rows), found.num_chunks))
    schedule = tuple(tuple(_ops(row, index[s])) for s, row in enumerate(rows))
    return PyTorchSchedule(
        schedule, found.route, found.num_chunks, found.num_microbatches, tuple(rows)
    )


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """Write rows of actions; the file appears whole or not at all."""
    with beside(path) as spare:
        spare.write_text(csv_text(rows), encoding="ascii", newline="")


def csv_text(rows: Iterable[Row]) -> str:
    """The text of a file with these rows."""
    return "".join(",".join(map(_cell_text, row)) + "\n" for row in rows)


def compute_rows(schedule: Schedule, way: Route) -> tuple[Row, ...]:
    """The rows of a compute-only file.

    Raises:
        InputError: The route has no form in this format.
    """
    index = stage_indices(way)
    rows = []
    for stage, ops in enumerate(schedule):
        cells: list[tuple[Action, ...]] = []
        for i, op in enumerate(ops):
            action = Action(PYTORCH_WORD[op.kind], index[stage][op.chunk], op.microbatch)
            if i and ops[i - 1].joined:
                cells[-1] += (action,)
            else:
                cells.append((action,))
        rows.append(tuple(cells))
    return tuple(rows)


def stage_indices(way: Route) -> list[list[int]]:
    """PyTorch's number of every chunk, [stage][chunk]: its place on the way forward."""
    begins, _ = way.ends()
    if len(begins) != 1:
        raise InputError(
            "stages that hold two copies of the model have no form in PyTorch's CSV",
            "export another schedule, or --format chrome",
        )
    num_stages, chunks = way.before.shape
    index = [[0] * chunks for _ in range(num_stages)]
    node = begins[0][0] * chunks + begins[0][1]
    for place in range(num_stages * chunks):
        index[node // chunks][node % chunks] = place
        node = int(way.after.flat[node])
    return index


_ROWS = "a row is a rank: remove blank lines, also at the end"


def _text(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"{path} is not a file", "check the path")
    if path.stat().st_size > MOST_BYTES:
        raise InputError(
            f"{path} has {path.stat().st_size:,} bytes, beyond {MOST_BYTES:,}", "is it a schedule?"
        )
    raw = path.read_bytes()
    if not raw:
        raise InputError(f"{path} is empty", "a row is a rank, a cell an action such as 0F0")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        row = raw.count(b"\n", 0, error.start) + 1
        column = raw.count(b",", raw.rfind(b"\n", 0, error.start) + 1, error.start) + 1
        raise InputError(
            f"{path}: row {row}, column {column}: byte {raw[error.start]:#04x} is not UTF-8",
            "actions are plain ASCII, as 2F0",
        ) from None


def _cell(text: str, where: str) -> tuple[Action, ...]:
    """The actions of one cell: none where it is idle, two where they overlap."""
    if not text:
        return ()
    if pair := _PAIR.fullmatch(text):
        return _cell(pair[1], where) + _cell(pair[2], where)
    if match := _COMPUTE.fullmatch(text) or _MESSAGE.fullmatch(text):
        return (Action(match[2], int(match[1]), int(match[3])),)
    if match := _WHOLE.fullmatch(text):
        return (Action(match[2], int(match[1])),)
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    raise InputError(
        f"{where}: {shown!r} is not an action",
        "an action is a stage, one of F, I, W, B, and a microbatch, as 2F0; nothing may follow",
    )


def _cell_text(actions: tuple[Action, ...]) -> str:
    texts = list(map(str, actions))
    return f"({';'.join(texts)})OVERLAP_F_B" if len(texts) == 2 else "".join(texts)


def _ops(row: Row, indices: list[int]) -> Iterable[Op]:
    for actions in row:
        for action in actions:
            if action.word in _OUR_KIND and action.microbatch is not None:
                joined = len(actions) == 2 and action.word == "F"
                yield Op(
                    _OUR_KIND[action.word],  # type: ignore[arg-type]
                    action.microbatch,
                    indices.index(action.stage),
                    joined,
                )
