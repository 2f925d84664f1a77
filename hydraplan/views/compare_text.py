"""`compare` as a table and as JSON; every number says what it is and where it comes from."""

from collections import Counter
from collections.abc import Sequence

from hydraplan.errors import many, printable
from hydraplan.files.profilefile import ProfileHeader
from hydraplan.invariants import CAPS
from hydraplan.model import Comparison
from hydraplan.planheader import PlanOptions
from hydraplan.views import console
from hydraplan.views.bytes_text import bytes_object, derived_text, print_needed
from hydraplan.views.memory_text import limit_text
from hydraplan.views.options_text import changed_options
from hydraplan.views.plan_text import batch_object, winner_text
from hydraplan.views.window_text import advice_lines, window_text


def row_object(row: Comparison) -> dict[str, object]:
    """One row for `--json`: who, what it chose, all figures, and what planning cost."""
    return {
        "strategy": row.strategy,
        "microbatch_order": row.microbatch_order,
        "chunks": row.num_chunks,
        "route": row.route,
        "winner": [batch_object(b)["winner"] for b in row.batches],
        "num_microbatches": [b.num_microbatches for b in row.batches],
        "window": [[b.search.window_min, b.search.window_max] for b in row.batches],
        "window_advice": [b.search.window_advice for b in row.batches],
        "status": _status(row),
        "cap": row.cap,
        "exact_status": [b.search.exact_status for b in row.batches],
        "bound_gap": [b.search.bound_gap for b in row.batches],
        **row.figures,
        **bytes_object(row.needed_bytes),
        "plan_s": row.plan_s,
        "planning_s": row.planning_s,
    }


def print_rows(options: PlanOptions, profile: ProfileHeader, rows: Sequence[Comparison]) -> None:
    """Two tables: how fast each plan is and why, and what planning it took.

    The window is that of rows and options, so its advice is the same for every strategy.
    """
    count = len(rows[0].batches)
    console.emit(
        f"{printable(profile.model.name)}, {profile.mode} profile ({printable(profile.device)}),\n"
        f"tp {options.tp} x pp {options.pp} x ranks {options.ranks}, schedule {options.pipeline},"
        f" {many(count, 'batch')},\n"
        f"at most {options.max_tokens_per_rank:,} tokens a rank and microbatch"
        f"{derived_text(options)}"
    )
    if allowed := limit_text(options):
        console.emit(allowed)
    if changed := changed_options(options):
        console.emit(changed)
    console.emit()
    other_caps = list(dict.fromkeys(row.cap for row in rows if row.cap != "cap"))
    marks = {cap: f" ({number})" for number, cap in enumerate(other_caps, 1)}
    best_s = min(row.figures["iteration_s"] for row in rows)
    console.print_table(
        ["strategy", "order", "M", "iter. s", "x best", "pipe", "fill", "dp", "imb."],
        [
            [
                row.strategy + marks.get(row.cap, ""),
                row.microbatch_order,
                round(sum(b.num_microbatches for b in row.batches) / len(row.batches), 1),
                row.figures["iteration_s"],
                row.figures["iteration_s"] / best_s,
                *(f"{row.figures[name]:.1%}" for name in _SHARES),
                row.figures["slot_imbalance"],
            ]
            for row in rows
        ],
        title="simulated, noise-free, mean over batches",
        caption="pipe, fill, dp: pipeline bubble, the same with every slot at the mean (may be\n"
        "more), and data-parallel bubble, shares of the iteration. imb.: fullest slot\n"
        "over the mean.",
    )
    for cap, mark in marks.items():
        most = max(row.figures["max_tokens_per_rank"] for row in rows if row.cap == cap)
        promise = CAPS[cap].format(cap=f"{options.max_tokens_per_rank:,}")
        console.emit(f"{mark.strip()} another cap: {promise}; up to {most:,.0f} rows here")
    for batches in (row.batches for row in rows if row.strategy == "exact"):
        proven = sum(b.search.exact_status == "optimal" for b in batches)
        gap = max(b.search.bound_gap for b in batches)
        console.emit(
            f"exact: optimal in {proven} of {len(batches)} batches, fullest slot at most {gap:.2%}"
            " above its bound"
        )
    console.emit()
    is_free = options.pipeline == "auto"  # to choose a layout, for each row another
    console.print_table(
        [
            "strategy",
            "order",
            *["chunks"] * is_free,
            "won by",
            "window of M",
            "one plan",
            "search",
        ],
        [
            [
                row.strategy,
                row.microbatch_order,
                *[_layout(row)] * is_free,
                ", ".join(sorted({winner_text(b) for b in row.batches})),
                window_text(row.batches[0]),
                1e3 * row.plan_s,
                1e3 * row.planning_s,
            ]
            for row in rows
        ],
        title="planning, warm CPU ms a batch; window of the first batch",
    )
    console.emit()
    print_needed(
        [(row.strategy, row.microbatch_order, row.needed_bytes) for row in rows],
        options.memory_bytes,
    )
    for text in advice_lines(rows[0].batches, "hydraplan compare --json"):
        console.emit(text)
    unlike = {name: count for name, count in _status(rows[0]).items() if name != "placed"}
    if unlike:
        console.emit("\nrows not placed whole: " + ", ".join(f"{n} {s}" for s, n in unlike.items()))


_SHARES = ("pipeline_bubble", "fill_bubble", "dp_bubble")


def _layout(row: Comparison) -> str:
    return str(row.num_chunks) if row.num_chunks == 1 else f"{row.num_chunks} {row.route}"


def _status(row: Comparison) -> dict[str, int]:
    return dict(sorted(sum((Counter(b.status) for b in row.batches), Counter()).items()))
