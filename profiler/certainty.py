"""How well a fit knows what it was not fitted on: leave-one-out errors of its points.

Each point is predicted by a fit to all others. Of the causal block, one of a few, the choice is
that of all points. Where too few points are left for a fit, nothing is known: the error is 1.

Source: leave-one-out is standard.
"""

from collections.abc import Sequence

import numpy as np

from hydraplan.costfit import CostFit, RateFit
from hydraplan.errors import InputError
from hydraplan.files.profilefile import Measurement, TermError
from hydraplan.model import FloatArray
from hydraplan.profiler.fit import (
    COMPONENTS,
    fit_component,
    predicted_s,
    rows_of,
    undisturbed_s,
)

UNKNOWN = 1.0


def left_out_errors(name: str, points: Sequence[Measurement], fit: CostFit) -> FloatArray:
    """Fit to all others over measured less one, of each point of a coefficient, (num_points,)."""
    whole = getattr(fit, name)
    like = whole if isinstance(whole, RateFit) else None
    measured_s = undisturbed_s(points)
    errors = np.full(len(points), UNKNOWN)
    for i, point in enumerate(points):
        others = [*points[:i], *points[i + 1 :]]
        try:
            found = fit_component(name, others, like)
        except InputError:
            continue
        guess = predicted_s(fit.model_copy(update={name: found}), name, [point])
        errors[i] = guess[0] / measured_s[i] - 1
    return errors


def uncertainty(rows: Sequence[Measurement]) -> FloatArray:
    """How far a fit to the others is from each row, |relative error|; 0 for what is not fitted."""
    found = np.zeros(len(rows))
    for name, component in COMPONENTS.items():
        at = [i for i, row in enumerate(rows) if (row.component, row.direction) == component[:2]]
        if not at:
            continue
        points = [rows[i] for i in at]
        try:
            fit = CostFit.model_construct(None, **{name: fit_component(name, points)})
        except InputError:
            found[at] = UNKNOWN
            continue
        found[at] = np.abs(left_out_errors(name, points, fit))
    return found


def term_errors(fit: CostFit, rows: Sequence[Measurement]) -> tuple[TermError, ...]:
    """Error of every coefficient that was fitted, in the order of `COMPONENTS`."""
    found = []
    for name, component in COMPONENTS.items():
        points = rows_of(name, rows)
        if not points or getattr(fit, name) is None:
            continue
        measured_s = undisturbed_s(points)
        error = np.abs(predicted_s(fit, name, points) / measured_s - 1)
        left_out = np.abs(left_out_errors(name, points, fit))
        is_message = component.formula in ("link", "bandwidth")
        sizes = [p.bytes if is_message else float(min(_sides(p))) for p in points]
        found.append(
            TermError(
                name=name,
                num_points=len(points),
                median_error=float(np.median(error)),
                worst_error=float(error.max()),
                left_out_median=float(np.median(left_out)),
                left_out_p90=float(np.quantile(left_out, 0.9)),
                smallest=min(sizes),
                largest=max(sizes),
                unit="bytes" if is_message else "rows",
            )
        )
    return tuple(found)


def _sides(point: Measurement) -> tuple[int, ...]:
    """Rows of queries and keys; linear work has rows alone."""
    return tuple(side for side in (point.query_rows, point.key_rows) if side)
