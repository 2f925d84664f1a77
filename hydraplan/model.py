"""Types that cross a package border. Arrays are int64 and float64, one entry a row."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

Status = Literal["placed", "truncated", "empty", "overlong"]
ON_RANKS: tuple[Status, Status] = ("placed", "truncated")
"""Status of the rows that hold a place; every other row is listed but not trained on."""

OpKind = Literal["F", "B", "W", "BW"]
"""F forward, B input gradient, W weight gradient, BW both in one go (as 1F1B runs them)."""

WINNERS = ("load-driven", "memory", "one-degree")
"""Which kind of candidate a strategy returned."""

CHOOSING = ("hydra", "exact")
"""Strategies that choose between these; what every other returns counts as memory-sized."""

EXACT_STATUS = ("optimal", "feasible")
"""What strategy `exact` says of its plan: proven least, or with a gap to the bound."""

UNPLACED = -1
"""Microbatch, order and first rank of a row that holds no place."""


class Op(NamedTuple):
    """One pass of one microbatch through one chunk of a stage.

    `joined`: a forward that runs at the same time as the backward after it, as in DualPipe.
    """

    kind: OpKind
    microbatch: int
    chunk: int = 0
    joined: bool = False


Schedule = tuple[tuple[Op, ...], ...]
"""Op order of every stage."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """All rows of one batch, placed or not, in input order. Arrays of shape (num_sequences,).

    `sequence_id` is the zero-based row of the length file, `length_tokens` what is trained
    (after truncation), `valid_tokens` the tokens that carry a label. Unplaced rows have
    degree 0 and `UNPLACED` as microbatch, order and first rank.
    """

    sequence_id: IntArray
    length_tokens: IntArray
    valid_tokens: IntArray
    microbatch: IntArray
    order: IntArray
    first_rank: IntArray
    degree: IntArray
    ulysses_size: IntArray
    ring_size: IntArray
    rank_tokens_max: IntArray
    predicted_s: FloatArray
    status: tuple[Status, ...]

    def on_ranks(self) -> IntArray:
        """Indices of the rows that are trained on, in input order."""
        return np.flatnonzero([s in ON_RANKS for s in self.status])

    def placed(self) -> "Sequences":
        """Only the rows that hold a place, in execution order (microbatch, then order)."""
        rows = self.on_ranks()
        rows = rows[np.lexsort((self.order[rows], self.microbatch[rows]))]
        return self.take(rows)

    def take(self, rows: IntArray) -> "Sequences":
        """The named rows, in that order."""
        return Sequences(
            **{name: getattr(self, name)[rows] for name in ARRAY_COLUMNS},
            status=tuple(map(self.status.__getitem__, rows.tolist())),
        )

    def __len__(self) -> int:
        return len(self.sequence_id)


PLACE_COLUMNS = (
    "microbatch",
    "order",
    "first_rank",
    "degree",
    "ulysses_size",
    "ring_size",
    "rank_tokens_max",
    "predicted_s",
)
"""What the planner decides of a row; everything else is given."""

ARRAY_COLUMNS = ("sequence_id", "length_tokens", "valid_tokens", *PLACE_COLUMNS)
"""Every column of `Sequences` but `status`."""


@dataclass(frozen=True, slots=True)
class Search:
    """What the planner wants people to know of its search; NaN or -1 where it has no say.

    `window_min`, `window_max`: range of microbatch counts (empty if min > max).
    `load_target_s`, `theta`, `eta`: target per slot, quantum and rank-work guard of the plan;
    `slack` instead of the last two where slots were filled to a limit, that far above the target.
    `taper`: share of the heaviest microbatch that the first and the last one were to get, NaN
    where all were to get the same.
    `num_candidates`, `num_rejected`: plans tried, and those among them that broke the cap.
    `load_driven_s`, `load_driven_slot_imbalance`: the best load-driven candidate, balanced
    where the window is open. `fastest_load_driven_s`: the fastest, balanced or not.
    `memory_s`: the best memory-sized candidate.
    `window_advice`: what would open an empty window, by how much, or why nothing; "" if open.
    `exact_status`: one of `EXACT_STATUS`, "" for every other strategy. `bound_s`: no placement
    of this batch in as many microbatches has a smaller fullest slot, loads summed as in
    `planner.placement.exact`; `fullest_slot_s`: that of this plan, summed alike; seconds.
    `ops_status`, `ops_bound_s`, `ops_time_s`: the same of the op order of schedule `exact`, run on
    one lane that is the busiest of every microbatch; `ops_deterministic_s`: work of the solver.
    `ops_from`: whose order schedule `policy` took, with `+search` where it was searched on, "" for
    every other schedule; `ops_policy_s`, `ops_guard_s`: mean over the noise scenarios of the best
    that the policy made, and of the best of what guards it.
    """

    window_min: int
    window_max: int
    load_target_s: float
    theta: float
    eta: float
    num_candidates: int
    num_rejected: int
    load_driven_s: float
    load_driven_slot_imbalance: float
    fastest_load_driven_s: float
    memory_s: float
    window_advice: str = ""
    slack: float = float("nan")
    taper: float = float("nan")
    exact_status: str = ""
    bound_s: float = float("nan")
    fullest_slot_s: float = float("nan")
    ops_status: str = ""
    ops_bound_s: float = float("nan")
    ops_time_s: float = float("nan")
    ops_deterministic_s: float = float("nan")
    ops_from: str = ""
    ops_policy_s: float = float("nan")
    ops_guard_s: float = float("nan")

    @property
    def bound_gap(self) -> float:
        """How far the fullest slot is above the bound, relative; NaN where there is no bound."""
        return self.fullest_slot_s / self.bound_s - 1 if self.bound_s > 0 else float("nan")

    @property
    def ops_gap(self) -> float:
        """How far the op order is above its bound, relative; NaN where there is no bound."""
        return self.ops_time_s / self.ops_bound_s - 1 if self.ops_bound_s > 0 else float("nan")


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One global batch: where every sequence goes, in which order the stages work, and figures.

    `winner` says which candidate the strategy returned (of `WINNERS`),
    `microbatch_order` the order it was put in. `figures` are those of `hydraplan.metrics`
    for the noise-free run of this plan. Predicted starts and ends have one entry an op of
    each stage: the earliest start and the latest end over the lanes, in seconds.
    """

    batch: int
    sequences: Sequences
    num_microbatches: int
    schedule: Schedule
    strategy: str
    winner: str
    microbatch_order: str
    pipeline: str
    predicted_start_s: tuple[FloatArray, ...]
    predicted_end_s: tuple[FloatArray, ...]
    figures: dict[str, float]
    search: Search

    def summary(self) -> "BatchSummary":
        """What people read of this batch."""
        placed = self.sequences.take(self.sequences.on_ranks())
        return BatchSummary(
            batch=self.batch,
            strategy=self.strategy,
            winner=self.winner,
            pipeline=self.pipeline,
            microbatch_order=self.microbatch_order,
            num_microbatches=self.num_microbatches,
            num_sequences=len(self.sequences),
            num_tokens=int(placed.length_tokens.sum()),
            status=dict(sorted(Counter(self.sequences.status).items())),
            degrees=dict(sorted(Counter(placed.degree.tolist()).items())),
            search=self.search,
            figures=self.figures,
        )


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A batch without its rows and ops, so that many can be held at once.

    `num_sequences` counts all rows, `num_tokens` those trained on. `status` and `degrees` say how
    many rows have each status, and how many of those on ranks each degree.
    """

    batch: int
    strategy: str
    winner: str
    pipeline: str
    microbatch_order: str
    num_microbatches: int
    num_sequences: int
    num_tokens: int
    status: dict[str, int]
    degrees: dict[int, int]
    search: Search
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class StageSkew:
    """How unequal the stages of a batch are.

    `stage_s`: F + B + W of a mean slot on every stage, all chunks, shape (stages,), seconds.
    `skew_s`: what stages wait for the costliest at the least, mean over them, seconds an iteration.
    `alike_fill_bubble`: what `fill_bubble` were if every stage took the mean of `stage_s`.
    """

    batch: int
    stage_s: FloatArray
    skew_s: float
    alike_fill_bubble: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One strategy in one microbatch order; `figures` are means over the batches.

    `num_chunks` a stage and `route` are the layout of the model that it ran on. `cap` is the
    invariant by which the strategy keeps to the cap (`hydraplan.invariants`). `needed_bytes` of the
    batch whose fullest stage needs most (`hydraplan.memory_limit.batch_bytes`). `plan_s` one solve
    and placement, `planning_s` the whole search on that layout, both warm CPU seconds a batch.
    """

    strategy: str
    microbatch_order: str
    num_chunks: int
    route: str
    batches: tuple[BatchSummary, ...]
    figures: dict[str, float]
    cap: str
    needed_bytes: IntArray
    plan_s: float
    planning_s: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A strategy that could not plan some batch, or not as asked, and why."""

    strategy: str
    reason: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """When every op ran, simulated or measured; one entry a stage, arrays (ops, lanes), seconds.

    `start_s`: the lane takes up the op (its inputs are there). `end_s`: it is done.
    `busy_s`: own work. end - start - busy is time spent waiting for members of its groups;
    the time between two ops is idle. `grad_sync_s`: exposed gradient sync, shape (stages,).
    """

    schedule: Schedule
    start_s: tuple[FloatArray, ...]
    end_s: tuple[FloatArray, ...]
    busy_s: tuple[FloatArray, ...]
    grad_sync_s: FloatArray


@dataclass(frozen=True, slots=True)
class Waits:
    """What held up every op of a timeline; one entry a stage, arrays (ops, lanes), seconds.

    `group_s`: inside the op, for members of the rank's context-parallel groups. `transfer_s`:
    between the op before it and its start, for messages between stages.
    """

    group_s: tuple[FloatArray, ...]
    transfer_s: tuple[FloatArray, ...]
