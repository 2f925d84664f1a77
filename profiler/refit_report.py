"""What a run says of costs, for people and programs: ops, parts and slots, before and after.

From a `Refit` to tables, lines and JSON. It computes no costs.
"""

from math import isfinite
from typing import Any

import numpy as np

from hydraplan.cost_terms import LADDER, Term, coefficient, terms
from hydraplan.costfit import CostFit, RateFit
from hydraplan.errors import many
from hydraplan.model import FloatArray
from hydraplan.profiler.left_profile import left_profile, level, parts
from hydraplan.profiler.refit import Refit
from hydraplan.views import console

TOLD = 0.25
"""Relative standard error from which on a multiplier is not told from the old ratio."""

SETS = {
    "one": "one multiplier for all terms",
    "pass": "one for forward, one for backward",
    "part": "one for attention, one for the rest",
    "term": "one for each kind of work",
}
"""What shares a multiplier, in words."""


def op_figures(found: Refit) -> list[dict[str, Any]]:
    """A row for each kind of op, then all: measured over predicted, and how far off single ops are.

    Errors are |predicted / measured - 1|, those of the old costs once what all ops share is out.
    """
    ops, rows = found.ops, []
    middle = float(np.median(ops.taken_s / found.old_s))
    old = np.abs(found.old_s * middle / ops.taken_s - 1)
    new = np.abs(found.new_s / ops.taken_s - 1)
    for kind in [k for k in ("F", "B", "W", "BW") if (ops.kind == k).any()] + ["all"]:
        of = np.flatnonzero((ops.kind == kind) | (kind == "all"))
        rows.append(
            {
                "ops_of": kind,
                "count": len(of),
                "median_s": float(np.median(ops.taken_s[of])),
                "measured_over_predicted": float(np.median(ops.taken_s[of] / found.old_s[of])),
                **_errors("error", old[of]),
                **_errors("refitted_error", new[of]),
            }
        )
    return rows


def _errors(name: str, values: FloatArray) -> dict[str, float]:
    return {
        f"{name}_median": float(np.median(values)),
        f"{name}_p90": float(np.quantile(values, 0.9)),
    }


def slot_figures(found: Refit) -> dict[str, float]:
    """`slot_imbalance` by the old costs, by the new ones, and as measured."""
    return {
        "slot_imbalance_predicted": found.slot_imbalance(found.old_s),
        "slot_imbalance_refitted": found.slot_imbalance(found.new_s),
        "slot_imbalance_measured": found.slot_imbalance(found.ops.taken_s),
    }


def costs_json(found: Refit | None) -> dict[str, Any]:
    """What `execute --json` says of a run's costs; null where there is nothing to compare."""
    if found is None:
        return {"costs": None, "costs_left_profile": None}
    left = left_profile(found)
    costs = {
        "steps": found.ops.steps,
        "level": level(found),
        "ops": op_figures(found),
        "multipliers": found.rung,
        "parts": [part._asdict() for part in parts(found)],
        **slot_figures(found),
        "slow": [{"stage": s, "lane": r, "factor": f} for (s, r), f in found.slow.items()],
    }
    return {"costs": costs, "costs_left_profile": None if left is None else left._asdict()}


def print_costs(found: Refit) -> None:
    """Measured beside predicted, as `execute` ends with it."""
    console.print_table(
        ["ops of", "count", "median ms", "measured / predicted", "p90 error, level out"],
        [
            [
                row["ops_of"],
                row["count"],
                1e3 * row["median_s"],
                row["measured_over_predicted"],
                f"{row['error_p90']:.1%}",
            ]
            for row in op_figures(found)
        ],
        f"Own time of ops beside the plan's costs, {many(found.ops.steps, 'step')} after the first",
        _parts_text(found),
    )


def _parts_text(found: Refit) -> str:
    told = [
        f"{part.name} {part.times:.2f}"
        + (f" +- {part.error * part.times:.2g}" if part.error else "")
        for part in parts(found)
    ]
    return f"times as long as its costs say: {', '.join(told)}"


def refit_json(found: Refit) -> dict[str, Any]:
    """What `profile --refit --json` says, besides the files."""
    return {
        **costs_json(found),
        "held_out_error": dict(zip(LADDER, found.held_out, strict=True)),
        "terms": [
            {
                "name": f"{term.field}.{term.factor}",
                "old": coefficient(found.old, term),
                "new": coefficient(found.new, term),
                "times": float(times),
                "share": found.share([place]),
            }
            for place, (term, times) in enumerate(zip(terms(found.old), found.times, strict=True))
        ],
        "fit": found.new.model_dump(),
    }


def print_refit(found: Refit, run_name: str) -> None:
    """Terms, ops and slots before and after."""
    rows: list[list[object]] = []
    own_s = found.ops.term_s.sum(axis=1)
    for place, term in enumerate(terms(found.old)):
        set_of = [i for i, m in enumerate(found.learned.members) if place in m]
        error = found.learned.covariance[set_of[0], set_of[0]] ** 0.5 if set_of else np.inf
        told = f"+- {error * found.times[place]:.2g}"
        if not own_s[place] or error > TOLD:
            told = "not told"
        pair = [_shown(fit, term) for fit in (found.old, found.new)]
        share = f"{found.share([place]):.1%}"
        rows.append([term.field, *pair, float(found.times[place]), told, share])
    ops = f"{many(len(found.ops.taken_s), 'op')} of {many(found.ops.steps, 'step')}"
    held = [
        f"{rung} {error:.1%}"
        for rung, error in zip(LADDER, found.held_out, strict=True)
        if isfinite(error)
    ]
    chosen = f"multipliers: {SETS[found.rung]}"
    chosen += f"; error of ops held out: {', '.join(held)}" if held else "; nothing to hold out"
    if any("not told" in row for row in rows):
        chosen += "; what is not told from the others takes as many times as long as they"
    console.print_table(
        ["term", "old", "new", "times", "sure", "share"],
        rows,
        f"Costs refitted from {run_name}: {ops}, the first step left out",
        chosen,
    )
    console.emit()
    console.print_table(
        ["ops of", "count", "measured / old", "old error", "p90", "new error", "p90"],
        [
            [row["ops_of"], row["count"], row["measured_over_predicted"]]
            + [
                f"{row[name]:.1%}"
                for name in (
                    "error_median",
                    "error_p90",
                    "refitted_error_median",
                    "refitted_error_p90",
                )
            ]
            for row in op_figures(found)
        ],
        "Error of ops before, what all share left out, and after",
    )
    old, new, taken = slot_figures(found).values()
    if isfinite(taken):
        console.emit(
            f"slot_imbalance of the plan: {old:.3f} by its costs, {new:.3f} by the new ones,"
            f" {taken:.3f} measured"
        )
    if found.slow:
        slow = ", ".join(f"stage {s}, lane {r} {f:.2f}x" for (s, r), f in found.slow.items())
        console.emit(f"devices, taken out: {slow}")


def _shown(fit: CostFit, term: Term) -> str:
    value = coefficient(fit, term)
    if term.factor == "call":
        return f"{value * 1e6:.1f} us"
    unit = "FLOP/s" if isinstance(getattr(fit, term.field), RateFit) else "B/s"
    return f"{value / 1e12:.4g} T{unit}" if value >= 1e12 else f"{value / 1e9:.4g} G{unit}"
