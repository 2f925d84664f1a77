"""Two plan folders compared, a batch at a time, so that memory does not grow with batches."""

from pathlib import Path
from typing import NamedTuple

from hydraplan.differ import (
    BatchDiff,
    Figure,
    Scope,
    Setting,
    batch_diff,
    figure_change,
    header_changes,
    scope,
)
from hydraplan.files.planfile import Plan, read_batch
from hydraplan.metrics import FIGURES, mean_figures


class PlanDiff(NamedTuple):
    """All that differs; `figures` are those of whole plans, `batches` those both plans have.

    Of a batch that is the same in both nothing is kept.
    """

    old: Path
    new: Path
    may: Scope
    settings: list[Setting]
    figures: list[Figure]
    batches: list[BatchDiff]
    num_batches: tuple[int, int]

    def is_different(self) -> bool:
        """Whether anything is."""
        changed = any(figure.verdict != "same" for figure in self.figures)
        unequal = self.num_batches[0] != self.num_batches[1]
        return bool(self.settings or changed or unequal or self.batches)


def compared(old: Plan, new: Plan, tolerance: float, most_rows: int | None) -> PlanDiff:
    """Compare two opened plans; arguments as of `batch_diff`, but `most_rows` are of all batches.

    One row more is kept, so that a reader sees that there are others.
    """
    room = None if most_rows is None else most_rows + 1
    headers = old.header, new.header
    counts = old.header.num_batches, new.header.num_batches
    figures: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    batches = []
    for index in range(max(counts)):
        pair = [
            read_batch(plan, index) if index < count else None
            for plan, count in zip((old, new), counts, strict=True)
        ]
        for batch, kept in zip(pair, figures, strict=True):
            if batch is not None:
                kept.append(batch.figures)
        if pair[0] is not None and pair[1] is not None:
            found = batch_diff(headers, pair[0], pair[1], tolerance, room)
            if found.is_different():
                batches.append(found)
                room = None if room is None else max(0, room - len(found.rows))
    before, after = map(mean_figures, figures)
    may = scope(*headers)
    return PlanDiff(
        old=old.path,
        new=new.path,
        may=may,
        settings=header_changes(*headers),
        figures=[figure_change(n, before[n], after[n], may, tolerance) for n in FIGURES],
        batches=batches,
        num_batches=counts,
    )
