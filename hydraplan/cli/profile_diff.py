"""`hydraplan profile diff`: how far has a device drifted from its profile?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydraplan.cli import options as o

if TYPE_CHECKING:
    from hydraplan.profiler.drift import Drift


def profile_diff(
    old: Annotated[Path, typer.Argument(help="Profile to compare with.")],
    new: Annotated[Path, typer.Argument(help="Profile of the same model and device.")],
    limit: Annotated[
        float | None,
        typer.Option(
            "--limit", min=0.0, help="Exit 1 if a predicted time drifts by more; 0.1 is 10 %."
        ),
    ] = None,
    json: o.Json = False,
) -> None:
    """Compare two profiles of one device by component.

    Predicted times of a few sizes and every coefficient; with --limit exit 1 beyond it.
    """
    from hydraplan.errors import InputError, RunFailed
    from hydraplan.files.profilefile import read_profile
    from hydraplan.profiler.drift import drift

    if limit is not None and not limit < float("inf"):
        raise InputError(f"--limit {limit:g} is no number that a drift can exceed")
    found = drift(read_profile(old), read_profile(new))
    beyond = "" if limit is None else found.beyond(limit)
    _print(found, old, new, limit, beyond, json)
    if beyond:
        raise RunFailed(
            f"{new} has drifted from {old} beyond --limit {limit:g}: {beyond}",
            "profile again on a quiet machine; if it stays, plan with the new profile",
        )


def _print(
    found: "Drift", old: Path, new: Path, limit: float | None, beyond: str, as_json: bool
) -> None:
    from hydraplan.views import console

    if as_json:
        console.emit_json(
            {
                "old": str(old),
                "new": str(new),
                "limit": limit,
                "within": None if limit is None else not beyond,
                "drift_max": max(p.drift for p in found.predictions),
                "predictions": [
                    {**p._asdict(), "change": p.change, "drift": p.drift} for p in found.predictions
                ],
                "coefficients": [c._asdict() for c in found.coefficients],
                "settings": [s._asdict() for s in found.settings],
            }
        )
        return
    console.print_table(
        ["component", "size", "old_s", "new_s", "change"],
        [
            (p.component, f"{p.size:,} {p.unit}", *_shown(p.old_s, p.new_s))
            for p in found.predictions
        ],
        title="predicted time of one call, message or copy",
    )
    console.emit()
    changed = [c for c in found.coefficients if c.old != c.new]
    if not changed:
        console.emit("all coefficients are the same")
    else:
        console.print_table(
            ["coefficient", "old", "new", "change"],
            [(c.name, *_shown(c.old, c.new)) for c in changed],
            title="coefficients that differ",
        )
    for s in found.settings:
        console.emit(f"{s.name}: {s.old}, now {s.new}")


def _shown(old: float, new: float) -> tuple[str, str, str]:
    """Both numbers, and the change if there is one to tell."""
    return f"{old:.4g}", f"{new:.4g}", f"{new / old - 1:+.1%}" if old else "-"
