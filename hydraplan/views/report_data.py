"""What stands on the page of a plan, as tables and lines: pure, from a plan that was read.

Every value becomes text here or in the template that escapes it; nothing of a plan is trusted to be
plain. Figures are those of `hydraplan.metrics`, words those of the terminal views.

Source: ours.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from hydraplan.errors import many, printable
from hydraplan.host import GIB
from hydraplan.memory_limit import largest_term
from hydraplan.metrics import FIGURES, mean_figures
from hydraplan.model import BatchPlan, BatchSummary, FloatArray, IntArray, StageSkew, Timeline
from hydraplan.planheader import PlanHeader
from hydraplan.views import console
from hydraplan.views.bytes_text import ASSUMED, derived_text
from hydraplan.views.options_text import changed_options
from hydraplan.views.plan_text import batch_cells, cap_text
from hydraplan.views.report_charts import heat_runs
from hydraplan.views.report_gantt import waits_s

MOST_SEQUENCES = 16_384
"""Sequences that the page holds, the costliest ones; a row takes some 50 bytes."""

STILL_SEQUENCES = 25
"""Those of them that stand there where scripts do not run."""

MOST_BATCHES = 100
HEAVIEST = 8
NUMBER = re.compile(r"[-+]?[0-9][0-9,.]*(e-?[0-9]+)?%?|-")
SHARES = ("busy", "pipeline_bubble", "dp_bubble", "group_wait", "grad_sync")
HEAT_PARTS = 9999
"""Steps of the fullest slot in which the page holds loads."""


class Shown(NamedTuple):
    """A plan as the page shows it: all batches in short, one in full.

    `held`: bytes of that batch as `planned_bytes` has it. `load_s`: seconds of its slots, shape
    (lanes, microbatches).
    """

    name: str
    header: PlanHeader
    summaries: Sequence[BatchSummary]
    skew: StageSkew
    held: IntArray
    batch: BatchPlan
    load_s: FloatArray
    timeline: Timeline


class Table(NamedTuple):
    """A table of the page; the first column names the row."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers alone."""
        return [
            all(NUMBER.fullmatch(text(row[i])) for row in self.rows)
            for i in range(len(self.columns))
        ]


def text(value: object) -> str:
    """A value as the terminal shows it, control characters as escapes; markup of ours as it is."""
    return value if isinstance(value, Markup) else printable(console.cell(value))


def provenance(shown: Shown) -> Table:
    """Where a plan comes from and what was asked."""
    header, options = shown.header, shown.header.options
    devices = options.tp * options.pp * options.ranks
    changed = changed_options(options).removeprefix("options: ")
    rows = [
        ["model", header.model.name],
        ["profile", f"{header.profile_mode}, {header.profile_digest[:12]}"],
        ["lengths", f"{header.lengths_name}, {header.lengths_digest[:12]}"],
        ["devices", f"{devices:,} = tp {options.tp} x pp {options.pp} x ranks {options.ranks}"],
        ["strategy", options.strategy],
        ["schedule", f"{options.pipeline}, route {header.route}"],
        ["cap", f"{cap_text(header)}{derived_text(options)}".replace("\n", " ")],
        ["other options", changed or "as by default"],
        ["promises", ", ".join(header.invariants)],
        ["made by", f"hydraplan {header.tool_version}"],
    ]
    return Table("provenance", "Where this plan comes from", ["what", "value"], rows)


def tiles(shown: Shown) -> list[tuple[str, str]]:
    """The five figures of the shown batch that people look at first."""
    figures = shown.batch.figures
    return [
        (f"{figures['iteration_s']:.4g} s", "iteration, simulated"),
        (f"{figures['lower_bound_s']:.4g} s", "lower bound of any plan"),
        (f"{figures['efficiency']:.1%}", "efficiency, bound over iteration"),
        (f"{figures['slot_imbalance']:.3f}", "slot imbalance, fullest over mean"),
        (f"{figures['pipeline_bubble']:.1%}", "pipeline bubble"),
    ]


def shares_table(shown: Shown) -> Table:
    """Where the time of the shown batch goes."""
    figures = shown.batch.figures
    means = {
        "busy": "lanes at work",
        "pipeline_bubble": "idle, waiting for other stages; "
        f"{figures['fill_bubble']:.1%} with every slot at the mean",
        "dp_bubble": "done, waiting for the latest lane",
        "group_wait": "waiting for members of context-parallel groups",
        "grad_sync": "gradient sync that nothing hides",
    }
    rows = [
        [Markup('<span class="key {}"></span>').format(name) + name, f"{figures[name]:.1%}", why]
        for name, why in means.items()
    ]
    return Table(
        "shares",
        "Shares of the iteration, as they stand in the bar",
        ["share", "of it", "what"],
        rows,
    )


def figures_table(shown: Shown) -> Table:
    """All figures of the shown batch, and of all batches where there are several."""
    one = shown.batch.figures
    if len(shown.summaries) == 1:
        rows: list[list[object]] = [[name, one[name]] for name in FIGURES]
        return Table("figures", "All figures (simulated, noise-free)", ["figure", "value"], rows)
    every = mean_figures([b.figures for b in shown.summaries])
    return Table(
        "figures",
        "All figures (simulated, noise-free)",
        ["figure", f"batch {shown.batch.batch}", "all batches"],
        [[name, one[name], every[name]] for name in FIGURES],
        "Over all batches the mean, or the most of what is a bound",
    )


def slowest_table(shown: Shown, old_s: FloatArray | None) -> Table:
    """The five busiest lanes over all microbatches."""
    lane_s = shown.load_s.sum(axis=1)
    speed = shown.header.options.rank_speed
    columns = ["lane", "load s", "over mean", "fullest microbatch"]
    rows = []
    for lane in np.argsort(-lane_s, kind="stable")[:5].tolist():
        over = lane_s[lane] / lane_s.mean()
        row = [lane, lane_s[lane], f"{over - 1:+.1%}", int(shown.load_s[lane].argmax())]
        row += [] if speed is None else [speed[lane]]
        rows.append(row + ([] if old_s is None else [old_s[lane]]))
    columns += [] if speed is None else ["speed of its device"]
    columns += [] if old_s is None else ["old load s"]
    return Table("slowest", "The five busiest lanes", columns, rows)


def heaviest_table(shown: Shown) -> Table:
    """The heaviest microbatches, by their fullest slot, and the costliest sequence in it."""
    load_s, placed = shown.load_s, shown.batch.sequences.placed()
    lanes, rows = load_s.argmax(axis=0), []
    tops_s = load_s.max(axis=0)
    for microbatch in np.argsort(-tops_s, kind="stable")[:HEAVIEST].tolist():
        lane = int(lanes[microbatch])
        inside = np.flatnonzero(
            (placed.microbatch == microbatch)
            & (placed.first_rank <= lane)
            & (lane < placed.first_rank + placed.degree)
        )
        costliest = "-"  # a slow lane may take longest for the calls of an empty slot
        if len(inside):
            top = int(inside[placed.predicted_s[inside].argmax()])
            ranks = many(int(placed.degree[top]), "rank")
            size = f"{placed.length_tokens[top]:,} tokens on {ranks}"
            costliest = f"{placed.sequence_id[top]} ({size})"
        rows.append(
            [
                microbatch,
                lane,
                tops_s[microbatch],
                f"{tops_s[microbatch] / load_s.mean() - 1:+.0%}",
                load_s[:, microbatch].mean(),
                len(inside),
                costliest,
            ]
        )
    columns = ["microbatch", "fullest on lane", "load s", "over mean slot", "mean of its lanes s"]
    columns += ["sequences there", "the costliest"]
    return Table("heaviest", "The heaviest microbatches", columns, rows)


def stages_table(shown: Shown) -> Table:
    """Work, idle time and memory of every stage, of the shown batch."""
    skew, held = shown.skew, shown.held
    limit = shown.header.options.memory_bytes
    rows: list[list[object]] = []
    for stage, layers in enumerate(shown.header.layers):
        idle_s, wait_s = waits_s(shown.timeline, stage)
        needed = int(held[:, stage].sum())
        needs = [f"{needed / GIB:.3f}", *([] if limit is None else [f"{needed / limit:.1%}"])]
        work = [stage, " + ".join(map(str, layers)), 1e3 * skew.stage_s[stage]]
        waits = [float(idle_s.sum()), float(wait_s.sum())]
        rows.append([*work, *waits, *needs, largest_term(held, stage)])
    return Table(
        "stages",
        "Stages: F + B + W of a mean microbatch; what a mean lane idles between ops and waits"
        " inside them; what the fullest rank holds",
        ["stage", "layers", "ms a microbatch", "idle s", "wait s", "GiB"]
        + ([] if limit is None else [f"of {limit / GIB:.2f}"])
        + ["largest term"],
        rows,
        ASSUMED if held[-1].any() else "",
    )


def batches_table(shown: Shown) -> Table:
    """A row a batch."""
    rest = len(shown.summaries) - MOST_BATCHES
    return Table(
        "batches",
        "Batches (simulated, noise-free)",
        ["batch", "rows", "tokens", "M", "window", "winner", "order", "iteration s", "imbalance"],
        [batch_cells(batch) for batch in shown.summaries[:MOST_BATCHES]],
        f"and {many(rest, 'more batch')}" if rest > 0 else "",
    )


def sequence_rows(batch: BatchPlan) -> list[list[int]]:
    """The costliest sequences for the script, as whole numbers.

    Id, tokens, degree, ulysses, ring, first rank, microbatch, microseconds a rank.
    """
    s = batch.sequences
    on_ranks = s.on_ranks()
    work = s.predicted_s[on_ranks] * s.degree[on_ranks]
    rows = on_ranks[np.argsort(-work, kind="stable")][:MOST_SEQUENCES]
    names = ("sequence_id", "length_tokens", "degree", "ulysses_size", "ring_size", "first_rank")
    columns = [getattr(s, name)[rows] for name in (*names, "microbatch")]
    micro = np.rint(1e6 * s.predicted_s[rows]).astype(np.int64)
    found: list[list[int]] = np.stack([*columns, micro]).T.tolist()
    return found


SEQUENCE_COLUMNS = (
    "sequence",
    "tokens",
    "degree",
    "ulysses x ring",
    "ranks",
    "microbatch",
    "ms a rank",
)


def sequences_table(batch: BatchPlan, rows: Sequence[Sequence[int]]) -> Table:
    """The first of them, as the script writes them too."""
    number = len(batch.sequences.on_ranks())
    held = f"the costliest {len(rows):,} of {number:,}" if len(rows) < number else f"all {number:,}"
    return Table(
        "sequences",
        f"Sequences of batch {batch.batch}, costliest first; the page holds {held}",
        SEQUENCE_COLUMNS,
        [
            (str(i), tokens, d, f"{u} x {r}", _span(first, d), m, f"{us / 1e3:.3f}")
            for i, tokens, d, u, r, first, m, us in rows[:STILL_SEQUENCES]
        ],
    )


def _span(first: int, count: int) -> str:
    return f"{first}-{first + count - 1}" if count > 1 else str(first)


def heat_data(load_s: FloatArray) -> dict[str, Any]:
    """What the script reads of the map: where its cells begin, and loads in parts of the most."""
    cells, lanes, columns = heat_runs(load_s)
    most = float(cells.max()) or 1.0
    parts = np.rint(cells / most * HEAT_PARTS).astype(int).tolist()
    return {"lanes": lanes, "microbatches": columns, "part_s": most / HEAT_PARTS, "cells": parts}
