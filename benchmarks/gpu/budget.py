"""Parts of a check under one budget of seconds: what ran, what failed, what was left out, by name.

A part yields rows of the table as it finds them and looks at the time it has left before each
item, so that most of them end by themselves. A part has its own share of the budget, and what the
parts before it did not use. What it does not notice, a call that does not return in time, is ended
by an alarm a while later, at the end of the whole budget at the latest; rows told before stay.

A row that says no, a part that raised, and a part that had no time for a single item are failures.
"""

import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import Literal, NamedTuple

Verdict = Literal["ok", "no", "measured", "absent", "left out"]
"""Within its limit or beyond it; a figure without a limit; not on this machine; no time for it."""


GRACE = 1.5
"""When a part is ended, over its share."""


class OutOfTime(BaseException):
    """A part's time is long over. No `Exception`, so that no part takes it for its own fault."""


class Row(NamedTuple):
    """A line of the table: one figure of one part, or why there is none.

    `more`: figures and lists that stand in the JSON file alone.
    """

    part: str
    what: str
    value: float | None = None
    unit: str = ""
    verdict: Verdict = "measured"
    note: str = ""
    more: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Left:
    """Seconds until `end_s` of a clock."""

    end_s: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> "Left":
        """So many seconds from now on."""
        return cls(clock() + seconds, clock)

    def seconds(self) -> float:
        """What is left, never below zero."""
        return max(0.0, self.end_s - self.clock())

    def share(self, share_s: float) -> "Left":
        """At most so many seconds of what is left."""
        return Left(min(self.end_s, self.clock() + share_s), self.clock)


class Part(NamedTuple):
    """A part of the check, its share of the budget in seconds, and what it does."""

    name: str
    share_s: float
    run: Callable[[Left], Iterator[Row]]


def run_parts(parts: Sequence[Part], whole: Left, progress: Callable[[str], None]) -> list[Row]:
    """Rows of all parts, in order; seconds that a part leaves are there for those after it."""
    rows: list[Row] = []
    for i, part in enumerate(parts):
        later_s = sum(other.share_s for other in parts[i + 1 :])
        share_s = max(part.share_s, whole.seconds() - later_s)
        began, known = whole.clock(), len(rows)
        stop_s = min(whole.seconds(), GRACE * share_s)
        try:
            with stopped_after(stop_s):
                rows += run_part(part, whole.share(share_s), rows.append)
        except OutOfTime:
            note = f"it was stopped after {stop_s:.0f} s"
            rows.append(Row(part.name, "what was to come", verdict="left out", note=note))
        if not any(row.value is not None or row.verdict == "no" for row in rows[known:]):
            note = "nothing was measured: " + (rows[-1].note if rows[known:] else "no time")
            rows.append(Row(part.name, "this part", verdict="no", note=note))
        progress(f"{part.name}: {whole.clock() - began:.0f} s, {whole.seconds():.0f} s left")
    return rows


def run_part(part: Part, left: Left, tell: Callable[[Row], None]) -> list[Row]:
    """Hand on the rows of a part as they come; the row of what it raised, if it did."""
    if not left.seconds():
        return [Row(part.name, "this part", verdict="left out", note="no time was left")]
    try:
        for row in part.run(left):
            tell(row)
    # A check has to tell every fault, of whatever kind, and go on with the parts after it.
    except (Exception, SystemExit) as error:
        traceback.print_exc(file=sys.stderr)
        lines = str(error).splitlines() or [""]
        note = f"{type(error).__name__}: {lines[0]}"
        return [Row(part.name, "ended early", verdict="no", note=note)]
    return []


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in what runs inside once so many seconds of the clock are over."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))  # 0 would be never
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def is_failed(rows: Sequence[Row]) -> bool:
    """Whether any row says no."""
    return any(row.verdict == "no" for row in rows)
