"""Limits that a plan is held to: shares by which a figure may be worse than a baseline, and bounds.

Figures are predicted, so they are exact: the same inputs give the same numbers, and a limit of 0 %
can be kept. Which way is worse is that of `metrics.LOWER_IS_BETTER`.

Pure. Source: ours.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from hydraplan.errors import InputError, printable
from hydraplan.metrics import FIGURES, LOWER_IS_BETTER
from hydraplan.planheader import PlanHeader

Kind = Literal["max-regress", "max", "min"]

ROUNDING = 1e-12
"""Relative; what writing a share as a decimal may cost."""

DEFAULT_SHARES = ("iteration_s=0%",)
"""What a baseline alone asks for."""

_SHARE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)%?")


class Limit(NamedTuple):
    """One limit: a share of the baseline's figure, or a bound of the figure itself."""

    kind: Kind
    figure: str
    value: float


class Verdict(NamedTuple):
    """A figure held to a limit; `baseline` is NaN where there is none to compare with."""

    limit: Limit
    value: float
    baseline: float

    @property
    def worse(self) -> float:
        """By which share the figure is worse than the baseline's; negative if it is better."""
        if self.baseline == self.value:
            return 0.0
        change = self.value / self.baseline - 1 if self.baseline else math.inf
        return change if self.limit.figure in LOWER_IS_BETTER else -change

    @property
    def is_kept(self) -> bool:
        """Whether the limit holds; a figure that is no number keeps none."""
        bound = self.limit.value
        if self.limit.kind == "max-regress":
            return self.worse <= bound + ROUNDING
        if self.limit.kind == "max":
            return self.value <= bound
        return self.value >= bound

    def text(self) -> str:
        """In words, for a log line."""
        name, value = self.limit.figure, f"{self.value:.6g}"
        if self.limit.kind != "max-regress":
            return f"{name} is {value}, --{self.limit.kind} is {self.limit.value:.6g}"
        return (
            f"{name} is {value}, {self.worse:+.2%} worse than the baseline's {self.baseline:.6g};"
            f" at most {self.limit.value:.2%} is allowed"
        )


def parsed_limit(kind: Kind, text: str) -> Limit:
    """`iteration_s=2%` or `iteration_s=0.02` as a share, `slot_imbalance=1.1` as a bound.

    Raises:
        InputError: It is not spelt so, or there is no such figure.
    """
    name, _, number = (part.strip() for part in text.partition("="))
    option = f"--{kind} {printable(text)}"
    if name not in FIGURES:
        raise InputError(f"{option}: there is no figure {printable(name)!r}", _known())
    if kind == "max-regress":
        share = float(number.rstrip("%")) if _SHARE.fullmatch(number) else math.nan
        if not math.isfinite(share):
            raise InputError(f"{option}: {printable(number)!r} is no share", "spelt NAME=2%")
        return Limit(kind, name, share / (100 if "%" in number else 1))
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{option}: {printable(number)!r} is no number", "spelt NAME=1.1")
    return Limit(kind, name, value)


def _known() -> str:
    return f"known: {', '.join(FIGURES)}"


def verdicts(
    limits: Sequence[Limit], figures: Mapping[str, float], baseline: Mapping[str, float] | None
) -> list[Verdict]:
    """Every limit against the figures of a plan, in order."""
    return [
        Verdict(
            limit,
            figures[limit.figure],
            math.nan if baseline is None else baseline[limit.figure],
        )
        for limit in limits
    ]


def check_comparable(plan: PlanHeader, baseline: PlanHeader) -> None:
    """Refuse a baseline whose figures mean something else.

    Raises:
        InputError: Another profile, other lengths, other batches or another number of devices.
    """
    hint = "make a baseline of this kind: hydraplan check PLAN --baseline NEW --update-baseline"
    for name, old, new in (
        ("profile", baseline.profile_digest[:16], plan.profile_digest[:16]),
        ("lengths", baseline.lengths_digest[:16], plan.lengths_digest[:16]),
        ("unit of lengths", baseline.lengths_unit, plan.lengths_unit),
        ("model", baseline.model.name, plan.model.name),
        ("devices", _devices(baseline), _devices(plan)),
        ("batches", _batches(baseline), _batches(plan)),
    ):
        if old != new:
            raise InputError(
                f"the baseline cannot be compared: its {name}: {old}, the plan's: {new}", hint
            )


def _devices(header: PlanHeader) -> int:
    options = header.options
    return options.tp * options.pp * options.ranks


def _batches(header: PlanHeader) -> str:
    options = header.options
    size = options.batch_sequences or options.batch_tokens
    unit = "rows" if options.batch_sequences else "tokens"
    return f"{header.num_batches} of {size} {unit} from row {options.first_row}"
