"""A plan as one page that works offline: text, SVG, and a script of its own; nothing is fetched.

The template escapes every string; what the script reads is JSON in which nothing can end its
element. A content security policy lets the page's own style sheet and script run, by their
digests, and nothing else: no request can leave the page, and no string of a plan can run.
Same plan, same bytes.

Source: ours.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hydraplan.errors import many, printable
from hydraplan.files.parquet import beside
from hydraplan.files.plandiff import PlanDiff
from hydraplan.views.plan_text import evener_lines
from hydraplan.views.report_changes import change_lines, change_tables
from hydraplan.views.report_charts import degree_bars, heat_map, lane_bars, shares_bar
from hydraplan.views.report_data import (
    MOST_BATCHES,
    SHARES,
    Shown,
    Table,
    batches_table,
    figures_table,
    heat_data,
    heaviest_table,
    provenance,
    sequence_rows,
    sequences_table,
    shares_table,
    slowest_table,
    stages_table,
    text,
    tiles,
)
from hydraplan.views.report_gantt import Chart, bands, gantt_data, gantt_svg
from hydraplan.views.window_text import advice_lines, outside_lines

_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def write_page(path: Path, page: str) -> None:
    """Write a page whole or not at all."""
    with beside(path) as spare:
        spare.write_text(page, encoding="utf-8")


def script_json(value: object) -> Markup:
    """JSON that can stand in a script element: nothing in it opens or ends one."""
    return Markup(json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_ESCAPES))


def page(
    shown: Shown,
    limits: Sequence[tuple[float, str]],
    flops: str,
    old: Shown | None = None,
    diff: PlanDiff | None = None,
) -> str:
    """The page of a plan.

    Args:
        shown: The plan, one batch of it in full.
        limits: What limits that batch: share of the iteration and what it is, largest first.
        flops: Its true work, in a line.
        old: Another plan to lay over it, the same batch; None where it has no such batch.
        diff: What changed from the other plan.
    """
    plans = [shown] if old is None else [shown, old]
    names = ["stage"] if old is None else ["new", "old"]
    charts = [Chart(n, p.timeline) for n, p in zip(names, plans, strict=True)]
    drawn, ops_left_out = bands(charts)
    gantt = gantt_data(charts, drawn)
    heat_svg, heat_left_out = heat_map(shown.load_s)
    lanes_s = [p.load_s.sum(axis=1) for p in plans]
    old_s = lanes_s[1] if len(plans) > 1 and len(lanes_s[1]) == len(lanes_s[0]) else None
    lanes_svg, lanes_left_out = lane_bars(lanes_s[0], old_s)
    sequences = sequence_rows(shown.batch)
    left_out = [
        *(f"the schedule shows {line}" for line in ops_left_out),
        *heat_left_out,
        *lanes_left_out,
        *_sequences_left_out(shown, len(sequences)),
    ]
    degrees = [p.batch.summary().degrees for p in plans]
    figures, most = shown.batch.figures, max((share for share, _ in limits), default=1.0)
    return _filled(
        {
            "name": shown.name,
            "old_name": None if diff is None else diff.old.resolve().name,
            "subtitle": _subtitle(shown),
            "tiles": tiles(shown),
            "limits": [(f"{share:.1%}", f"{300 * share / most:.1f}", s) for share, s in limits],
            "shares_svg": shares_bar(
                "shares-chart",
                "Where the iteration goes",
                [(name, figures[name]) for name in SHARES],
                figures["efficiency"],
            ),
            "flops": flops,
            "notes": [*_batch_notes(shown), *_search_notes(shown)],
            "left_out": left_out,
            "changes": [] if diff is None else change_lines(diff, shown.batch.batch),
            "changed": [] if diff is None else change_tables(diff, shown.batch.batch),
            "gantt_svg": gantt_svg(drawn, gantt["lines"]),
            "gantt": gantt,
            "axis": [f"{part * gantt['parts'] * gantt['part_s'] / 4:.3g} s" for part in range(5)],
            "heat_svg": heat_svg,
            "mean_slot": f"{shown.load_s.mean():.4g} s",
            "most_slot": f"{shown.load_s.max():.4g} s",
            "num_lanes": shown.load_s.shape[0],
            "num_microbatches": shown.load_s.shape[1],
            "lanes_svg": lanes_svg,
            "lanes_have_old": old_s is not None,
            "degrees": Table(
                "degrees",
                "Sequences by degree",
                ["degree", "sequences", *(["in the old plan"] if old else []), "drawn"],
                degree_bars(degrees[0], degrees[1] if old else None),
            ),
            "provenance": provenance(shown),
            "shares": shares_table(shown),
            "figures": figures_table(shown),
            "slowest": slowest_table(shown, old_s),
            "heaviest": heaviest_table(shown),
            "stages": stages_table(shown),
            "batches": batches_table(shown),
            "sequences": sequences_table(shown.batch, sequences),
            "data": script_json(
                {"gantt": gantt, "heat": heat_data(shown.load_s), "sequences": sequences}
            ),
        }
    )


def _subtitle(shown: Shown) -> str:
    options = shown.header.options
    return (
        f"{shown.header.model.name} on {options.tp * options.pp * options.ranks:,} devices,"
        f" {shown.header.lengths_name}, strategy {options.strategy}, schedule {options.pipeline}"
    )


def _batch_notes(shown: Shown) -> list[str]:
    batch, count = shown.batch, len(shown.summaries)
    status = batch.summary().status
    skipped = [f"{many(n, 'row')} {s}" for s, n in status.items() if s != "placed"]
    lines = [f"In batch {batch.batch}: {', '.join(skipped)}."] if skipped else []
    if count > 1:
        lines.append(
            f"Batch {batch.batch} of {count} is shown in full;"
            " hydraplan show PLAN --html FILE --batch NUMBER shows another."
        )
    return lines


def _search_notes(shown: Shown) -> list[str]:
    one = [shown.batch.summary()]
    rest = "hydraplan show PLAN"
    return [*advice_lines(one, rest), *outside_lines(one), *evener_lines(one)]


def _sequences_left_out(shown: Shown, held: int) -> list[str]:
    number = len(shown.batch.sequences.on_ranks())
    lines = []
    if held < number:
        lines.append(f"the table of sequences holds the {held:,} costliest of {number:,}")
    if len(shown.summaries) > MOST_BATCHES:
        lines.append(f"the table of batches holds {MOST_BATCHES} of {len(shown.summaries)}")
    return lines


def _filled(values: Mapping[str, Any]) -> str:
    """The template with everything in its place."""
    style, script = (_data(name).strip() for name in ("report.css", "report.js"))
    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["text"] = text
    made.filters["plain"] = printable
    template = made.from_string(_data("report.html"))
    return template.render(
        style=Markup(style),
        script=Markup(script),
        style_digest=_digest(style),
        script_digest=_digest(script),
        **values,
    )


def _data(name: str) -> str:
    return (resources.files("hydraplan") / "data" / name).read_text(encoding="utf-8")


def _digest(source: str) -> str:
    """As a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
