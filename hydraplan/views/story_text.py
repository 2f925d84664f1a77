"""What changed while a run went on, as a story: who was slow since when, what was done and bought.

One paragraph an event, from `decisions.parquet` and the iterations of the steps. What a change
bought is told over all steps that ran it: each is compared with what its batch was expected to take
without (`measured_gain_s` and the iteration of the decision's own step).
"""

from collections.abc import Iterator, Sequence
from shlex import quote
from textwrap import wrap
from typing import Any, NamedTuple

from hydraplan.errors import many
from hydraplan.files.decisionsfile import Decided
from hydraplan.files.runfile import Run
from hydraplan.places import Places
from hydraplan.planheader import PlanOptions
from hydraplan.views import console

FORMS = {
    "shares": "attention heads of {} shared unevenly",
    "rows": "MLP rows of {} given away",
    "heads": "attention heads of {} given away",
}
"""What moved, by the form of the move, and of how many."""

RAN = {
    "place": "with sequences placed anew",
    "reorder": "with another op order",
    "migrate": "with work moved",
    "undo": "as planned again",
    "leave": "as planned, no change would gain enough",
}
"""What a step ran, by each part of the kind of its decision."""

NAMED_LANES = 4
"""More lanes than these are counted, not named."""

LEAST_PLANNING_S = 1e-2
"""Deciding that took less is not told."""


class Event(NamedTuple):
    """Decisions of one event, and the steps from its first to the last before the next."""

    rows: tuple[Decided, ...]
    first: int
    last: int


def events(run: Run) -> list[Event]:
    """All events of a run, in order."""
    found: list[Event] = []
    numbers = sorted({row.event for row in run.decisions})
    for number in numbers:
        rows = tuple(row for row in run.decisions if row.event == number)
        later = [row.step for row in run.decisions if row.event > number]
        found.append(Event(rows, rows[0].step, min(later, default=len(run.steps)) - 1))
    return found


def story_json(run: Run) -> dict[str, Any]:
    """Counts of decisions by what they changed, the ranks that were slow, and every decision."""
    rows = run.decisions
    return {
        "corrections": sum(row.change.schedule is not None for row in rows),
        "migrations": sum(bool(row.change.moves) for row in rows),
        "placements": sum(row.change.places is not None for row in rows),
        "slow_devices": slow_devices(run),
        "decisions": [
            {
                "step": row.step,
                "batch": row.batch,
                "event": row.event,
                "kind": row.kind,
                "reason": row.reason,
                "moves": row.change.moves.total,
                "predicted_gain_s": row.predicted_gain_s,
                "measured_gain_s": row.measured_gain_s,
                "planning_s": row.planning_s,
            }
            for row in rows
        ],
    }


def slow_devices(run: Run) -> list[dict[str, Any]]:
    """Ranks that were told slower than planned: since when, and the last factor.

    `until` is the step from which decisions no longer take it for slow, None to the end.
    """
    found: list[dict[str, Any]] = []
    now: dict[tuple[int, int], dict[str, Any]] = {}
    for event in events(run):
        slow = {(r.stage, r.lane): r for r in event.rows[0].slow if r.factor > 1}
        for rank in now.keys() - slow.keys():
            now.pop(rank)["until"] = event.first
        for rank, told in slow.items():
            if rank not in now:
                now[rank] = {"stage": rank[0], "lane": rank[1], "since": told.since}
                found.append(now[rank])
            now[rank] |= {"factor": round(told.factor, 3), "until": None}
    return found


def decision_note(row: Decided, before: Decided | None) -> str:
    """What a step that is done ran, and why unless `before` was decided for the same reason."""
    is_same = before is not None and before.event == row.event
    why = "for the same reason" if is_same else row.reason
    ran = ", ".join(RAN[part] for part in row.kind.split("+"))
    return f"step {row.step + 1} ran {ran}: {why}"


def print_story(run: Run) -> None:
    """Tell the events of a run that could change something."""
    header = run.header
    if header.replays is not None:
        asked = "decisions repeated from another run"
    elif header.correction != "none" or header.migration:
        asked = f"correction {header.correction}, migration {'on' if header.migration else 'off'}"
    else:
        return
    trials = run.header.trials
    asked += f"; of the first of {trials} trials, each decides for itself" if trials > 1 else ""
    console.emit(f"\nWhat changed while it ran: {asked}")
    told = events(run)
    if not told:
        nobody = "no rank was found slow" if header.replays is None else "that run decided nothing"
        console.emit(f"nothing: in {many(len(run.steps), 'step')} {nobody}")
    for number, event in enumerate(told, 1):
        _print_event(run, number, event)
    if hint := rank_speed_hint(run):
        console.emit(hint)


def _print_event(run: Run, number: int, event: Event) -> None:
    row = event.rows[0]
    when = f"step {event.first}"
    if event.last > event.first:
        when = f"steps {event.first} to {event.last}"
    told = f"{when}: {row.reason}. Done: {_done(event.rows)}."
    if row.kind == "undo" or any(each.change for each in event.rows):
        told += f" {_bought(run, event)}"
    if (planning_s := sum(each.planning_s for each in event.rows)) >= LEAST_PLANNING_S:
        told += f" Deciding took {planning_s:.2g} s between steps."
    head = f"{number}. "
    lines = wrap(told, console.cells(0), initial_indent=head, subsequent_indent=" " * len(head))
    console.draw(lines)


def _done(rows: Sequence[Decided]) -> str:
    """What was changed, over all batches of an event."""
    kind = rows[0].kind
    if not any(row.change for row in rows):
        if kind == "undo":
            return "all batches as planned again"
        return "nothing, " + (
            "no change would gain enough" if rows[0].slow else "all is as planned"
        )
    parts = []
    if placed := [row.change.places for row in rows if row.change.places is not None]:
        slow = {rank.lane for rank in rows[0].slow if rank.factor > 1}
        parts.append(f"sequences of {many(len(placed), 'batch')} placed anew{_held(placed, slow)}")
    if orders := sum(row.change.schedule is not None for row in rows):
        parts.append(f"op order of {many(orders, 'batch')} changed")
    for form, text in FORMS.items():
        moves = [move for row in rows for move in getattr(row.change.moves, form)]
        if moves:
            what = many(len(moves), "group" if form == "shares" else "slot")
            parts.append(text.format(what))
            if form != "shares":
                givers, takers = ({getattr(m, end) for m in moves} for end in ("giver", "taker"))
                parts[-1] += f" by {_lanes(givers)} to {_lanes(takers)}"
    return ", ".join(parts)


def _held(placed: Sequence[Places], slow: set[int]) -> str:
    """How many of the sequences are on each slow lane, if these are few."""
    if not 0 < len(slow) <= NAMED_LANES:
        return ""
    total = sum(places.total for places in placed)
    found = {lane: sum(places.on_lane(lane) for places in placed) for lane in sorted(slow)}
    told = [f"{f'{n} of {total}' if n else 'none'} on lane {lane}" for lane, n in found.items()]
    return f" ({', '.join(told)})"


def _lanes(numbers: set[int]) -> str:
    """Lanes by number, or how many there are."""
    if len(numbers) > NAMED_LANES:
        return many(len(numbers), "lane")
    return f"lane{'s' if len(numbers) > 1 else ''} {', '.join(map(str, sorted(numbers)))}"


def _bought(run: Run, event: Event) -> str:
    """What it was predicted to gain, and what it gained in the steps that ran it."""
    without_s = sum(row.without_s for row in event.rows)
    gain_s = sum(row.predicted_gain_s for row in event.rows)
    share = gain_s / without_s if without_s > 0 else 0.0
    undone = event.rows[0].kind == "undo"
    text = f"{'Against keeping it' if undone else 'Bought'}: predicted {share:.1%} of a step"
    pairs = list(_compared(run, event))
    if not pairs:
        return f"{text}; not {run.header.mode}, no step to compare with."
    expected_s, taken_s = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    each = [_gain(expected, taken) for expected, taken in sorted(pairs, key=_share)]
    spread = f" (single steps {each[-1]} to {each[0]})" if each[0] != each[-1] else ""
    return (
        f"{text}, {run.header.mode} {_gain(expected_s, taken_s)}{spread}: {taken_s:.4g} s a step"
        f" over {many(len(pairs), 'step')}, {expected_s:.4g} s expected without."
    )


def _gain(expected_s: float, taken_s: float) -> str:
    """What was saved of an expected time; no sign where that rounds to nothing."""
    return f"{round(1 - taken_s / expected_s, 3) + 0.0:.1%}"


def _share(pair: tuple[float, float]) -> float:
    """What a step took, as a share of what was expected."""
    return pair[1] / pair[0]


def _compared(run: Run, event: Event) -> Iterator[tuple[float, float]]:
    """Expected and measured iteration of every step whose batch has a measured decision."""
    expected = {
        row.batch: run.steps[row.step]["iteration_s"] + row.measured_gain_s
        for row in event.rows
        if row.measured_gain_s is not None
    }
    for step in range(event.first, event.last + 1):
        if (batch := run.steps[step]["batch"]) in expected:
            yield expected[batch], run.steps[step]["iteration_s"]


def rank_speed_hint(run: Run) -> str:
    """How to plan coming batches for ranks slow at the end; "" where nothing can be placed anew.

    That is where none is slow, a stage has one lane, or decisions were repeated.
    """
    told = events(run)
    slow = [rank for rank in told[-1].rows[0].slow if rank.factor > 1] if told else []
    options = run.header.plan.options
    if not slow or options.ranks < 2 or run.header.replays is not None:
        return ""
    factor = [1.0] * options.ranks
    for rank in slow:
        factor[rank.lane] = max(factor[rank.lane], rank.factor)
    lanes = ", ".join(f"lane {lane} {1 / f:.2f}" for lane, f in enumerate(factor) if f > 1)
    path = run.path if run.path.is_dir() else "RUN"
    rest = "" if run.header.checkpoint_every is None else f" --resume-from {path}"
    decided = [row.without_s - row.predicted_gain_s for row in told[-1].rows]
    now_s = sum(decided) / len(decided)
    return (
        f"Speeds at the end: {lanes}. To place coming batches by them, as if these lanes were slow"
        f" on all stages; worth it if that plan predicts less than the {now_s:.4g} s that are"
        " predicted of this one as it runs by now:\n"
        f"hydraplan plan {quote(run.header.plan.lengths_name)} --profile PROFILE {_asked(options)}"
        f" --rank-speed {path}{rest} -o NEXT.plan"
    )


def _asked(options: PlanOptions) -> str:
    """Options of a plan as they are asked for, those left out that are so by default."""
    asked = []
    for name, field in PlanOptions.model_fields.items():
        value = getattr(options, name)
        if name == "max_tokens_per_rank" and options.cap_is_derived:
            value = "auto"
        is_asked = name not in ("rank_speed", "resumes", "cap_is_derived")
        if is_asked and value is not None and value != field.default:
            asked.append(f"--{name.replace('_', '-')} {value}")
    return " ".join(asked)
