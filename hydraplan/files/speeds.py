"""Speed of every lane: from a table or text with a number a lane, or from what a run measured.

A speed is a factor, 1.0 nominal and 0.5 half as fast. From a run it is found so: every op that
had rows is compared with what the run predicted for it on a nominal rank, moved work included; the
ratio is divided by the middle ratio of the ranks of its stage in that op, so that only differences
between ranks remain; the middle of that over the ops is how much slower a rank is; and a lane
is as slow as its slowest rank, since every sequence passes all of them. A profile by all ranks says
the same of devices that never trained.

Measured is own time, waiting excluded. So a slow link is not seen, nor anything that slows all
ranks of a stage alike. Only the last `LATEST_STEPS` steps count, without the first step of the
run, which warms up, if there are others.

Source: our choice.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hydraplan.errors import InputError, first_line, many
from hydraplan.files.opsfile import StepOps
from hydraplan.files.parquet import DAMAGED
from hydraplan.files.profilefile import is_profile, read_profile
from hydraplan.files.runfile import Run, batch_of, open_run, plan_of, read_step_ops
from hydraplan.model import FloatArray, IntArray, Op
from hydraplan.planheader import MAX_DIGITS, MAX_SPEED, MIN_SPEED
from hydraplan.slots import slot_rows

SPEED_COLUMNS = ("speed", "factor")
LANE_COLUMNS = ("lane", "rank")
LATEST_STEPS = 16
"""Steps of a run that are looked at; devices change over a long one."""

DIGITS = 2
"""Decimals of a speed from a run; a per cent is below what any measurement can tell."""

_PARQUET_MAGIC = b"PAR1"


def read_speeds(path: Path, num_ranks: int, pp: int = 1, tp: int = 1) -> tuple[float, ...]:
    """Speed of every lane from a run folder, a profile by all ranks, or a file in lane order.

    A file is Parquet or CSV with a column `speed` or `factor`, or text with one number a line. If
    there is a column `lane` or `rank` too, it says which lane a row is of, in any order.

    Raises:
        InputError: It cannot be read, holds another count than `num_ranks`, or a speed is no
            number from `MIN_SPEED` to `MAX_SPEED`.
    """
    if path.is_dir():
        if not (path / "steps.parquet").is_file():
            raise InputError(
                f"speeds {str(path)!r}: a folder without steps.parquet is no run",
                "give a run folder, Parquet or CSV with a column speed, or text, one a line",
            )
        return _checked(path, speeds_of_run(open_run(path)), num_ranks)
    if not path.is_file():
        raise InputError(
            f"speeds {path} are neither a file nor a run folder",
            "give Parquet or CSV with a column speed, text with one number a line, or a run",
        )
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    is_parquet = path.suffix == ".parquet" or raw.startswith(_PARQUET_MAGIC)
    if is_parquet and is_profile(path):
        return _checked(path, speeds_of_profile(path, num_ranks, pp, tp), num_ranks)
    return _checked(path, _parquet(path) if is_parquet else _text(path, raw), num_ranks)


def speeds_of_profile(path: Path, num_ranks: int, pp: int, tp: int) -> list[float]:
    """Speed of every lane of a profile by all ranks: that of its slowest device.

    Devices are numbered as torchrun numbers ranks, through ranks, lanes and stages
    (`hydraplan.topology`).
    """
    devices = read_profile(path).header.devices
    if not devices:
        raise InputError(
            f"{path} was made by one device and tells none apart",
            "profile under torchrun, on all devices that will train",
        )
    if len(devices) != pp * num_ranks * tp:
        raise InputError(
            f"{path} was made by {many(len(devices), 'device')}, pp {pp} x ranks {num_ranks} x tp"
            f" {tp} are {pp * num_ranks * tp}",
            "profile on all devices that will train",
        )
    factor = np.array([device.factor for device in devices]).reshape(pp, num_ranks, tp)
    speeds = 1 / factor.max(axis=(0, 2))
    return [round(float(speed), DIGITS) for speed in speeds]


def _checked(path: Path, speeds: list[float], num_ranks: int) -> tuple[float, ...]:
    for lane, speed in enumerate(speeds):
        if not MIN_SPEED <= speed <= MAX_SPEED:
            raise InputError(
                f"{path}: lane {lane} has speed {speed:g}, not from {MIN_SPEED:g} to {MAX_SPEED:g}",
                "1.0 is nominal, 0.5 half as fast",
            )
    if len(speeds) != num_ranks:
        raise InputError(
            f"{path} holds {many(len(speeds), 'speed')}, --ranks is {num_ranks}",
            "give one for every lane",
        )
    return tuple(speeds)


def _parquet(path: Path) -> list[float]:
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            speed, lane = _speed_column(path, names), _lane_column(path, names)
            for name, is_of_kind, what in (
                (speed, _is_real, "speeds are numbers"),
                (lane, pa.types.is_integer, "lanes are whole numbers"),
            ):
                kind = file.schema_arrow.field(name).type if name else None
                if kind is not None and not is_of_kind(kind):
                    raise InputError(f"{path}: column {name} holds {kind}, {what}")
            columns = file.read([name for name in (speed, lane) if name])
    except DAMAGED as error:
        raise InputError(f"{path} is not readable Parquet: {first_line(error)}") from None
    for name in columns.column_names:
        if columns.column(name).null_count:
            raise InputError(f"{path}: column {name} holds empty cells")
    speeds = [float(value) for value in columns.column(speed).to_pylist()]
    return _in_lane_order(path, columns.column(lane).to_pylist(), speeds) if lane else speeds


def _is_real(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _text(path: Path, raw: bytes) -> list[float]:
    """Numbers of a CSV if the first line names a column, else of text, one a line."""
    try:
        lines = raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason})") from None
    if not lines:
        raise InputError(f"{path} is empty")
    lane = None
    try:
        float(lines[0])
    except ValueError:
        header, *rows = _cells(path, lines)
        names = [name.strip() for name in header]
        lane, speed, first = _lane_column(path, names), _speed_column(path, names), 2
    else:
        names, rows, speed, first = ["speed"], [[line] for line in lines], "speed", 1
    lanes, speeds = [], []
    for number, row in enumerate(rows, first):
        cells = dict(zip(names, (cell.strip() for cell in row), strict=False))
        text = cells.get(speed, "")
        try:
            speeds.append(float(text))
        except ValueError:
            raise InputError(f"{path}: line {number} has no speed: {text[:40]!a}") from None
        if lane:
            text = cells.get(lane, "")
            if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
                raise InputError(f"{path}: line {number} has no {lane}: {text[:40]!a}")
            lanes.append(int(text))
    return _in_lane_order(path, lanes, speeds) if lane else speeds


def _in_lane_order(path: Path, lanes: list[int], speeds: list[float]) -> list[float]:
    """Speeds of rows that say which lane they are of; every lane from 0 on must stand once."""
    by_lane = dict(zip(lanes, speeds, strict=True))
    if len(by_lane) < len(lanes):
        twice = Counter(lanes).most_common(1)[0][0]
        raise InputError(f"{path}: lane {twice} stands twice", "give one speed for every lane")
    missing = next((lane for lane in range(len(lanes)) if lane not in by_lane), None)
    if missing is not None:
        raise InputError(
            f"{path}: {len(lanes)} rows, none of them is of lane {missing}",
            f"lanes count from 0 to {len(lanes) - 1}",
        )
    return [by_lane[lane] for lane in range(len(lanes))]


def _cells(path: Path, lines: list[str]) -> list[list[str]]:
    try:
        return list(csv.reader(lines))
    except csv.Error as error:
        raise InputError(f"{path} is not CSV: {error}") from None


def _speed_column(path: Path, names: list[str]) -> str:
    found = [name for name in names if name in SPEED_COLUMNS]
    if len(found) != 1:
        shown = ascii(", ".join(names)[:80])
        raise InputError(
            f"{path} needs one column speed or factor, its first line or schema names {shown}",
            "or give text with one number a line, in lane order",
        )
    return found[0]


def _lane_column(path: Path, names: list[str]) -> str | None:
    found = [name for name in names if name in LANE_COLUMNS]
    if len(found) > 1:
        raise InputError(
            f"{path} is ambiguous: each of the columns {', '.join(found)} could be the lane",
            "keep one of them",
        )
    return found[0] if found else None


def speeds_of_run(run: Run) -> list[float]:
    """Speed of every lane as a run measured it, one where its ranks are as fast as the middle.

    Raises:
        InputError: The run has no step, its plan is not at hand, or a lane never had rows.
    """
    if not run.steps:
        raise InputError(f"run {run.path} has no finished step", "let it finish one")
    plan = plan_of(run)
    cost = plan.header.cost_model()
    first = 1 if len(run.steps) > 1 else 0
    ratios: list[list[FloatArray]] = [[] for _ in range(cost.pp)]
    for step in range(max(first, len(run.steps) - LATEST_STEPS), len(run.steps)):
        batch = batch_of(run, plan, step)
        rows = slot_rows(batch.sequences.placed(), cost.ranks, batch.num_microbatches)
        ops = read_step_ops(run, step)
        if any(
            _passes(ran) != _passes(planned)
            for ran, planned in zip(ops.timeline.schedule, batch.schedule, strict=True)
        ):
            raise InputError(f"run {run.path}: step {step} did not run the ops of its plan")
        for stage in range(cost.pp):
            ratios[stage].append(_slowness(ops, rows, cost.slow, stage))
    slow = np.stack([_middle(run, np.concatenate(stage)) for stage in ratios]).max(axis=0)
    return [round(1 / float(factor), DIGITS) for factor in slow]


def _passes(ops: Sequence[Op]) -> list[tuple[str, int, int]]:
    """What ops come to, whether B and W run in one go or apart."""
    return sorted((kind, op.microbatch, op.chunk) for op in ops for kind in op.kind)


def _slowness(ops: StepOps, rows: IntArray, slow: FloatArray, stage: int) -> FloatArray:
    """Measured over predicted over the middle lane, (ops, lanes); NaN where a slot has no rows.

    `slow`: what the plan knows of the lanes already.
    """
    found = []
    both = zip(ops.timeline.busy_s[stage], ops.predicted.busy_s[stage], strict=True)
    for op, (busy_s, planned_s) in zip(ops.timeline.schedule[stage], both, strict=True):
        used = (rows[:, op.microbatch] > 0) & (planned_s > 0)
        ratio = np.where(used, busy_s, np.nan) / np.where(used, planned_s / slow, 1.0)
        if used.any() and (middle := np.nanmedian(ratio)) > 0:
            found.append(ratio / middle)
    return np.array(found).reshape(-1, len(rows))


def _middle(run: Run, ratios: FloatArray) -> FloatArray:
    """Median over the ops of every lane, shape (lanes,)."""
    unknown = np.flatnonzero(~np.isfinite(ratios).any(axis=0))
    if len(unknown):
        raise InputError(
            f"run {run.path} tells nothing of lane {unknown[0]}: no measured op of it had rows"
        )
    result: FloatArray = np.nanmedian(ratios, axis=0)
    if not (result > 0).all():
        raise InputError(f"run {run.path} measured no time of its own on some lane")
    return result
