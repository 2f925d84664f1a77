"""How far one profile is from another: coefficient by coefficient, and in predicted seconds.

Coefficients of a fit trade against each other, so what counts is what they predict together: for
every component, calls and messages of a few sizes, costed by both. It measures nothing, and it
compares only what can be compared: the same shape of model on the same device.
"""

from typing import NamedTuple

import numpy as np

from hydraplan.cost import BACKWARD_FLOPS_RATIO
from hydraplan.costfit import CostFit, LinkFit, RateFit
from hydraplan.errors import InputError
from hydraplan.files.profilefile import Profile
from hydraplan.profiler.fit import AttentionWork, attention_call_s, link_s, rate_s

CALL_ROWS = (1_024, 8_192, 65_536)
MESSAGE_BYTES = (1 << 16, 1 << 20, 1 << 26)
COPY_BYTES = 1 << 26
"""Sizes at which two profiles are compared. Our choice."""


class Prediction(NamedTuple):
    """What both profiles say that one call, message or copy takes."""

    component: str
    size: int
    unit: str
    old_s: float
    new_s: float

    @property
    def change(self) -> float:
        """Relative change of the time; 0.1 is 10 % longer."""
        return self.new_s / self.old_s - 1

    @property
    def drift(self) -> float:
        """The change without its sign, alike for twice as long and half as long."""
        return max(self.new_s / self.old_s, self.old_s / self.new_s) - 1


class Coefficient(NamedTuple):
    """One number of the fit in both profiles."""

    name: str
    old: float
    new: float


class Setting(NamedTuple):
    """What is no matter of degree and differs: a version, the size of a node, calls a kernel takes.

    `in_costs`: it changes the formulas, so no limit covers it.
    """

    name: str
    old: str
    new: str
    in_costs: bool


class Drift(NamedTuple):
    """All that differs or could."""

    predictions: tuple[Prediction, ...]
    coefficients: tuple[Coefficient, ...]
    settings: tuple[Setting, ...]

    def beyond(self, limit: float) -> str:
        """What is further off than the limit, the worst of it in words; "" if nothing is."""
        for setting in self.settings:
            if setting.in_costs:
                return f"{setting.name} was {setting.old} and is {setting.new}"
        worst = max(self.predictions, key=lambda p: p.drift)
        if worst.drift <= limit:
            return ""
        return (
            f"{worst.component} at {worst.size:,} {worst.unit} takes {worst.new_s:.3g} s, it was"
            f" {worst.old_s:.3g} s: {worst.change:+.1%}, a drift of {worst.drift:.1%}"
        )


def drift(old: Profile, new: Profile) -> Drift:
    """Compare two profiles.

    Raises:
        InputError: They are of different models or devices; names both values.
    """
    _check_comparable(old, new)
    before, after = old.header.fit, new.header.fit
    predictions, coefficients, settings = [], [], []
    for name in CostFit.model_fields:
        a, b = getattr(before, name), getattr(after, name)
        if isinstance(a, RateFit | LinkFit) and type(a) is type(b):
            for field in sorted(type(a).model_fields.keys() - {"relative_error"}):
                coefficients.append(
                    Coefficient(f"{name}.{field}", getattr(a, field), getattr(b, field))
                )
        elif isinstance(a, float):
            coefficients.append(Coefficient(name, a, b))
        else:
            if a != b:
                settings.append(Setting(name, _shown(a), _shown(b), True))
            continue
        sizes, unit = _sizes(name, a)
        for size in sizes:
            seconds = (_seconds(old, name, size), _seconds(new, name, size))
            predictions.append(Prediction(name, size, unit, *seconds))
    versions = old.header.versions, new.header.versions
    for name in sorted(versions[0].keys() | versions[1].keys()):
        a, b = (version.get(name, "absent") for version in versions)
        if a != b:
            settings.append(Setting(name, a, b, False))
    return Drift(tuple(predictions), tuple(coefficients), tuple(settings))


def _check_comparable(old: Profile, new: Profile) -> None:
    """Raise InputError unless model (but for its name), device and what was timed agree."""
    a, b = old.header, new.header
    for name in type(a.model).model_fields:
        if name != "name" and getattr(a.model, name) != getattr(b.model, name):
            raise InputError(
                f"these are profiles of different models: {name} of {a.model.name} is"
                f" {getattr(a.model, name)}, of {b.model.name} {getattr(b.model, name)}",
                "compare two profiles of one model",
            )
    for name in ("device", "mode"):
        if getattr(a, name) != getattr(b, name):
            raise InputError(
                f"these are profiles of different devices: {name} is {getattr(a, name)!r}"
                f" and {getattr(b, name)!r}",
                "compare two profiles of one device",
            )


def _sizes(name: str, fit: RateFit | LinkFit | float) -> tuple[tuple[int, ...], str]:
    if isinstance(fit, RateFit):
        return CALL_ROWS, "rows"
    return (MESSAGE_BYTES if isinstance(fit, LinkFit) else (COPY_BYTES,)), "bytes"


def _seconds(profile: Profile, name: str, size: int) -> float:
    """What the profile predicts for a causal square, rows through a layer, or bytes."""
    model, fit = profile.header.model, getattr(profile.header.fit, name)
    one = np.array([float(size)])
    if isinstance(fit, LinkFit):
        return float(link_s(fit, one)[0])
    if not isinstance(fit, RateFit):
        return float(size / fit)
    if name.startswith("attention"):
        ratio = BACKWARD_FLOPS_RATIO if name.endswith("backward") else 1.0
        flops = ratio * 4 * one * (one + 1) / 2 * model.num_heads * model.head_dim
        work = AttentionWork(flops, one, np.array([True]), np.ones(1))
        return float(attention_call_s(fit, work)[0])
    return float(rate_s(fit, 2 * one * model.layer_parameters)[0])


def _shown(value: object) -> str:
    return "absent" if value is None else "present" if isinstance(value, LinkFit) else str(value)
