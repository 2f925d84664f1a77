"""What the cells of a PyTorch schedule have to add up to, each fault named by row and column.

Every stage lies on one row, as many on each, placed chunk after chunk (`loop`) or down and up again
(`v`). Every stage runs F and then B, or I and then W, of every microbatch, once, behind the
neighbours it has on its own row. A file with communication names, besides, every send behind what
it sends and every receive before what needs it, once each; and two rows name the messages from one
to the other in one order, since PyTorch posts them without tags and the first sent is the first
received. Whether rows wait for each other in a circle is not asked here: a simulation and
`planner.pipeline.pytorch_proof` say so.
"""

from collections.abc import Iterator
from typing import NamedTuple

from hydraplan.errors import InputError, many
from hydraplan.route import RouteName
from hydraplan.slots import MAX_STAGE_MICROBATCHES


class Action(NamedTuple):
    """One action in PyTorch's words: `F`, `I`, `W`, `B`, `SEND_F`, ... of one of its stages."""

    word: str
    stage: int
    microbatch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.word}{'' if self.microbatch is None else self.microbatch}"


Row = tuple[tuple[Action, ...], ...]
"""Cells of a rank; a cell has one action, two that overlap, or none where the rank idles."""

COMPUTE = ("F", "I", "W", "B")


class Shape(NamedTuple):
    """What the numbers in a file imply; `owner`: the row of every stage."""

    route: RouteName
    num_chunks: int
    num_microbatches: int
    owner: list[int]
    has_messages: bool


def check_rows(rows: tuple[Row, ...], name: str) -> Shape:
    """Check all rows of the file `name`.

    Raises:
        InputError: Something is doubled, missing, out of order or out of place.
    """
    shape = _shape(rows, name)
    for number, row in enumerate(rows):
        seen: dict[Action, int] = {}
        for column, cell in enumerate(row):
            where = f"{name}: row {number + 1}, column {column + 1}"
            if not cell and shape.has_messages:
                raise InputError(
                    f"{where}: an empty cell, in a file with communication",
                    "remove it; only compute-only files say when a rank idles",
                )
            for action in cell:
                fault, hint = _fault(action, seen, shape, number)
                if fault:
                    raise InputError(f"{where}: {action} ({_told(action)}) {fault}", hint)
            seen |= dict.fromkeys(cell, column)
        for owed in _owed(shape, number):
            if not any(a in seen for a in owed):
                raise InputError(
                    f"{name}: row {number + 1}, column {len(row) + 1}: the row ends without"
                    f" {_either(owed)} ({_told(owed[0])})",
                    "put it on the row; the file names microbatches up to"
                    f" {shape.num_microbatches - 1}, and all of them pass every stage forward and"
                    " back",
                )
    _check_pairs(rows, shape, name)
    return shape


def _check_pairs(rows: tuple[Row, ...], shape: Shape, name: str) -> None:
    """Refuse a receive that takes another message than it names: the n-th takes the n-th sent."""
    sent: dict[tuple[int, int], list[tuple[Action, int]]] = {}
    received: dict[tuple[int, int], list[tuple[Action, int]]] = {}
    for number, row in enumerate(rows):
        for column, cell in enumerate(row, 1):
            for action in cell:
                if action.word in _PARTNER:
                    other = shape.owner[action.stage + _PARTNER[action.word]]
                    sends = action.word.startswith("SEND")
                    line, pair = (sent, (number, other)) if sends else (received, (other, number))
                    line.setdefault(pair, []).append((action, column))
    for pair, messages in sent.items():
        for (send, at), (receive, column) in zip(messages, received[pair], strict=True):
            if receive != _other_side(send):
                raise InputError(
                    f"{name}: row {pair[1] + 1}, column {column}: {receive} ({_told(receive)})"
                    f" takes what row {pair[0] + 1} sends in column {at}, {send} ({_told(send)})",
                    "messages have no tags, the first sent is the first received: name those"
                    f" from row {pair[0] + 1} to row {pair[1] + 1} in one order on both",
                )


def _shape(rows: tuple[Row, ...], name: str) -> Shape:
    places = [
        (action, f"{name}: row {number}, column {column}")
        for number, row in enumerate(rows, 1)
        for column, cell in enumerate(row, 1)
        for action in cell
    ]
    highest, where = max(places, key=lambda place: place[0].stage)
    last, top = highest.stage, max(action.microbatch or 0 for action, _ in places)
    num_stages = last + 1
    if num_stages % len(rows):
        raise InputError(
            f"{where}: stage {last} makes {many(num_stages, 'stage')}, which {len(rows)} rows do"
            " not share evenly",
            "a row is a rank, and every rank holds as many stages",
        )
    if num_stages * (top + 1) > MAX_STAGE_MICROBATCHES:
        if num_stages <= MAX_STAGE_MICROBATCHES:
            where = max(places, key=lambda place: place[0].microbatch or 0)[1]
        raise InputError(
            f"{where}: {many(num_stages, 'stage')} x {many(top + 1, 'microbatch')} are beyond"
            f" {MAX_STAGE_MICROBATCHES}",
            "check this number; stages and microbatches are counted from 0 up to the highest",
        )
    chunks, down = num_stages // len(rows), list(range(len(rows)))
    turns = chunks == 2 and any(a.stage == len(rows) for cell in rows[-1] for a in cell)
    turns &= len(rows) > 1
    return Shape(
        route="v" if turns else "loop",
        num_chunks=chunks,
        num_microbatches=top + 1,
        owner=down + down[::-1] if turns else down * chunks,
        has_messages=any(action.word not in COMPUTE for action, _ in places),
    )


_WORDS = {
    "F": "forward",
    "I": "input gradient",
    "W": "weight gradient",
    "B": "backward",
    "SEND_F": "activations sent",
    "RECV_F": "activations received",
    "SEND_B": "gradient sent",
    "RECV_B": "gradient received",
}


def _told(action: Action) -> str:
    """An action in words."""
    word, stage, m = action
    if m is None:
        return f"of stage {stage}"
    return f"{_WORDS[word]} of microbatch {m}, stage {stage}"


def _either(actions: tuple[Action, ...]) -> str:
    """Of actions of which one will do; W is only asked for where I stands, so B will not."""
    return str(actions[0]) if actions[0].word == "W" else " or ".join(map(str, actions))


def _fault(action: Action, seen: dict[Action, int], shape: Shape, number: int) -> tuple[str, str]:
    """What is wrong with an action behind those already seen on its row, and a hint; or nothing."""
    word, stage, m = action
    if shape.owner[stage] != number:
        return (
            f"stands on the wrong row, stage {stage} is on row {shape.owner[stage] + 1}",
            "a stage lies on one row; with as many stages on each they go round or turn at the end",
        )
    if word in ("UNSHARD", "RESHARD"):
        return "", ""
    same = {"I": "B", "B": "I"}.get(word, word)
    for other in (action, Action(same, stage, m)):
        if other in seen:
            return f"stands twice, as {other} in column {seen[other] + 1}", "remove one of the two"
    if word in _PARTNER and not _crosses(shape, stage, word):
        return (
            "moves nothing between two rows",
            "remove it: there is no neighbour on that side, or it is on the same row",
        )
    for needed in _needs(action, shape):
        if not any(a in seen for a in needed):
            return (
                f"stands before {_either(needed)} ({_told(needed[0])}), which it needs",
                f"move one of the two, or add what is missing on row {number + 1}",
            )
    return "", ""


_PARTNER = {"SEND_F": 1, "RECV_F": -1, "SEND_B": -1, "RECV_B": 1}
"""Stage on the other side of a message, from this one."""


def _crosses(shape: Shape, stage: int, word: str) -> bool:
    """Whether this message exists: there is such a neighbour, on another row."""
    other = stage + _PARTNER[word]
    return 0 <= other < len(shape.owner) and shape.owner[other] != shape.owner[stage]


def _other_side(send: Action) -> Action:
    """The receive of what is sent."""
    return Action(f"RECV_{send.word[-1]}", send.stage + _PARTNER[send.word], send.microbatch)


def _needs(action: Action, shape: Shape) -> Iterator[tuple[Action, ...]]:
    """What stands before an action on its row; of each tuple one will do."""
    word, stage, m = action
    if word in ("F", "I", "B"):
        receive, neighbour = ("RECV_F", stage - 1) if word == "F" else ("RECV_B", stage + 1)
        if word != "F":
            yield (Action("F", stage, m),)
        if _crosses(shape, stage, receive):
            if shape.has_messages:
                yield (Action(receive, stage, m),)
        elif 0 <= neighbour < len(shape.owner):
            words = ("F",) if word == "F" else ("I", "B")
            yield tuple(Action(w, neighbour, m) for w in words)
    elif word == "W":
        yield (Action("I", stage, m),)
    elif word == "SEND_F":
        yield (Action("F", stage, m),)
    elif word == "SEND_B":
        yield Action("I", stage, m), Action("B", stage, m)
    elif word == "REDUCE_GRAD":
        for each in range(shape.num_microbatches):
            yield Action("W", stage, each), Action("B", stage, each)


def _owed(shape: Shape, number: int) -> Iterator[tuple[Action, ...]]:
    """What a row holds when it ends; of each tuple one will do."""
    for m in range(shape.num_microbatches):
        for stage in (s for s, row in enumerate(shape.owner) if row == number):
            yield (Action("F", stage, m),)
            yield Action("I", stage, m), Action("B", stage, m)
            yield Action("W", stage, m), Action("B", stage, m)
            for word in _PARTNER if shape.has_messages else ():
                if _crosses(shape, stage, word):
                    yield (Action(word, stage, m),)
