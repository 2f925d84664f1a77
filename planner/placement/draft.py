"""What every strategy is asked and what it answers, and how a draft is scored."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.layout import legal_degrees, rank_tokens_max
from hydraplan.model import FloatArray, IntArray, Schedule, Search, Sequences
from hydraplan.places import global_order
from hydraplan.planner.pipeline.fast_run import Slots, iteration_s, slots_of
from hydraplan.planner.pipeline.order import microbatch_order
from hydraplan.planner.placement.cost_table import CostTable
from hydraplan.planner.placement.no_empty import Blocks, without_empty
from hydraplan.planner.placement.sizing import Sized, load_of, raised
from hydraplan.planner.placement.window import Window
from hydraplan.slots import most_microbatches

COST_ERROR = 0.05
"""Relative error of the costs that a placement is also scored under, as a profiler may have."""


@dataclass(frozen=True, slots=True)
class Request:
    """One batch to place. `sequences` holds only rows that get a place, places still open.

    `microbatches` None leaves their number to the strategy, `window` holds the counts that
    leave balance open; the number is a multiple of `microbatch_multiple`. `min_degree` is the
    lowest degree. `orders` are the microbatch orders to choose from. `reorder` says how far
    rows may leave the order of the input (`planheader.PlanOptions`), `first_row` is the
    sequence_id of the first row of the batch, placed or not. `tapered` allows microbatches that
    are light at both ends. `schedule(stages, microbatches)`
    gives the op order; filling and draining the pipeline costs `fill_slots` slots, those of 1F1B
    P - 1. `profile` is how a load is spread over ops (`fast_run.profile_of`). `spared` lanes get
    nothing where another place is legal; `table` leaves out what is not.
    """

    cost: CostModel
    table: CostTable
    sequences: Sequences
    cap_tokens: int
    window: Window
    microbatches: int | None
    microbatch_multiple: int
    min_degree: int
    reorder: str
    first_row: int
    orders: tuple[str, ...]
    tapered: bool
    schedule: Callable[[int, int], Schedule]
    profile: FloatArray
    fill_slots: float
    spared: tuple[int, ...] = ()

    def sized(self, level: IntArray) -> Sized:
        """Exact costs of every sequence at its level, or at the next one that holds it.

        Each takes the inner size that is cheapest for its bucket; where that breaks the cap by
        a row or two, whatever fits.
        """
        length, table = self.sequences.length_tokens, self.table
        u = table.ulysses_size[table.bucket, level]
        r = table.degrees[level] // u
        load_s = load_of(self.cost, length, u, r)
        found = Sized(level, load_s, rank_tokens_max(length, u, r), u, r)
        return raised(self.cost, length, found, self.cap_tokens, table.offered)

    @property
    def slow(self) -> FloatArray | None:
        """Slowness of every lane; None where all are nominal."""
        return None if self.cost.rank_speed is None else self.cost.slow

    @property
    def most_microbatches(self) -> int:
        """The largest number that is planned: each of them holds a sequence."""
        return min(most_microbatches(self.cost.pp, self.cost.ranks), len(self.sequences))

    def whole_multiple(self, num_microbatches: int) -> int:
        """The next number of microbatches that the request allows."""
        return -(-num_microbatches // self.microbatch_multiple) * self.microbatch_multiple

    def allowed(self, counts: Iterable[int]) -> list[int]:
        """The counts as multiples of what is wanted, ascending, none too large to plan or fill."""
        most = self.most_microbatches
        return sorted({m for m in map(self.whole_multiple, counts) if m <= most})


@dataclass(frozen=True, slots=True)
class Built:
    """A placement before its microbatches are put in order."""

    placed: Sequences
    slots: Slots
    num_microbatches: int

    @property
    def slot_imbalance(self) -> float:
        """Fullest slot over the mean (`metrics.balance`)."""
        return float(self.slots.load_s.max() / self.slots.load_s.mean())


@dataclass(frozen=True, slots=True)
class Timing:
    """The best of some microbatch orders. `order[i]` is the microbatch that runs i-th."""

    iteration_s: float
    name: str
    order: IntArray


@dataclass(frozen=True, slots=True)
class Draft:
    """A placement with its score: sequences placed, microbatches numbered in execution order."""

    sequences: Sequences
    num_microbatches: int
    microbatch_order: str
    iteration_s: float
    slot_imbalance: float
    winner: str
    search: Search


def one_candidate(window: Window) -> Search:
    """Search of a strategy that tries one placement and has no target."""
    nan = float("nan")
    return Search(
        window_min=window.low,
        window_max=window.high,
        load_target_s=nan,
        theta=nan,
        eta=nan,
        num_candidates=1,
        num_rejected=0,
        load_driven_s=nan,
        load_driven_slot_imbalance=nan,
        fastest_load_driven_s=nan,
        memory_s=nan,
    )


def draft(
    request: Request,
    found: Sized,
    microbatch: IntArray,
    first_rank: IntArray,
    num_microbatches: int,
    winner: str,
) -> Draft:
    """Build a placement, put it into the best of the requested orders and score the result."""
    whole = build(request, found, microbatch, first_rank, num_microbatches)
    return settled(request, whole, timed(request, whole, request.orders), winner)


def build(
    request: Request,
    found: Sized,
    microbatch: IntArray,
    first_rank: IntArray,
    num_microbatches: int,
) -> Built:
    """The slots of a placement.

    Where their number was left open, microbatches that got nothing are taken out. If a fixed
    number or the wanted multiple asks for more, others are parted (`no_empty`).
    """
    if request.microbatches is None:
        used, microbatch = np.unique(microbatch, return_inverse=True)
        num_microbatches = request.whole_multiple(len(used))
    else:
        num_microbatches = request.microbatches
    degree = legal_degrees(request.cost.ranks)[found.level]
    blocks = Blocks(first_rank, degree, found.load_s, request.cost.slow)
    kept = request.reorder != "batch"
    placed = replace(
        request.sequences,
        microbatch=without_empty(microbatch, blocks, num_microbatches, kept),
        first_rank=first_rank,
        degree=degree,
        ulysses_size=found.ulysses_size,
        ring_size=found.ring_size,
        rank_tokens_max=found.rows,
        predicted_s=found.load_s,
    )
    return Built(placed, slots_of(request.cost, placed, num_microbatches), num_microbatches)


def timed(request: Request, whole: Built, orders: tuple[str, ...]) -> Timing:
    """Run a placement in each order; the fastest."""
    schedule = request.schedule(request.cost.pp, whole.num_microbatches)
    found = []
    for name in orders:
        order = microbatch_order(name, whole.slots.load_s.T)
        found.append(Timing(iteration_s(whole.slots, schedule, order), name, order))
    return min(found, key=lambda t: t.iteration_s)


def perturbed_s(request: Request, whole: Built, timing: Timing) -> float:
    """The time of that order with the cost of every slot off by `COST_ERROR`, seconds."""
    schedule = request.schedule(request.cost.pp, whole.num_microbatches)
    wrong = wrong_by(COST_ERROR, whole.slots.padded.shape)
    return iteration_s(whole.slots, schedule, timing.order, wrong)


def right_and_wrong_s(request: Request, plan: Draft) -> float:
    """Its time, and that with the cost of every slot off by `COST_ERROR`, together; seconds."""
    slots = slots_of(request.cost, plan.sequences, plan.num_microbatches)
    schedule = request.schedule(request.cost.pp, plan.num_microbatches)
    wrong = wrong_by(COST_ERROR, slots.padded.shape)
    order = np.arange(plan.num_microbatches)
    return plan.iteration_s + iteration_s(slots, schedule, order, wrong)


def settled(request: Request, whole: Built, timing: Timing, winner: str) -> Draft:
    """The placement in that order."""
    position = np.empty_like(timing.order)
    position[timing.order] = np.arange(len(timing.order))
    placed = replace(whole.placed, microbatch=position[whole.placed.microbatch])
    return Draft(
        sequences=in_global_order(placed),
        num_microbatches=whole.num_microbatches,
        microbatch_order=timing.name,
        iteration_s=timing.iteration_s,
        slot_imbalance=whole.slot_imbalance,
        winner=winner,
        search=one_candidate(request.window),
    )


def wrong_by(error: float, shape: tuple[int, ...]) -> FloatArray:
    """Log-normal factors of that standard deviation, always the same for a shape."""
    draws = np.random.default_rng(0).standard_normal(shape, np.float32)
    factors: FloatArray = np.exp(error * draws.astype(float))
    return factors


def in_global_order(placed: Sequences) -> Sequences:
    """Number the sequences of each microbatch in the order that every rank runs them."""
    order = global_order(placed.sequence_id, placed.degree, placed.microbatch)
    return replace(placed, order=order)
