"""A plan as text and as JSON: what was asked, what was found, and the figures beside it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from hydraplan.errors import many, printable
from hydraplan.invariants import CAPS
from hydraplan.metrics import FIGURES, mean_figures
from hydraplan.model import (
    CHOOSING,
    ON_RANKS,
    BatchPlan,
    BatchSummary,
    IntArray,
    Search,
    Sequences,
    StageSkew,
)
from hydraplan.planheader import PlanHeader
from hydraplan.views import console
from hydraplan.views.bytes_text import bytes_object, derived_text, print_bytes
from hydraplan.views.memory_text import limit_text
from hydraplan.views.options_text import changed_options, options_object
from hydraplan.views.stages_text import print_stages, stages_object
from hydraplan.views.window_text import (
    SHOWN_ADVICE,
    advice_lines,
    batches_text,
    outside_lines,
    window_text,
)

K = TypeVar("K", str, int)

WORDS = (
    "M: microbatches; window: numbers of them that allow balance, none if 4 > 2;\n"
    "imbal.: fullest slot over the mean. More words and figures: docs/glossary.md"
)
"""What a newcomer cannot guess of the table of batches."""

SHOWN_BATCHES = 20
"""Batches that get a row of their own; figures are always those of all."""


def plan_object(
    path: Path,
    header: PlanHeader,
    batches: Sequence[BatchSummary],
    skews: Sequence[StageSkew],
    held: Sequence[IntArray],
) -> dict[str, object]:
    """A plan for `--json`: where it lies, what was asked, its layers, and one object a batch."""
    return {
        "plan": path,
        "options": options_object(header.options),
        "live_limit_tokens": header.options.live_limit_tokens,
        "memory_limit_bytes": header.options.memory_bytes,
        "layers": header.layers,
        "route": header.route,
        "batches": [
            batch_object(b) | stages_object(skew) | bytes_object(needed)
            for b, skew, needed in zip(batches, skews, held, strict=True)
        ],
    }


def batch_object(plan: BatchSummary) -> dict[str, object]:
    """One batch for `--json`: identity, counts, window and search, then all figures."""
    search = plan.search
    return {
        "batch": plan.batch,
        "strategy": plan.strategy,
        "winner": plan.winner if plan.strategy in CHOOSING else None,
        "pipeline": plan.pipeline,
        "microbatch_order": plan.microbatch_order,
        "num_microbatches": plan.num_microbatches,
        "num_sequences": plan.num_sequences,
        "num_tokens": plan.num_tokens,
        "status": plan.status,
        "degrees": plan.degrees,
        "window_is_empty": search.window_min > search.window_max,
        **{name: getattr(search, name) for name in search.__dataclass_fields__},
        "bound_gap": search.bound_gap,
        "ops_gap": search.ops_gap,
        **{name: plan.figures[name] for name in FIGURES},
    }


def _layout_text(header: PlanHeader) -> str:
    """A line on how the chunks of a stage lie, where it has several or they were chosen."""
    chunks = len(header.layers[0])
    if chunks == 1 and header.options.pipeline != "auto":
        return ""
    return f"{many(chunks, 'chunk')} a stage on route {header.route},\n"


def print_plan(
    header: PlanHeader,
    batches: Sequence[BatchSummary],
    skews: Sequence[StageSkew],
    held: Sequence[IntArray],
    work: str = "",
) -> None:
    """Summary of a plan: header, a row a batch, figures over all, and one countable last line.

    `work`: a line on the true work, beside the figures.
    """
    options, shown = header.options, batches[:SHOWN_BATCHES]
    console.emit(
        f"{printable(header.model.name)},"
        f" {header.profile_mode} profile {header.profile_digest[:12]},\n"
        f"lengths {printable(header.lengths_name)} {header.lengths_digest[:12]}\n"
        f"tp {options.tp} x pp {options.pp} x ranks {options.ranks}"
        f" = {options.tp * options.pp * options.ranks:,} devices,"
        f" strategy {printable(options.strategy)}, schedule {printable(options.pipeline)},\n"
        f"{_layout_text(header)}{cap_text(header)}{derived_text(options)}"
    )
    if changed := changed_options(options):
        console.emit(changed)
    console.emit()
    console.print_table(
        ["batch", "rows", "tokens", "M", "window", "winner", "order", "iter. s", "imbal."],
        [batch_cells(batch) for batch in shown],
        title="batches (simulated, noise-free)",
        caption=WORDS
        if len(shown) == len(batches)
        else f"and {len(batches) - len(shown)} more: hydraplan show PLAN --batch NUMBER\n{WORDS}",
    )
    for text in (
        *advice_lines(batches, "hydraplan show PLAN --batch NUMBER"),
        *outside_lines(batches),
        *evener_lines(batches),
    ):
        console.emit(text)
    for b in shown:
        if b.search.exact_status:
            console.emit(f"batch {b.batch}: {_exactness(b)}")
        if b.search.ops_status:
            console.emit(f"batch {b.batch}: {_exact_ops(b.search)}")
    if batches[0].search.ops_from:
        console.emit(_by_policy([b.search for b in batches]))
    console.emit()
    status = _total(b.status for b in batches)
    for text in _not_placed(status):
        console.emit(text)
    for b in shown:
        console.emit(f"batch {b.batch} sequences by degree: {_pairs(b.degrees)}")
    if len(batches) > 1:
        degrees = _total(b.degrees for b in batches)
        console.emit(f"all batches, sequences by degree: {_pairs(degrees)}")
    console.emit()
    print_stages(header, batches, skews)
    print_bytes(held, options.memory_bytes)
    figures = mean_figures([b.figures for b in batches])
    console.print_table(
        ["figure", "value"],
        list(figures.items()),
        title="figures, mean over batches",
        caption=f"peak_live_tokens: {allowed}" if (allowed := limit_text(options)) else "",
    )
    if work:
        console.emit(work)
    placed = sum(status[name] for name in ON_RANKS)
    console.emit(
        f"\nPlan: {many(placed, 'sequence')}, {many(options.ranks, 'rank')},"
        f" {many(options.pp, 'stage')},"
        f" {many(sum(b.num_microbatches for b in batches), 'microbatch')} in"
        f" {many(len(batches), 'batch')};"
        f" slot imbalance {figures['slot_imbalance']:.3f},"
        f" pipeline bubble {figures['pipeline_bubble']:.1%}"
        f" ({figures['fill_bubble']:.1%} with every slot at the mean),"
        f" iteration {figures['iteration_s']:.4g} s simulated"
    )


def print_sequences(plan: BatchPlan, limit: int, filters: Mapping[str, int]) -> None:
    """The costliest `limit` sequences of a batch that pass all filters, costliest first."""
    s = plan.sequences
    rows = sorted(
        chosen_rows(s, filters).tolist(), key=lambda i: (-s.predicted_s[i] * s.degree[i], i)
    )
    asked = "".join(f", --{name} {value}" for name, value in filters.items())
    console.print_table(
        ["id", "tokens", "degree", "ulysses x ring", "ranks", "microbatch", "ms a rank"],
        [
            [
                str(s.sequence_id[i]),
                s.length_tokens[i],
                s.degree[i],
                f"{s.ulysses_size[i]} x {s.ring_size[i]}",
                f"{s.first_rank[i]}..{s.first_rank[i] + s.degree[i] - 1}",
                s.microbatch[i],
                1e3 * s.predicted_s[i],
            ]
            for i in rows[:limit]
        ],
        title=f"costliest {min(limit, len(rows))} of {many(len(rows), 'sequence')} of batch"
        f" {plan.batch}{asked}",
    )
    for i in np.flatnonzero(s.sequence_id == filters.get("sequence", -1)).tolist():
        if s.degree[i] < 1:
            console.emit(f"row {s.sequence_id[i]} is on no rank: {s.status[i]}")


def chosen_rows(rows: Sequences, filters: Mapping[str, int]) -> IntArray:
    """Rows on ranks that a lane shares, of a microbatch, of a degree, or one by its id."""
    keep = np.zeros(len(rows), bool)
    keep[rows.on_ranks()] = True
    if "rank" in filters:
        keep &= rows.first_rank <= filters["rank"]
        keep &= filters["rank"] < rows.first_rank + rows.degree
    columns = {"microbatch": "microbatch", "degree": "degree", "sequence": "sequence_id"}
    for name in columns.keys() & filters.keys():
        keep &= getattr(rows, columns[name]) == filters[name]
    return np.flatnonzero(keep)


def batch_cells(batch: BatchSummary) -> tuple[object, ...]:
    """One row of the table of batches."""
    return (
        batch.batch,
        batch.num_sequences,
        batch.num_tokens,
        batch.num_microbatches,
        window_text(batch),
        winner_text(batch),
        batch.microbatch_order,
        batch.figures["iteration_s"],
        batch.figures["slot_imbalance"],
    )


def winner_text(plan: BatchSummary) -> str:
    """Which candidate won; a dash for a strategy that has one kind only."""
    return plan.winner if plan.strategy in CHOOSING else "-"


def cap_text(header: PlanHeader) -> str:
    """What the strategy of a plan promises to keep within the cap."""
    promised = next((name for name in header.invariants if name in CAPS), "cap")
    return CAPS[promised].format(cap=f"{header.options.max_tokens_per_rank:,}")


def interleaving_note(header: PlanHeader, batches: Sequence[BatchSummary]) -> str:
    """That Megatron-Core would not interleave some batch; "" if it would, or is not asked to."""
    pp = header.options.pp
    odd = [b for b in batches if b.num_microbatches % pp]
    if header.options.pipeline != "interleaved" or not odd:
        return ""
    return (
        f"note: batch {odd[0].batch} has {many(odd[0].num_microbatches, 'microbatch')}, no multiple"
        f" of pp {pp}, as Megatron-Core's interleaved schedule wants it; --microbatch-multiple {pp}"
        f" plans one ({len(odd)} of {len(batches)} batches)"
    )


EVENER = 0.05
"""Slot imbalance by which another plan must be lower to be worth a line. Our choice."""


def evener_lines(batches: Sequence[BatchSummary]) -> list[str]:
    """That the most even plan of a batch was not taken, since it costs more time; a line each.

    More than `SHOWN_ADVICE` of them become one line.
    """
    lines, at, slower = [], [], []
    for b in batches:
        s = b.search
        times_s = {"memory": s.memory_s, "load-driven": s.fastest_load_driven_s}
        taken_s = times_s.get(b.winner, b.figures["iteration_s"])
        even = s.load_driven_slot_imbalance
        if even <= b.figures["slot_imbalance"] - EVENER and s.load_driven_s > taken_s:
            at.append(b.batch)
            slower.append(s.load_driven_s / taken_s - 1)
            lines.append(
                f"batch {b.batch}: a plan with slot imbalance {even:.2f} exists,"
                f" {slower[-1]:.1%} slower"
            )
    if len(lines) <= SHOWN_ADVICE:
        return lines
    return [
        f"{batches_text(at)}: more even plans exist, {min(slower):.1%} to {max(slower):.1%} slower"
    ]


def _exactness(plan: BatchSummary) -> str:
    """What `exact` proved: status, fullest slot, bound and the gap between them."""
    search = plan.search
    return (
        f"{search.exact_status}: fullest slot {search.fullest_slot_s:.4g} s, bound"
        f" {search.bound_s:.4g} s, gap {search.bound_gap:.2%} (loads summed; no placement in"
        f" {many(plan.num_microbatches, 'microbatch')} is below the bound)"
    )


def _exact_ops(search: Search) -> str:
    """What schedule `exact` proved: status, time on one lane, bound, gap and the work it took."""
    return (
        f"op order {search.ops_status}: {search.ops_time_s:.4g} s on one lane, bound"
        f" {search.ops_bound_s:.4g} s, gap {search.ops_gap:.2%} after"
        f" {search.ops_deterministic_s:.3g} deterministic seconds (no op order within the limit is"
        " below the bound)"
    )


def _by_policy(found: Sequence[Search]) -> str:
    """How often each order was taken under schedule `policy`, and how the policy itself did."""
    taken = Counter(search.ops_from for search in found).most_common()
    behind = sum(search.ops_policy_s / search.ops_guard_s - 1 for search in found) / len(found)
    side = "behind" if behind > 0 else "ahead of"
    counts = ", ".join(f"{name} in {many(count, 'batch')}" for name, count in taken)
    return (
        f"op orders taken: {counts}; before any search the policy's own is {abs(behind):.2%} {side}"
        " the best of portfolio and static schedules (mean over noise scenarios)"
    )


def _total(counts: Iterable[Mapping[K, int]]) -> Counter[K]:
    result: Counter[K] = Counter()
    for count in counts:
        result.update(count)
    return result


def _pairs(degrees: Mapping[int, int]) -> str:
    return ", ".join(f"{degree}: {count}" for degree, count in sorted(degrees.items()))


def _not_placed(status: Counter[str]) -> list[str]:
    texts = {
        "empty": "skipped: no token",
        "overlong": "skipped: too long for any degree",
        "truncated": "cut to what the largest degree holds",
    }
    return [f"{many(status[name], 'row')} {text}" for name, text in texts.items() if status[name]]
