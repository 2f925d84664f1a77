"""Seconds of a batch's ops in the terms that the coefficients of a fit are factors of.

A `Term` is one coefficient of one device: the work of a call (a rate), its fixed time, or the
rate of memory. Seconds of an op are a sum over them, once what hides behind something else is
left out: the links. So with links that take no time, each term's part is what the op takes more
if the coefficient costs twice. What links take is no term and cannot be learnt from what a rank
computes.

`LADDER` names sets of terms that may share one multiplier, the coarsest first.

Source: ours; the formulas are those of `hydraplan.cost`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from hydraplan.config import MAX_RATE, MAX_SECONDS
from hydraplan.cost import CostModel
from hydraplan.costfit import CostFit, LinkFit, RateFit
from hydraplan.model import FloatArray, Sequences
from hydraplan.slots import slot_times

LEAST_RATE: Final = 1e-6
"""The lowest rate that a fit may hold (`config.Rate`)."""

Rung = Literal["one", "pass", "part", "term"]
LADDER: tuple[Rung, ...] = ("one", "pass", "part", "term")
"""What shares a multiplier: everything; forward, and backward; attention, and the rest; or each
kind of work, and the calls of attention and of the rest."""


LINKS = ("all_to_all", "p2p")
"""How the names of those coefficients end that are links between devices."""

COEFFICIENTS: dict[tuple[type, str], str] = {
    (RateFit, "work"): "flops_per_s",
    (RateFit, "call"): "call_s",
    (LinkFit, "work"): "bytes_per_s",
    (LinkFit, "call"): "latency_s",
}
"""Where the rate and the fixed time of a call stand."""


class Term(NamedTuple):
    """A coefficient of `CostFit`: the rate and the fixed time of calls, or a plain rate."""

    field: str
    factor: Literal["work", "call", "rate"]


def terms(fit: CostFit) -> tuple[Term, ...]:
    """All terms of a fit, in the order of its fields."""
    found: list[Term] = []
    for name in CostFit.model_fields:
        value = getattr(fit, name)
        if isinstance(value, RateFit) or (isinstance(value, LinkFit) and not name.endswith(LINKS)):
            found += [Term(name, "work"), Term(name, "call")]
        elif isinstance(value, float):
            found.append(Term(name, "rate"))
    return tuple(found)


def group_name(term: Term, rung: Rung) -> str:
    """The set that a term belongs to on a rung of the ladder."""
    part = "attention" if term.field.startswith("attention") else "linear"
    if rung == "one":
        return "all"
    if rung == "part":
        return part
    if term.factor == "rate":
        return "memory"
    if rung == "pass":
        return "forward" if term.field.endswith("forward") else "backward"
    if term.factor == "call":
        return f"{part}_calls"
    return "embedding" if term.field.startswith("embedding") else term.field


def scaled(fit: CostFit, multipliers: Mapping[Term, float]) -> CostFit:
    """The fit with terms that take so many times as long; those not named stay.

    A coefficient stays within what a fit may hold.
    """
    changed: dict[str, Any] = {}
    for term, times in multipliers.items():
        value = changed.get(term.field, getattr(fit, term.field))
        if term.factor == "rate":
            changed[term.field] = _rate(value / times)
            continue
        name = COEFFICIENTS[type(value), term.factor]
        was = getattr(value, name)
        is_call = term.factor == "call"
        new = min(was * times, MAX_SECONDS) if is_call else _rate(was / times)
        changed[term.field] = value.model_copy(update={name: new})
    return fit.model_copy(update=changed)


def coefficient(fit: CostFit, term: Term) -> float:
    """The number of a fit that a term is: seconds of a call, else a rate."""
    value = getattr(fit, term.field)
    if term.factor == "rate":
        return float(value)
    return float(getattr(value, COEFFICIENTS[type(value), term.factor]))


def _rate(value: float) -> float:
    return min(max(value, LEAST_RATE), MAX_RATE)


def free_links(fit: CostFit) -> CostFit:
    """The fit with links that take no time: what a rank does by itself."""
    free = LinkFit(bytes_per_s=MAX_RATE, latency_s=0.0)
    links = [n for n in CostFit.model_fields if n.endswith(LINKS) and getattr(fit, n) is not None]
    return fit.model_copy(update=dict.fromkeys(links, free))


def each_term_s(cost: CostModel, placed: Sequences, microbatches: int) -> Iterator[FloatArray]:
    """Seconds of every term in a batch's slots on nominal ranks, in the order of `terms`.

    Each has the shape of `SlotTimes.op_s`: (3, stages, chunks, lanes, microbatches). They add up to
    the op times of links that take no time.
    """
    fit = free_links(cost.fit)
    plain = replace(cost, fit=fit, rank_speed=None)
    whole_s = slot_times(plain, placed, microbatches).op_s
    for term in terms(fit):
        twice = replace(plain, fit=scaled(fit, {term: 2.0}))
        yield np.maximum(slot_times(twice, placed, microbatches).op_s - whole_s, 0.0)
