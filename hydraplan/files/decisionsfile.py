"""Decisions of a run: `decisions.parquet`, a row per change of what a batch runs.

When what is believed of the devices changes, an event begins: the numbers count them. A row says
what one batch runs from its step on, whenever it comes, until the next event; a batch without a row
in the present event runs as planned. So each event has a row at its first step, whatever it
does, and `in_force` needs no more than the rows to repeat a run.

A change is text: op orders as words a stage, moves and places as `hydraplan.migration` and
`hydraplan.places` have them. Reading
checks that every row is one that a run leaves; whether a change fits its batch is asked where it is
run.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from hydraplan.errors import InputError
from hydraplan.files.parquet import open_parquet, read_rows
from hydraplan.migration import Moves, moves_of
from hydraplan.model import BatchPlan, Op, OpKind, Schedule
from hydraplan.places import Places, at_places, places_from

CHANGES = ("place", "reorder", "migrate")
"""What a decision may do, joined by `+`; `undo` goes back to the plan, `leave` finds nothing to
gain."""

DECISIONS_SCHEMA = pa.schema(
    [
        *(pa.field(n, pa.int64(), nullable=False) for n in ("step", "batch", "event")),
        *(pa.field(n, pa.string(), nullable=False) for n in ("kind", "reason", "slow")),
        *(pa.field(n, pa.float64(), nullable=False) for n in ("without_s", "predicted_gain_s")),
        pa.field("measured_gain_s", pa.float64()),
        pa.field("planning_s", pa.float64(), nullable=False),
        *(pa.field(n, pa.string(), nullable=False) for n in ("change", "digest")),
    ]
)

_WORD = re.compile(r"(BW|F|B|W)(\d{1,9})(?:\.(\d{1,4}))?")


class Slow(NamedTuple):
    """A rank that is believed to take `factor` times as long as planned since a step."""

    stage: int
    lane: int
    since: int
    factor: float


class Change(NamedTuple):
    """What a batch runs otherwise than planned: op orders, moves, places; None for the plan's."""

    schedule: Schedule | None = None
    moves: Moves = Moves()
    places: Places | None = None

    def __bool__(self) -> bool:
        return bool(self.kind)

    @property
    def kind(self) -> str:
        """Of `CHANGES`, all that are done; the empty text where nothing changes."""
        done = (self.places is not None, self.schedule is not None, bool(self.moves))
        return "+".join(name for name, is_done in zip(CHANGES, done, strict=True) if is_done)

    def to_text(self) -> str:
        """JSON, the same bytes for the same change."""
        words = None if self.schedule is None else [_words(stage) for stage in self.schedule]
        places = None if self.places is None else self.places.to_json()
        plain = {"schedule": words, "moves": self.moves.to_json(), "places": places}
        return json.dumps(plain, separators=(",", ":"))


class Decided(NamedTuple):
    """A row: what `batch` runs from `step` on, and why.

    `without_s`: predicted iteration under the believed factors as planned, or for an `undo` with
    what is undone. `measured_gain_s` is that of the first step, None where nothing was there to
    compare with (`hydraplan.executor.correction`). `planning_s`: how long the decision took.
    """

    step: int
    batch: int
    event: int
    kind: str
    reason: str
    slow: tuple[Slow, ...]
    without_s: float
    predicted_gain_s: float
    measured_gain_s: float | None
    planning_s: float
    change: Change


def in_force(decisions: Sequence[Decided], step: int, batch: int) -> Change:
    """What a batch runs in a step, by the decisions up to then, which ascend by step."""
    before = [row for row in decisions if row.step <= step]
    event = before[-1].event if before else 0
    of_batch = [row for row in before if row.event == event and row.batch == batch]
    return of_batch[-1].change if of_batch else Change()


def with_change(batch: BatchPlan, change: Change) -> BatchPlan:
    """The batch at the places and in the op order that are in force.

    Raises:
        InputError: The places are not those of so many sequences.
    """
    if change.places is not None:
        batch = at_places(batch, change.places)
    return batch if change.schedule is None else replace(batch, schedule=change.schedule)


def change_of(text: str) -> Change:
    """The change that `to_text` gave.

    Raises:
        InputError: It is the text of none.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("a change is no JSON") from None
    if not isinstance(found, dict) or set(found) != set(Change._fields):
        raise InputError(f"a change is not an object of {', '.join(Change._fields)}")
    words = found["schedule"]
    if words is not None and not (isinstance(words, list) and all(type(w) is str for w in words)):
        raise InputError("the schedule of a change is no list of texts")
    schedule = None if words is None else tuple(_ops(stage) for stage in words)
    places = None if found["places"] is None else places_from(found["places"])
    return Change(schedule, moves_of(found["moves"]), places)


def change_digest(batch: int, text: str) -> str:
    """SHA-256 of a change and of the batch that it is for."""
    return hashlib.sha256(f"{batch} {text}".encode()).hexdigest()


def decisions_digest(rows: Sequence[Decided]) -> str:
    """SHA-256 of what was changed when; reasons, gains and times are of no matter."""
    told = [(row.step, change_digest(row.batch, row.change.to_text())) for row in rows]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _words(ops: Sequence[Op]) -> str:
    assert not any(op.joined for op in ops)
    return " ".join(f"{op.kind}{op.microbatch}{f'.{op.chunk}' if op.chunk else ''}" for op in ops)


def _ops(words: str) -> tuple[Op, ...]:
    found = []
    for word in words.split(" "):
        match = _WORD.fullmatch(word) if word.isascii() else None
        if match is None:
            raise InputError(f"{word[:20]!a} in the schedule of a change is no op")
        kind, microbatch, chunk = match.groups()
        found.append(Op(cast(OpKind, kind), int(microbatch), int(chunk or 0)))
    return tuple(found)


def decisions_table(rows: Sequence[Decided]) -> pa.Table:
    """The rows as they are kept."""
    plain = []
    for row in rows:
        text = row.change.to_text()
        slow = json.dumps([list(rank) for rank in row.slow], separators=(",", ":"))
        written = {"slow": slow, "change": text, "digest": change_digest(row.batch, text)}
        plain.append(row._asdict() | written)
    return pa.Table.from_pylist(plain, schema=DECISIONS_SCHEMA)


def read_decisions(
    path: Path, *, pp: int, ranks: int, batches: int, steps: int
) -> tuple[Decided, ...]:
    """Decisions of the steps that a run of that size has finished; the file may be ahead of these.

    Raises:
        InputError: The file is absent, damaged, of another schema, or a row is none of a run.
    """
    table = read_rows(open_parquet(path, DECISIONS_SCHEMA), path)
    rows = table.filter(pc.less(table.column("step"), steps)).to_pylist()
    found: list[Decided] = []
    for number, row in enumerate(rows):

        def refuse(why: str, number: int = number) -> InputError:
            return InputError(
                f"{path}: row {number} is no decision of this run: {why}",
                "put back the file that the run wrote",
            )

        try:
            change, slow = change_of(row["change"]), _slow(row["slow"], pp, ranks, row["step"])
        except InputError as error:
            raise refuse(str(error)) from None
        if row["digest"] != change_digest(row["batch"], row["change"]):
            raise refuse("its digest is not that of its change")
        kept = {name: value for name, value in row.items() if name not in ("digest",)}
        made = Decided(**(kept | {"change": change, "slow": slow}))
        _check_row(made, found, batches, refuse)
        found.append(made)
    return tuple(found)


def _check_row(
    row: Decided,
    before: Sequence[Decided],
    batches: int,
    refuse: Callable[[str], InputError],
) -> None:
    """Refuse a row that does not follow those before it, or says two things of its change."""
    last_step, last_event = (before[-1].step, before[-1].event) if before else (-1, 0)
    if row.step <= last_step:
        raise refuse(f"step {row.step} does not follow {last_step}")
    if row.batch != row.step % batches:
        raise refuse(f"step {row.step} runs batch {row.step % batches}, not {row.batch}")
    if not max(1, last_event) <= row.event <= last_event + 1:
        raise refuse(f"event {row.event} does not follow {last_event}")
    if row.kind not in (("undo", "leave") if not row.change else (row.change.kind,)):
        raise refuse(f"kind {row.kind[:40]!a} is not what it changes")
    seconds = (row.without_s, row.predicted_gain_s, row.measured_gain_s or 0.0, row.planning_s)
    if not all(math.isfinite(value) for value in seconds) or min(row.without_s, row.planning_s) < 0:
        raise refuse("a time is negative or not finite")


def _slow(text: str, pp: int, ranks: int, step: int) -> tuple[Slow, ...]:
    try:
        entries: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("slow is no JSON") from None
    if not isinstance(entries, list):
        raise InputError("slow is no list")
    found = []
    for entry in entries:
        if not isinstance(entry, list) or [type(v) for v in entry] != [int, int, int, float]:
            raise InputError("slow holds what is no stage, lane, step and factor")
        rank = Slow(*entry)
        inside = 0 <= rank.stage < pp and 0 <= rank.lane < ranks and 0 <= rank.since < step
        if not inside or not 0 < rank.factor < math.inf:
            raise InputError(f"slow names {entry}")
        found.append(rank)
    if len({rank[:2] for rank in found}) < len(found):
        raise InputError("slow names a rank twice")
    return tuple(found)
