"""A plan as text and as JSON: what was asked, what was found, and the figures beside it."""

from collections import Counter
from collections.abc import Sequence

from hydraplan.metrics import FIGURES, mean_figures
from hydraplan.model import ON_RANKS, BatchPlan
from hydraplan.planheader import PlanHeader
from hydraplan.views import console


def batch_object(plan: BatchPlan) -> dict[str, object]:
    """One batch for `--json`: identity, counts, window and search, then all figures."""
    search = plan.search
    return {
        "batch": plan.batch,
        "strategy": plan.strategy,
        "winner": plan.winner,
        "pipeline": plan.pipeline,
        "microbatch_order": plan.microbatch_order,
        "num_microbatches": plan.num_microbatches,
        "num_sequences": len(plan.sequences),
        "num_tokens": int(plan.sequences.placed().length_tokens.sum()),
        "status": dict(sorted(Counter(plan.sequences.status).items())),
        "degrees": degree_counts(plan),
        "window_is_empty": search.window_min > search.window_max,
        **{name: getattr(search, name) for name in search.__dataclass_fields__},
        **{name: plan.figures[name] for name in FIGURES},
    }


def degree_counts(plan: BatchPlan) -> dict[int, int]:
    """How many placed sequences have each degree."""
    return dict(sorted(Counter(plan.sequences.placed().degree.tolist()).items()))


def print_plan(header: PlanHeader, batches: Sequence[BatchPlan]) -> None:
    """Summary of a plan: header, one row a batch, figures over all, and one countable last line."""
    options = header.options
    console.emit(
        f"{header.model.name}, {header.profile_mode} profile {header.profile_digest[:12]},"
        f" lengths {header.lengths_name} {header.lengths_digest[:12]}"
    )
    console.emit(
        f"tp {options.tp} x pp {options.pp} x ranks {options.ranks}"
        f" = {options.tp * options.pp * options.ranks} devices,"
        f" at most {options.max_tokens_per_rank:,} tokens a rank and microbatch,"
        f" strategy {options.strategy}, schedule {options.pipeline}\n"
    )
    console.print_table(
        ["batch", "rows", "tokens", "M", "window", "winner", "order", "iter. s", "imbal."],
        [
            [
                b.batch,
                len(b.sequences),
                int(b.sequences.placed().length_tokens.sum()),
                b.num_microbatches,
                window_text(b),
                b.winner,
                b.microbatch_order,
                b.figures["iteration_s"],
                b.figures["slot_imbalance"],
            ]
            for b in batches
        ],
        title="batches (simulated, noise-free)",
    )
    console.emit()
    for text in _not_placed(batches):
        console.emit(text)
    for b in batches:
        degrees = ", ".join(f"{d}: {n}" for d, n in degree_counts(b).items())
        console.emit(f"batch {b.batch} sequences by degree: {degrees}")
    console.emit()
    figures = mean_figures([b.figures for b in batches])
    console.print_table(
        ["figure", "value"], list(figures.items()), title="figures, mean over batches"
    )
    placed = sum(s in ON_RANKS for b in batches for s in b.sequences.status)
    console.emit(
        f"\nPlan: {placed} sequences, {options.ranks} ranks, {options.pp} stages,"
        f" {sum(b.num_microbatches for b in batches)} microbatches in {len(batches)} batches;"
        f" slot imbalance {figures['slot_imbalance']:.3f},"
        f" pipeline bubble {figures['pipeline_bubble']:.1%}"
        f" (fill {figures['fill_bubble']:.1%}), iteration {figures['iteration_s']:.4g} s simulated"
    )


def print_sequences(plan: BatchPlan, limit: int) -> None:
    """The costliest `limit` sequences of a batch, costliest first."""
    s = plan.sequences
    rows = sorted(s.on_ranks().tolist(), key=lambda i: (-s.predicted_s[i] * s.degree[i], i))
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
        title=f"costliest {min(limit, len(rows))} of {len(rows)} sequences of batch {plan.batch}",
    )


def window_text(plan: BatchPlan) -> str:
    """The window of microbatch counts, as people read it."""
    low, high = plan.search.window_min, plan.search.window_max
    return f"{low}..{high}" if low <= high else f"empty ({low} > {high})"


def _not_placed(batches: Sequence[BatchPlan]) -> list[str]:
    counts: Counter[str] = Counter(s for b in batches for s in b.sequences.status)
    texts = {
        "empty": "rows hold no token and are skipped",
        "overlong": "rows are too long for any degree and are skipped",
        "truncated": "rows are cut to what the largest degree holds",
    }
    return [f"{counts[name]} {text}" for name, text in texts.items() if counts[name]]
