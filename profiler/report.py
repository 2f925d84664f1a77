"""What `profile` tells people: how well each fitted coefficient explains its measurements.

Pure: from the fit and the measured rows to a table or a JSON object. It does not fit.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

import numpy as np

from hydraplan.costfit import CostFit, LinkFit, RateFit
from hydraplan.files.profilefile import Measurement, ProfileHeader
from hydraplan.profiler.fit import COMPONENTS, predicted_s, rows_of, undisturbed_s

PROFILE_JSON_VERSION = 1

WIDTH, INDENT = 80, 47
"""Columns of the table, and of those before the last, in which longer fits go on below."""


class ComponentError(NamedTuple):
    """One coefficient: points it was fitted on and |fit - measured| / measured over them."""

    name: str
    num_points: int
    median_error: float | None
    worst_error: float | None


def component_errors(fit: CostFit, rows: Sequence[Measurement]) -> list[ComponentError]:
    """Error of every coefficient, in the order of `COMPONENTS`."""
    return [_error(name, fit, rows_of(name, rows)) for name in COMPONENTS]


def _error(name: str, fit: CostFit, points: Sequence[Measurement]) -> ComponentError:
    if not points:
        return ComponentError(name, 0, None, None)
    measured = undisturbed_s(points)
    error = np.abs(predicted_s(fit, name, points) - measured) / measured
    return ComponentError(name, len(points), float(np.median(error)), float(error.max()))


def as_text(header: ProfileHeader, errors: Sequence[ComponentError]) -> str:
    """A table of 80 columns, a row a coefficient, below a line that says measured or analytic."""
    lines = [f"{header.device}, model {header.model.name}: {_mode(header)}", ""]
    lines.append(f"{'component':<20}{'points':>7}{'median':>9}{'worst':>9}  fit")
    for error in errors:
        shown = "".join(
            f"{'-' if value is None else f'{value:.1%}':>9}"
            for value in (error.median_error, error.worst_error)
        )
        coefficient = _coefficient(getattr(header.fit, error.name))
        lines += _row(f"{error.name:<20}{error.num_points:>7}{shown}", coefficient)
    pod = () if header.fit.pod_p2p is None else ("pod_p2p",)
    for name in ("fabric_all_to_all", "fabric_p2p", *pod):
        coefficient = _coefficient(getattr(header.fit, name))
        source = "as node" if header.mode == "measured" else "-"
        lines += _row(f"{name:<20}{0:>7}{source:>9}{'-':>9}", coefficient)
    return "\n".join(lines)


def _row(head: str, coefficient: str) -> list[str]:
    """The lines of a row."""
    first, *more = wrap(coefficient, WIDTH - INDENT)
    return [f"{head:<{INDENT}}{first}", *(" " * INDENT + line for line in more)]


def as_object(path: Path, header: ProfileHeader, errors: Sequence[ComponentError]) -> str:
    """One JSON object: provenance, error of each coefficient, and the fit."""
    values = {
        "schema_version": PROFILE_JSON_VERSION,
        "profile": str(path),
        "mode": header.mode,
        "device": header.device,
        "model": header.model.name,
        "cluster": None if header.cluster is None else header.cluster.name,
        "num_measurements": sum(e.num_points for e in errors),
        "components": [e._asdict() for e in errors],
        "fit": header.fit.model_dump(),
    }
    return json.dumps(values)


def _mode(header: ProfileHeader) -> str:
    return "measured" if header.mode == "measured" else "analytic, not measured"


def _coefficient(fit: RateFit | LinkFit | float) -> str:
    match fit:
        case RateFit():
            half = f", half at {fit.half_rows:.0f} rows" if fit.half_rows >= 0.5 else ""
            block = f", causal block {fit.causal_block_rows:.0f}" if fit.causal_block_rows else ""
            rate = f"{fit.flops_per_s / 1e9:,.1f} GFLOP/s"
            return f"{rate}{half}{block}, call {fit.call_s * 1e6:.1f} us"
        case LinkFit():
            return f"{fit.bytes_per_s / 1e9:,.2f} GB/s, latency {fit.latency_s * 1e6:.1f} us"
        case _:
            return f"{fit / 1e9:,.2f} GB/s"
