"""What `profile` tells people: how well each fitted coefficient explains its measurements.

Pure: from the fit and the measured rows to a table or a JSON object. It does not fit.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from hydraplan.costfit import LinkFit, RateFit
from hydraplan.files.profilefile import Measurement, ProfileHeader, TermError
from hydraplan.profiler.fit import COMPONENTS
from hydraplan.views.check_text import check_lines

PROFILE_JSON_VERSION = 2

SLOWEST = 5
AS_NODE = {True: "as node", False: "not measured"}
WIDTH, INDENT = 80, 49
"""Columns of the table, and of those before the last, in which longer fits go on below."""


def as_text(header: ProfileHeader, rows: Sequence[Measurement]) -> str:
    """A table of 80 columns, a row a coefficient, below a line that says measured or analytic."""
    lines = [f"{header.device}, model {header.model.name}: {_mode(header)}", ""]
    lines.append(f"{'component':<20}{'points':>7}{'fit':>7}{'left out':>13}  coefficient")
    terms = {term.name: term for term in header.terms}
    for name in COMPONENTS:
        value = getattr(header.fit, name)
        if value is None:
            continue
        head = _errors(name, terms.get(name))
        if header.terms and name not in terms:
            head = f"{name:<20}{0:>7}{AS_NODE[header.cluster is None]:>20}"
        lines += _row(head, _coefficient(value))
    if header.fit.pod_p2p is not None:
        lines += _row(_errors("pod_p2p", None), _coefficient(header.fit.pod_p2p))
    return "\n".join(
        lines
        + _errors_said(header)
        + _devices(header)
        + _optimizer(rows)
        + _disturbed(rows)
        + _clock(header)
        + check_lines(header)
    )


def _errors(name: str, term: TermError | None) -> str:
    """Points and errors of a coefficient: median of the fit, median and p90 left out."""
    if term is None:
        return f"{name:<20}{0:>7}{'-':>7}{'-':>13}"
    left_out = f"{term.left_out_median:.0%} / {term.left_out_p90:.0%}"
    if term.num_points == 1:
        left_out = "-"  # nothing is left to fit without it
    return f"{name:<20}{term.num_points:>7}{term.median_error:>7.1%}{left_out:>13}"


def _errors_said(header: ProfileHeader) -> list[str]:
    """What the two columns of errors are, where there are any."""
    if not header.terms:
        return []
    return ["fit: median error of the points; left out: median / p90 of points not fitted to"]


def _devices(header: ProfileHeader) -> list[str]:
    """The slowest devices of a profile by all ranks."""
    if not header.devices:
        return []
    slowest = sorted(header.devices, key=lambda d: -d.factor)[:SLOWEST]
    shown = ", ".join(f"rank {d.world_rank} x {d.factor:.2f}" for d in slowest)
    return ["", f"{len(header.devices)} devices, the slowest: {shown}"]


def _optimizer(rows: Sequence[Measurement]) -> list[str]:
    """What AdamW takes, which is in no cost: a step ends before it."""
    found = [row for row in rows if row.component == "optimizer"]
    if not found:
        return []
    largest = max(found, key=lambda row: row.bytes)
    rate = largest.bytes / largest.p10_s
    return ["", f"AdamW moves {rate / 1e9:,.2f} GB/s of weights, gradients and moments"]


def _disturbed(rows: Sequence[Measurement]) -> list[str]:
    """How many samples shared their core."""
    samples, disturbed = (
        sum(getattr(r, n) for r in rows) for n in ("num_samples", "num_disturbed")
    )
    if not disturbed:
        return []
    return [f"{disturbed:,} of {samples:,} samples were disturbed by other processes"]


def _clock(header: ProfileHeader) -> list[str]:
    """What held the device back, if anything did."""
    held = {c.throttled_by for c in (header.before, header.after) if c is not None} - {""}
    return [f"clock held back by {', '.join(sorted(held))}"] if held else []


def _row(head: str, coefficient: str) -> list[str]:
    """The lines of a row."""
    first, *more = wrap(coefficient, WIDTH - INDENT)
    return [f"{head:<{INDENT}}{first}", *(" " * INDENT + line for line in more)]


def as_object(path: Path, header: ProfileHeader, rows: Sequence[Measurement]) -> str:
    """One JSON object: provenance, error of each coefficient and of whole microbatches, the fit."""
    values = {
        "schema_version": PROFILE_JSON_VERSION,
        "profile": str(path),
        "mode": header.mode,
        "device": header.device,
        "model": header.model.name,
        "cluster": None if header.cluster is None else header.cluster.name,
        "num_measurements": len(rows),
        "num_samples": sum(row.num_samples for row in rows),
        "num_disturbed": sum(row.num_disturbed for row in rows),
        "components": [term.model_dump() for term in header.terms],
        "checks": [check.model_dump() | {"error": check.error} for check in header.checks],
        "before": None if header.before is None else header.before.model_dump(),
        "after": None if header.after is None else header.after.model_dump(),
        "devices": [device.model_dump() for device in header.devices],
        "fit": header.fit.model_dump(),
    }
    return json.dumps(values)


def _mode(header: ProfileHeader) -> str:
    return "measured" if header.mode == "measured" else "analytic, not measured"


def _coefficient(fit: RateFit | LinkFit | float) -> str:
    match fit:
        case RateFit():
            half = f", half at {fit.half_rows:.0f} rows" if fit.half_rows >= 0.5 else ""
            half += f", {1 + fit.spill:.2f} x slower if long" if fit.spill >= 0.005 else ""
            block = f", causal block {fit.causal_block_rows:.0f}" if fit.causal_block_rows else ""
            rate = f"{fit.flops_per_s / 1e9:,.1f} GFLOP/s"
            return f"{rate}{half}{block}, call {fit.call_s * 1e6:.1f} us"
        case LinkFit():
            return f"{fit.bytes_per_s / 1e9:,.2f} GB/s, latency {fit.latency_s * 1e6:.1f} us"
        case _:
            return f"{fit / 1e9:,.2f} GB/s"
