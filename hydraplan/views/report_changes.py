"""What changed from an old plan to the one on the page, as tables: what `hydraplan diff` finds.

Source: ours; the comparison is `hydraplan.differ`.
"""

from hydraplan.differ import Row
from hydraplan.errors import many
from hydraplan.files.plandiff import PlanDiff
from hydraplan.views.diff_text import CHOICES, MARKS, percent_text, place_text
from hydraplan.views.report_data import Table

MOST_ROWS = 30
"""Sequences of the page that changed."""


def change_lines(diff: PlanDiff, batch: int) -> list[str]:
    """What changed in words, and what is not compared."""
    if not diff.is_different():
        return ["The two plans are the same."]
    lines = [f"Not all is compared: {reason}." for reason in diff.may.reasons()]
    found = next((b for b in diff.batches if b.batch == batch), None)
    if batch >= diff.num_batches[0]:
        return [*lines, f"The old plan has no batch {batch}."]
    if found is None:
        return [*lines, f"Batch {batch} is the same in both."]
    counts = found.counts
    lines.append(
        f"In batch {batch}, {many(counts.get('degree', 0), 'sequence')} changed degree,"
        f" {counts.get('moved', 0):,} moved, {counts.get('reordered', 0):,} changed place in their"
        f" microbatch; {many(found.num_ops, 'op')} changed."
    )
    return lines


def change_tables(diff: PlanDiff, batch: int) -> list[Table]:
    """Settings, figures of whole plans, then sequences and lanes of the shown batch."""
    found = next((b for b in diff.batches if b.batch == batch), None)
    chosen = [] if found is None else [s for s in found.settings if s.name in CHOICES]
    settings = [[s.name, _listed(s.old), _listed(s.new)] for s in (*diff.settings, *chosen)]
    tables = [
        Table("changed-settings", "What was asked and chosen", ["what", "old", "new"], settings),
        Table(
            "changed-figures",
            "Figures of both plans (simulated, noise-free; each plan by its own costs)",
            ["figure", "old", "new", "change", "verdict"],
            [
                (f.name, f.old, f.new, percent_text(f) or "-", MARKS[f.verdict] or "same")
                for f in diff.figures
            ],
        ),
    ]
    if found is not None and found.rows:
        shown, number = found.rows[:MOST_ROWS], sum(found.counts.values())
        tables.append(
            Table(
                "changed-sequences",
                f"Sequences that changed, {len(shown):,} of {number:,}",
                ["sequence", "tokens", "what", "old", "new"],
                [_row(row) for row in shown],
                "microbatch.order on lanes, ulysses x ring",
            )
        )
    if found is not None and found.lanes:
        tables.append(
            Table(
                "changed-lanes",
                f"Lanes whose load changed most, {len(found.lanes)} of {found.num_lanes}",
                ["lane", "old load s", "new load s", "change"],
                [
                    [x.lane, x.old_s, x.new_s, f"{x.new_s / x.old_s - 1:+.1%}" if x.old_s else "-"]
                    for x in found.lanes
                ],
            )
        )
    return [table for table in tables if table.rows]


def _listed(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else value


def _row(row: Row) -> list[object]:
    what = {"moved": "moved", "degree": "other degree", "reordered": "other order"}
    kind = what.get(row.kind, "other")
    return [str(row.sequence_id), row.length_tokens, kind, place_text(row.old), place_text(row.new)]
