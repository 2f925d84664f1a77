"""Two plans beside each other, as text and as JSON: provenance first, figures, rows, lanes, ops."""

from collections import Counter
from collections.abc import Sequence

from hydraplan.differ import MOST_LANES, BatchDiff, Figure, Place, Row
from hydraplan.errors import many
from hydraplan.files.plandiff import PlanDiff
from hydraplan.views import console

SHOWN_SETTINGS = 20
MOST_CHANGE = 10.0
CHOICES = ("num_microbatches", "strategy", "winner", "microbatch_order", "pipeline")
"""What a batch says of itself that people look at; all else of its search is for `--json`."""

MARKS = {
    "better": "+ better",
    "worse": "! worse",
    "changed": "changed",
    "same": "",
    "not comparable": "-",
}
LONGEST_VALUE = 40


def diff_object(diff: PlanDiff) -> dict[str, object]:
    """A comparison for `--json`."""
    return {
        "old": diff.old,
        "new": diff.new,
        "is_different": diff.is_different(),
        "left_out": diff.may.reasons(),
        "settings": [setting._asdict() for setting in diff.settings],
        "figures": [figure._asdict() | {"change": figure.change} for figure in diff.figures],
        "num_batches": {"old": diff.num_batches[0], "new": diff.num_batches[1]},
        "batches": [_batch_object(batch) for batch in diff.batches],
    }


def _batch_object(batch: BatchDiff) -> dict[str, object]:
    return {
        "batch": batch.batch,
        "settings": [setting._asdict() for setting in batch.settings],
        "figures": [figure._asdict() | {"change": figure.change} for figure in batch.figures],
        "sequences_changed": dict(batch.counts),
        "sequences": [
            row._asdict() | {"old": row.old._asdict(), "new": row.new._asdict()}
            for row in batch.rows
        ],
        "sequences_only_old": batch.only_old,
        "sequences_only_new": batch.only_new,
        "lanes": None if batch.lanes is None else [lane._asdict() for lane in batch.lanes],
        "ops_changed": batch.num_ops,
        "op_times_changed": batch.num_times,
    }


def print_diff(diff: PlanDiff, only_changed: bool, most_rows: int) -> None:
    """Print a comparison; a plan and itself have nothing but a last line."""
    if not diff.is_different():
        console.emit("Diff: the two plans are the same")
        return
    for reason in diff.may.reasons():
        console.emit(f"note: {reason}")
    _print_settings(diff)
    _print_figures(diff.figures, only_changed)
    _print_rows([row for batch in diff.batches for row in batch.rows], most_rows)
    _print_lanes(diff.batches)
    console.emit(_last_line(diff))


def _print_settings(diff: PlanDiff) -> None:
    found = [[s.name, *_both(s.old, s.new)] for s in diff.settings]
    if diff.num_batches[0] != diff.num_batches[1]:
        found.append(["batches", *map(str, diff.num_batches)])
    searched = 0
    for batch in diff.batches:
        chosen = [s for s in batch.settings if s.name in CHOICES]
        searched += len(batch.settings) - len(chosen)
        found += [[f"batch {batch.batch}: {s.name}", _shown(s.old), _shown(s.new)] for s in chosen]
    if found or searched:
        rest = f"{many(len(found) - SHOWN_SETTINGS, 'more setting')}"
        more = [rest] if len(found) > SHOWN_SETTINGS else []
        more += [f"{many(searched, 'figure')} of the searches"] if searched else []
        console.print_table(
            ["setting", "old", "new"],
            found[:SHOWN_SETTINGS],
            title="what was asked and chosen",
            caption=f"and {' and '.join(more)}: --json" if more else "",
        )
        console.emit()


def _print_figures(figures: Sequence[Figure], only_changed: bool) -> None:
    shown = [f for f in figures if f.verdict != "same" or not only_changed]
    if not shown:
        return
    console.print_table(
        ["figure", "old", "new", "change", "%", "verdict"],
        [
            [
                f.name,
                *map(_number, (f.old, f.new, f.new - f.old)),
                percent_text(f),
                MARKS[f.verdict],
            ]
            for f in shown
        ],
        title="figures (simulated, noise-free; each plan by its own costs)",
    )
    console.emit()


def _number(value: float) -> str:
    """Four digits, so that the widest figures leave room for their names."""
    return f"{value:.0f}" if abs(value) < 1e6 and value.is_integer() else f"{value:.4g}"


def percent_text(figure: Figure) -> str:
    """Its relative change; "" where there is none to tell."""
    if figure.verdict in ("same", "not comparable"):
        return ""
    return f"{figure.change:+.2%}" if abs(figure.change) < MOST_CHANGE else f"> {MOST_CHANGE:.0%}"


def _print_rows(rows: Sequence[Row], most: int) -> None:
    if not rows:
        return
    console.print_table(
        ["batch", "sequence", "tokens", "what", "old", "new"],
        [
            [r.batch, r.sequence_id, r.length_tokens, r.kind, place_text(r.old), place_text(r.new)]
            for r in rows[:most]
        ],
        title="sequences that changed (microbatch.order on lanes, ulysses x ring)",
        caption="" if len(rows) <= most else "and more: --limit NUMBER, or --json",
    )
    console.emit()


def place_text(place: Place) -> str:
    """`3.0 on 4-7, 2x2`; the status of a row without a place."""
    if place.degree < 1:
        return place.status
    last = place.first_rank + place.degree - 1
    lanes = str(place.first_rank) if place.degree == 1 else f"{place.first_rank}-{last}"
    text = f"{place.microbatch}.{place.order} on {lanes}, {place.ulysses_size}x{place.ring_size}"
    return text if place.status == "placed" else f"{text} ({place.status})"


def _print_lanes(batches: Sequence[BatchDiff]) -> None:
    lanes = [lane for batch in batches for lane in batch.lanes or ()]
    if not lanes:
        return
    worst = sorted(lanes, key=lambda lane: -abs(lane.new_s - lane.old_s))[:MOST_LANES]
    console.print_table(
        ["batch", "lane", "old_s", "new_s", "%"],
        [
            [x.batch, x.lane, x.old_s, x.new_s, f"{x.new_s / x.old_s - 1:+.1%}" if x.old_s else "-"]
            for x in worst
        ],
        title=f"lanes whose load changed most, of {sum(batch.num_lanes for batch in batches):,}",
    )
    console.emit()


def _both(old: object, new: object) -> tuple[str, str]:
    """Two values; of long lists of words only those that the other has not."""
    if not (isinstance(old, tuple) and isinstance(new, tuple)):
        return _shown(old), _shown(new)
    more = [[x for x in one if x not in other] for one, other in ((old, new), (new, old))]
    if not any(more) or not all(isinstance(x, str) for x in (*old, *new)):
        return _shown(old), _shown(new)
    first, second = (f"also {', '.join(found)}" if found else "no others" for found in more)
    return _shown(first), _shown(second)


def _shown(value: object) -> str:
    text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def _last_line(diff: PlanDiff) -> str:
    """What changed, counted."""
    verdicts = Counter(figure.verdict for figure in diff.figures)
    counts: Counter[str] = Counter()
    for batch in diff.batches:
        counts.update(batch.counts)
    parts = [
        f"{verdicts['better']} figures better, {verdicts['worse']} worse",
        f"{many(counts['degree'], 'sequence')} changed degree",
        f"{counts['moved']:,} moved",
        f"{counts['reordered']:,} reordered",
        f"{many(sum(batch.num_ops for batch in diff.batches), 'op')} changed",
        f"{len(diff.batches)} of {many(min(diff.num_batches), 'batch')} differ",
    ]
    return f"Diff: {', '.join(parts)}"
