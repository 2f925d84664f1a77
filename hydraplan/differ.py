"""What is different in two plans: where they come from, their figures, where every row lies.

Every field of a plan is compared, so plans without a difference are the same plan. What has no
meaning is left out and said: rows of other lengths, loads of other pools, seconds by other costs.

Pure; knows nothing of files or of how a difference is shown. Source: ours.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from hydraplan.invariants import check_plan
from hydraplan.metrics import FIGURES, LOWER_IS_BETTER
from hydraplan.model import ARRAY_COLUMNS, BatchPlan, FloatArray, Sequences
from hydraplan.planheader import PlanHeader
from hydraplan.slots import slot_times

Kind = Literal["degree", "moved", "reordered", "other"]
"""How a row changed, the first that holds: shared by other ranks, elsewhere, later or earlier."""

Verdict = Literal["better", "worse", "changed", "same", "not comparable"]

IN_SECONDS = ("iteration_s", "lower_bound_s")
OF_ALL_ROWS = ("sent_bytes", "padding_tokens", "num_groups", "num_shapes")
"""Figures that mean something between plans of the same rows alone, with those in seconds."""

MOST_LANES = 5
"""Lanes of a batch that are kept where rows are limited, too."""

NEUTRAL = frozenset({"lower_bound_s", "num_shapes", "displacement_mean_rows"})
"""Figures that are neither good nor bad."""


class Setting(NamedTuple):
    """Something that was asked, or where a plan comes from."""

    name: str
    old: object
    new: object


class Figure(NamedTuple):
    """A figure in both plans; `verdict` says what the change is worth."""

    name: str
    old: float
    new: float
    verdict: Verdict

    @property
    def change(self) -> float:
        """Relative change; 0.1 is 10 % more."""
        if self.old == 0:
            return 0.0 if self.new == 0 else float("inf")
        return self.new / self.old - 1


class Place(NamedTuple):
    """Where a row lies; -1 where it has no place."""

    microbatch: int
    order: int
    first_rank: int
    degree: int
    ulysses_size: int
    ring_size: int
    status: str


class Row(NamedTuple):
    """A row that changed."""

    batch: int
    sequence_id: int
    length_tokens: int
    kind: Kind
    old: Place
    new: Place


class Lane(NamedTuple):
    """A lane's load over all microbatches of a batch, seconds by each plan's own costs."""

    batch: int
    lane: int
    old_s: float
    new_s: float


@dataclass(frozen=True, slots=True)
class BatchDiff:
    """One batch in both plans.

    `counts`: rows by how they changed. `only_old`, `only_new`: rows that one plan alone has.
    `lanes`: those whose load differs, `num_lanes` in all, the largest change first; None where
    pools or rows differ, or where one of the two is no valid plan.
    `num_ops`: places of the schedule with another op, or ops that only one has; `num_times`: ops
    predicted for other times.
    """

    batch: int
    settings: tuple[Setting, ...]
    figures: tuple[Figure, ...]
    counts: dict[Kind, int]
    rows: tuple[Row, ...]
    only_old: int
    only_new: int
    lanes: tuple[Lane, ...] | None
    num_lanes: int
    num_ops: int
    num_times: int

    def is_different(self) -> bool:
        """Whether anything is."""
        changed = any(f.verdict != "same" for f in self.figures)
        counted = sum(self.counts.values()) + self.only_old + self.only_new
        return bool(changed or self.settings or counted or self.num_ops or self.num_times)


class Scope(NamedTuple):
    """What may be compared: the same rows, the same costs, the same pools."""

    rows: bool
    costs: bool
    pool: bool

    def reasons(self) -> list[str]:
        """What is left out, and why."""
        found = []
        if not self.rows:
            found.append("made from other lengths: rows, loads and sums over rows are not compared")
        if not self.costs:
            found.append("costed by another profile: seconds are not compared")
        if not self.pool:
            found.append("on other pools: loads of lanes are not compared")
        return found


def scope(old: PlanHeader, new: PlanHeader) -> Scope:
    """What may be compared of two plans."""
    pools = [(h.options.pp, h.options.ranks, h.options.tp) for h in (old, new)]
    costs = [(h.fit, h.model, h.profile_mode) for h in (old, new)]
    lengths = [(h.lengths_digest, h.lengths_unit) for h in (old, new)]
    return Scope(lengths[0] == lengths[1], costs[0] == costs[1], pools[0] == pools[1])


def header_changes(old: PlanHeader, new: PlanHeader) -> list[Setting]:
    """Everything in which the footers differ, options one by one."""
    found = []
    before, after = (
        h.model_dump(exclude={"options", "fit", "model", "cluster"}) for h in (old, new)
    )
    parts = [("", before, after)]
    parts.append(("options.", old.options.model_dump(), new.options.model_dump()))
    for name in ("model", "fit", "cluster"):
        a, b = getattr(old, name), getattr(new, name)
        if a is None or b is None:
            parts.append(("", {name: _name(a)}, {name: _name(b)}))
        else:
            parts.append((f"{name}.", a.model_dump(), b.model_dump()))
    for prefix, a, b in parts:
        found += [
            Setting(prefix + key, a.get(key), b.get(key))
            for key in sorted(a.keys() | b.keys())
            if a.get(key) != b.get(key)
        ]
    return found


def _name(part: object) -> object:
    return None if part is None else getattr(part, "name", "present")


def figure_change(name: str, old: float, new: float, may: Scope, tolerance: float) -> Figure:
    """A figure of both plans and what its change is worth; below the tolerance it is the same.

    With a tolerance of 0 whatever differs is a change.
    """
    is_sum = name in OF_ALL_ROWS or name.startswith("displacement")
    needs_costs = name in IN_SECONDS
    if (needs_costs and not (may.costs and may.rows)) or (is_sum and not may.rows):
        return Figure(name, old, new, "not comparable")
    if old == new or (np.isnan(old) and np.isnan(new)):
        return Figure(name, old, new, "same")
    if np.isfinite([old, new]).all() and abs(new - old) <= tolerance * abs(old):
        return Figure(name, old, new, "same")
    if name in NEUTRAL or not np.isfinite([old, new]).all():
        return Figure(name, old, new, "changed")
    is_better = (new < old) == (name in LOWER_IS_BETTER)
    return Figure(name, old, new, "better" if is_better else "worse")


def batch_diff(
    headers: tuple[PlanHeader, PlanHeader],
    old: BatchPlan,
    new: BatchPlan,
    tolerance: float = 0.0,
    most_rows: int | None = None,
) -> BatchDiff:
    """Compare a batch of two plans.

    Args:
        headers: Footers of the old and the new plan.
        old: Batch of the old plan.
        new: The same batch of the new one.
        tolerance: Relative change below which a figure counts as the same.
        most_rows: Rows to keep, the longest first, and then `MOST_LANES` lanes; None for all of
            both. Counts are of all.
    """
    may = scope(*headers)
    rows, counts, only_old, only_new = _rows(old, new) if may.rows else ([], {}, 0, 0)
    rows.sort(key=lambda row: (_WEIGHT[row.kind], -row.length_tokens, row.sequence_id))
    comparable = may.rows and may.pool
    for header, batch in zip(headers, (old, new), strict=True):
        comparable = comparable and not check_plan(header, batch)
    lanes = _lanes(headers, old, new) if comparable else None
    num_ops, num_times = _schedule(old, new)
    return BatchDiff(
        batch=old.batch,
        settings=tuple(_settings(old, new)),
        figures=tuple(
            figure_change(name, old.figures[name], new.figures[name], may, tolerance)
            for name in FIGURES
        ),
        counts=counts,
        rows=tuple(rows[:most_rows]),
        only_old=only_old,
        only_new=only_new,
        lanes=lanes if lanes is None or most_rows is None else lanes[:MOST_LANES],
        num_lanes=len(lanes or ()),
        num_ops=num_ops,
        num_times=num_times,
    )


_WEIGHT: dict[Kind, int] = {"degree": 0, "moved": 1, "reordered": 2, "other": 3}


def _settings(old: BatchPlan, new: BatchPlan) -> list[Setting]:
    """Whatever a batch says of itself beside figures and rows."""
    names = ("num_microbatches", "strategy", "winner", "microbatch_order", "pipeline")
    found = [Setting(name, getattr(old, name), getattr(new, name)) for name in names]
    for name in old.search.__dataclass_fields__:
        found.append(Setting(name, getattr(old.search, name), getattr(new.search, name)))
    return [s for s in found if not _same(s.old, s.new)]


def _same(old: object, new: object) -> bool:
    both_nan = isinstance(old, float) and isinstance(new, float) and old != old and new != new
    return both_nan or old == new


def _rows(old: BatchPlan, new: BatchPlan) -> tuple[list[Row], dict[Kind, int], int, int]:
    """Rows that changed, how many of each kind, and those of one plan alone."""
    a, b = old.sequences, new.sequences
    _, at_a, at_b = np.intersect1d(a.sequence_id, b.sequence_id, return_indices=True)
    differs = {
        name: _unlike(getattr(a, name)[at_a], getattr(b, name)[at_b]) for name in ARRAY_COLUMNS
    }
    status = [np.array(s.status, dtype=object) for s in (a, b)]
    differs["status"] = status[0][at_a] != status[1][at_b]
    kinds: dict[Kind, tuple[str, ...]] = {
        "degree": ("degree", "ulysses_size", "ring_size"),
        "moved": ("first_rank", "microbatch"),
        "reordered": ("order",),
        "other": tuple(differs),
    }
    open_rows = np.ones(len(at_a), bool)
    rows, counts = [], {}
    for kind, names in kinds.items():
        found = open_rows & np.any([differs[name] for name in names], axis=0)
        open_rows &= ~found
        if found.any():
            counts[kind] = int(found.sum())
        rows += [
            Row(
                old.batch,
                int(a.sequence_id[i]),
                int(a.length_tokens[i]),
                kind,
                _place(a, i),
                _place(b, j),
            )
            for i, j in zip(at_a[found].tolist(), at_b[found].tolist(), strict=True)
        ]
    return rows, counts, len(a) - len(at_a), len(b) - len(at_b)


def _unlike(old: FloatArray, new: FloatArray) -> FloatArray:
    """Where two columns differ; NaN is like NaN."""
    result: FloatArray = (old != new) & ~((old != old) & (new != new))
    return result


def _place(rows: Sequences, index: int) -> Place:
    return Place(
        microbatch=int(rows.microbatch[index]),
        order=int(rows.order[index]),
        first_rank=int(rows.first_rank[index]),
        degree=int(rows.degree[index]),
        ulysses_size=int(rows.ulysses_size[index]),
        ring_size=int(rows.ring_size[index]),
        status=rows.status[index],
    )


def _lanes(
    headers: tuple[PlanHeader, PlanHeader], old: BatchPlan, new: BatchPlan
) -> tuple[Lane, ...]:
    """Lanes whose load differs, the largest change first."""
    load_s = [
        slot_times(header.cost_model(), batch.sequences.placed(), batch.num_microbatches)
        .load_s.sum(axis=1)
        for header, batch in zip(headers, (old, new), strict=True)
    ]  # fmt: skip
    change = np.abs(load_s[1] - load_s[0])
    order = np.lexsort((np.arange(len(change)), -change))
    return tuple(
        Lane(old.batch, lane, float(load_s[0][lane]), float(load_s[1][lane]))
        for lane in order[change[order] > 0].tolist()
    )


def _schedule(old: BatchPlan, new: BatchPlan) -> tuple[int, int]:
    """Ops that differ by place, and ops with other predicted times."""
    num_ops = abs(len(old.schedule) - len(new.schedule))
    num_times = 0
    for stage, (a, b) in enumerate(zip(old.schedule, new.schedule, strict=False)):
        num_ops += sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))
        common = min(len(a), len(b))
        unlike = np.zeros(common, bool)
        for name in ("predicted_start_s", "predicted_end_s"):
            before, after = getattr(old, name)[stage], getattr(new, name)[stage]
            unlike |= _unlike(before[:common], after[:common]).astype(bool)
        num_times += int(unlike.sum())
    return num_ops, num_times
