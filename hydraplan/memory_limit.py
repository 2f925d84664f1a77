"""Whether a planned batch fits a device: its bytes stage by stage, and the refusal where not.

Bytes are those of `hydraplan.memory`. On a GPU every process group of a rank is a communicator: the
world, the pool of its stage, one a way between stages, and the inner groups of its sequences.
"""

from collections.abc import Callable

import numpy as np

from hydraplan.activations import forward_bytes, held_shares
from hydraplan.cost import CostModel
from hydraplan.errors import Infeasible
from hydraplan.host import GIB
from hydraplan.layout import expand
from hydraplan.memory import TERMS, Engine, group_bytes, stage_bytes
from hydraplan.metrics import live_peaks
from hydraplan.migration import Moves
from hydraplan.model import BatchPlan, IntArray, Sequences
from hydraplan.moved_work import moved_tokens
from hydraplan.planheader import PlanHeader, PlanOptions
from hydraplan.slots import slot_rows

STATES = ("weights", "gradients", "optimizer")
"""Terms that no batch changes."""


def batch_bytes(
    cost: CostModel, batch: BatchPlan, on_gpu: bool, engine: Engine = "hydraplan"
) -> IntArray:
    """Bytes of every term on the fullest rank of each stage, shape (len(TERMS), stages)."""
    placed, size = batch.sequences.placed(), batch.num_microbatches
    rows, groups = slot_rows(placed, cost.ranks, size), group_bytes(cost, placed, size)
    communicators = most_communicators(cost, placed) if on_gpu else 0
    return stage_bytes(cost, batch.schedule, rows, engine, communicators, groups)


def planned_bytes(header: PlanHeader, batch: BatchPlan) -> IntArray:
    """As `batch_bytes`, of a batch of a plan; what a cluster file describes has GPUs."""
    return batch_bytes(header.cost_model(), batch, header.cluster is not None)


def changed_bytes(cost: CostModel, batch: BatchPlan, moves: Moves, on_gpu: bool) -> IntArray:
    """As `batch_bytes`, of a batch with work that moves.

    Activations of moved work come on top, as if each stage held the most of it when it is fullest;
    what is on its way is left out.
    """
    held = batch_bytes(cost, batch, on_gpu)
    if moves:
        moved = moved_tokens(cost, batch.sequences.placed(), moves, batch.num_microbatches)
        shares = held_shares(cost.model, cost.recompute)
        most = live_peaks(batch.schedule, np.zeros(moved.shape[2:], np.int64), shares, moved)
        row_bytes = np.array(cost.layers).sum(axis=1) * forward_bytes(cost.model) / cost.tp
        more = np.ceil(row_bytes * most.max(axis=1)).astype(np.int64)
        held[TERMS.index("activations")] += more
    return held


def fits_as_planned(
    cost: CostModel, options: PlanOptions, planned: BatchPlan, on_gpu: bool
) -> Callable[[BatchPlan, Moves], bool]:
    """Whether a change of a planned batch keeps to the memory that the plan was given.

    Or to what the batch takes as planned, if that is more: a run may make other things again.
    """
    limit_bytes = options.memory_bytes
    if limit_bytes is None:
        return lambda batch, moves: True
    most = max(limit_bytes, int(batch_bytes(cost, planned, on_gpu).sum(axis=0).max()))

    def fits(batch: BatchPlan, moves: Moves) -> bool:
        return bool(changed_bytes(cost, batch, moves, on_gpu).sum(axis=0).max() <= most)

    return fits


def most_communicators(cost: CostModel, placed: Sequences) -> int:
    """Communicators of the rank that has most."""
    wide = placed.take(np.flatnonzero(placed.ulysses_size > 1))
    ring, member = expand(wide.ring_size)
    first = wide.first_rank[ring] + member * wide.ulysses_size[ring]
    inner = np.unique(np.stack([first, wide.ulysses_size[ring]]), axis=1)
    group, lane = expand(inner[1])
    held = np.bincount(inner[0][group] + lane, minlength=cost.ranks)
    return 1 + (cost.ranks > 1) + 2 * (cost.pp > 1) + int(held.max())


def largest_term(held: IntArray, stage: int) -> str:
    """Name of the term that takes most on a stage."""
    return TERMS[int(held[:, stage].argmax())]


def check_fits(held: IntArray, limit_bytes: float | None, batch: int) -> None:
    """Refuse a batch whose fullest stage needs more than a device has, if that is known.

    Raises:
        Infeasible: It does; the stage and its largest term are named.
    """
    total = held.sum(axis=0)
    stage = int(total.argmax())
    if limit_bytes is None or total[stage] <= limit_bytes:
        return
    term = largest_term(held, stage)
    most = held[TERMS.index(term), stage]
    raise Infeasible(
        f"batch {batch} needs {total[stage] / GIB:.2f} GiB on stage {stage}, most of it {term}"
        f" ({most / GIB:.2f} GiB), a device has {limit_bytes / GIB:.2f}",
        "plan with more stages (--pp) or devices of a rank (--tp)"
        if term in STATES
        else "use --max-tokens-per-rank auto or a lower one, or --recompute selective|full",
    )
