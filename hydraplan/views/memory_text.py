"""Tokens that the ranks of a stage held, measured beside predicted."""

from typing import Any

from hydraplan.files.memoryfile import FIGURES, Peaks
from hydraplan.host import GIB
from hydraplan.planheader import PlanOptions
from hydraplan.views import console

PEAK_COLUMNS = ("stage", "predicted", "measured")
GIB_COLUMNS = ("GiB predicted", "GiB measured")
RECOMPUTED = "a token counts as what F keeps of it under --recompute none, here F keeps less"
PEAK_TITLE = "Most tokens whose activations a rank held at once"


def peaks_json(peaks: Peaks) -> dict[str, Any]:
    """The most over all ranks and steps, and under `stages` one object a stage.

    Bytes where they were predicted.
    """
    stages = range(peaks.predicted.shape[-2])
    each = [_most(peaks, (..., stage, slice(None))) for stage in stages]
    return {
        **_most(peaks, ...),
        "stages": [{"stage": stage, **most} for stage, most in zip(stages, each, strict=True)],
    }


def _most(peaks: Peaks, where: Any) -> dict[str, float | None]:
    return {
        name: None if values is None else float(values[where].max(initial=0.0))
        for name, values in zip(FIGURES, peaks, strict=True)
        if "bytes" not in name or peaks.predicted_bytes is not None
    }


def limit_text(options: PlanOptions) -> str:
    """What a rank may hold under these options, in live tokens; "" where nothing limits it.

    The limit counts full caps, a plan's own microbatches may hold less.
    """
    limit = options.live_limit_tokens
    if limit is None:
        return ""
    return (
        f"at most {limit:,} live tokens a rank (--live-microbatches {options.live_microbatches},"
        f" caps of {options.max_tokens_per_rank:,})"
    )


def print_peaks(
    peaks: Peaks, limit: str = "", recomputed: bool = False, memory_gib: float | None = None
) -> None:
    """A row a stage, what the plan allows (`limit_text`), and what was not as predicted.

    `recomputed`: F keeps less than whole activations, so fewer tokens than rows are counted.
    `memory_gib` of a device, where the plan keeps to it.
    """
    of_bytes = ("predicted_peak_bytes", "peak_bytes")
    shown = [name for name in of_bytes if peaks_json(peaks).get(name) is not None]
    rows = [
        [stage[name] for name in ("stage", "predicted_peak_live_tokens", "peak_live_tokens")]
        + [f"{stage[name] / GIB:.3f}" for name in shown]
        for stage in peaks_json(peaks)["stages"]
    ]
    allowed = f"allowed are {limit}" if limit else ""
    device = f"a device has {memory_gib:.2f} GiB" if shown and memory_gib else ""
    unit = RECOMPUTED if recomputed else ""
    lines = [text for text in (unit, allowed, device, difference(peaks)) if text]
    columns = [*PEAK_COLUMNS, *GIB_COLUMNS[: len(shown)]]
    console.print_table(columns, rows, PEAK_TITLE, "\n".join(lines))


def difference(peaks: Peaks) -> str:
    """Where a rank first held something else than predicted, and how many did; "" if none."""
    places = peaks.differ()
    if not places or peaks.measured is None:
        return ""
    *step, stage, lane = places[0]
    when = f"in step {step[0]} " if step else ""
    more = f" (and {len(places) - 1} more like that)" if len(places) > 1 else ""
    return (
        f"{when}stage {stage}, lane {lane} held activations of {peaks.measured[places[0]]:.10g}"
        f" tokens at once, {peaks.predicted[places[0]]:.10g} were predicted{more}"
    )
