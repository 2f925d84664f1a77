"""Ops of every stage over time for the page: what its script needs to know, and a drawing of it.

A stage is a band with a line for forwards, one for backwards, and one for weight gradients where
some run apart, as in the chart of characters (`views.gantt`): the line tells the kind, colour
repeats it. Times are whole parts of the longest plan, `PARTS` in all, so that a page stays small.

Source: ours.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from hydraplan.errors import many
from hydraplan.model import FloatArray, Schedule, Timeline

PARTS = 1_000_000
"""Parts of the time axis."""

MOST_OPS = 24_000
"""Ops that are drawn of a plan; an op takes some 60 bytes of the page."""

MOST_STAGES = 64
"""Stages that are drawn; of more, so many spread evenly from the first to the last."""

LINE, GAP = 12, 8
"""Height of a line, and space below a band, in pixels."""

KINDS = ("F", "B", "W", "BW")


class Chart(NamedTuple):
    """One plan in the chart; `name` stands before its stages."""

    name: str
    timeline: Timeline


class Band(NamedTuple):
    """A stage of a plan; `ops`: (kind, microbatch, chunk, start, end, idle, wait, first, last).

    Start and end are means over lanes, so that ops of a stage do not overlap, and so are `idle`
    before the op and `wait` inside it, for members of groups. `first` and `last` are the earliest
    start and the latest end over the lanes, as in the plan. In parts.
    """

    label: str
    plan: int
    ops: list[list[int]]


def length_s(charts: Sequence[Chart]) -> float:
    """Seconds that the axis spans: the longest plan, gradient sync excluded."""
    return max(float(end.max()) for chart in charts for end in chart.timeline.end_s)


def bands(charts: Sequence[Chart]) -> tuple[list[Band], list[str]]:
    """Bands from the top, stages of two plans next to each other; and what is not drawn."""
    part_s = length_s(charts) / PARTS
    found: list[tuple[int, int, Band]] = []
    left_out = []
    for plan, chart in enumerate(charts):
        schedule = chart.timeline.schedule
        drawn = np.linspace(0, len(schedule) - 1, min(len(schedule), MOST_STAGES))
        most = MOST_OPS // len(drawn)
        if len(drawn) < len(schedule):
            left_out.append(f"{len(drawn)} of {len(schedule)} stages, from the first to the last")
        if (ops := max(map(len, schedule))) > most:
            left_out.append(f"the first {most:,} of {many(ops, 'op')} a stage")
        for place, stage in enumerate(drawn.round().astype(int).tolist()):
            label = f"{chart.name} {stage}"
            found.append((place, plan, Band(label, plan, _ops(chart, stage, part_s)[:most])))
    return [band for *_, band in sorted(found, key=lambda x: x[:2])], left_out


def _ops(chart: Chart, stage: int, part_s: float) -> list[list[int]]:
    line = chart.timeline
    start_s, end_s = line.start_s[stage], line.end_s[stage]
    means = start_s.mean(axis=1), end_s.mean(axis=1), *waits_s(line, stage)
    times = *means, start_s.min(axis=1), end_s.max(axis=1)
    parts = np.rint(np.stack(times) / part_s).astype(np.int64).T.tolist()
    return [
        [KINDS.index(op.kind), op.microbatch, op.chunk, *of]
        for op, of in zip(line.schedule[stage], parts, strict=True)
    ]


def waits_s(timeline: Timeline, stage: int) -> tuple[FloatArray, FloatArray]:
    """Seconds a mean lane is idle before every op, and waits inside it for its groups."""
    start, end = timeline.start_s[stage], timeline.end_s[stage]
    free = np.zeros_like(start)
    free[1:] = np.maximum.accumulate(end, axis=0)[:-1]
    idle: FloatArray = np.maximum(0.0, start - free).mean(axis=1)
    wait: FloatArray = np.maximum(0.0, end - start - timeline.busy_s[stage]).mean(axis=1)
    return idle, wait


def num_lines(schedule: Schedule) -> int:
    """Lines of a band: F, B, and W where some run apart."""
    return 3 if any(op.kind == "W" for ops in schedule for op in ops) else 2


def gantt_data(charts: Sequence[Chart], drawn: Sequence[Band]) -> dict[str, Any]:
    """What the script of the page reads: geometry in pixels, seconds of a part, and the bands."""
    lines = max(num_lines(chart.timeline.schedule) for chart in charts)
    return {
        "parts": PARTS,
        "part_s": length_s(charts) / PARTS,
        "lines": lines,
        "line": LINE,
        "gap": GAP,
        "kinds": KINDS,
        "chunks": max(1 + op.chunk for c in charts for ops in c.timeline.schedule for op in ops),
        "bands": [{"label": band.label, "plan": band.plan, "ops": band.ops} for band in drawn],
    }


def _box(x: int, y: int, width: int, height: int) -> str:
    return f"M{x} {y}h{width}v{height}h-{width}z"


def gantt_svg(drawn: Sequence[Band], lines: int) -> Markup:
    """The drawing: a path for every kind of every band, `PARTS` wide and stretched by the page."""
    step = lines * LINE + GAP
    height = step * len(drawn)
    parts = []
    for index, band in enumerate(drawn):
        top = index * step
        parts.append(f'<path class="rest" d="M0 {top}h{PARTS}v{lines * LINE}H0z"/>')
        for kind, name in enumerate(KINDS):
            line = min(kind, 1) if name == "BW" else kind
            y = top + line * LINE
            ops = [op for op in band.ops if op[0] == kind]
            if not ops:
                continue
            for style, a, b, top_px, high in (
                ("span", 7, 8, LINE - 4, 3),
                ("op", 3, 4, 0, LINE - 1),
            ):
                path = "".join(_box(op[a], y + top_px, max(op[b] - op[a], 1), high) for op in ops)
                parts.append(f'<path class="{style} {name[0]} plan{band.plan}" d="{path}"/>')
    return Markup(
        f'<svg id="gantt-drawing" viewBox="0 0 {PARTS} {height}" height="{height}" width="100%"'
        ' preserveAspectRatio="none" role="img" aria-labelledby="gantt-title gantt-desc">'
        '<title id="gantt-title">Ops of every stage over time</title>'
        '<desc id="gantt-desc">A band for each stage, with a line for forwards, one for backwards'
        f"{' and one for weight gradients' if lines > 2 else ''}; the table below says how long"
        f" each stage works and is idle.</desc>{''.join(parts)}</svg>"
    )
