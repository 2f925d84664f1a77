"""Every figure hydraplan prints, defined once, as pure functions of slots and op times.

The four shares `grad_sync`, `group_wait`, `dp_bubble`, `pipeline_bubble` and `busy` are means
over lanes and stages of the share of `iteration_s`, and add up to 1.
"""

from collections.abc import Sequence

import numpy as np

from hydraplan.activations import Shares, held_shares
from hydraplan.cost import FORWARD, INPUT_GRADIENT, CostModel
from hydraplan.migration import NO_MOVES, Moves
from hydraplan.model import BatchPlan, FloatArray, IntArray, Schedule, Sequences, Timeline
from hydraplan.moved_work import moved_tokens
from hydraplan.slots import SlotTimes, padding_tokens, slot_rows
from hydraplan.traffic import grad_sync_s, sent_bytes

FIGURES = (
    "iteration_s",
    "lower_bound_s",
    "efficiency",
    "busy",
    "pipeline_bubble",
    "fill_bubble",
    "dp_bubble",
    "group_wait",
    "grad_sync",
    "slot_imbalance",
    "rank_imbalance",
    "microbatch_spread",
    "target_error",
    "max_tokens_per_rank",
    "peak_live_tokens",
    "num_groups",
    "num_shapes",
    "sent_bytes",
    "padding_tokens",
    "displacement_mean_rows",
    "displacement_max_rows",
)
"""Names of all figures of a batch, in the order people read them."""

LOWER_IS_BETTER = frozenset(FIGURES) - {"efficiency", "busy", "lower_bound_s"}


def balance(load_s: FloatArray, load_target_s: float) -> dict[str, float]:
    """Figures of the slot loads alone; `load_s` has shape (lanes, microbatches).

    `load_target_s` NaN stands for a strategy without a target: the mean slot load is used, as
    for what a damaged plan may give and is no time.
    """
    mean = float(load_s.mean())
    target = load_target_s if 0 < load_target_s < np.inf else mean
    lanes = load_s.sum(axis=1)
    busiest = load_s.max(axis=0)
    return {
        "slot_imbalance": float(load_s.max()) / mean,
        "rank_imbalance": float(lanes.max() / lanes.mean()),
        "microbatch_spread": float(busiest.max() / busiest.min()),
        "target_error": float(np.abs(load_s - target).mean()) / target,
    }


def shares(timeline: Timeline) -> dict[str, float]:
    """Where the time of an iteration goes: `iteration_s` and the five shares."""
    first = min(float(start.min()) for start in timeline.start_s)
    lane_end = np.stack([end.max(axis=0) for end in timeline.end_s]) - first
    stage_end = lane_end.max(axis=1)
    total = float((stage_end + timeline.grad_sync_s).max())
    busy = np.stack([b.sum(axis=0) for b in timeline.busy_s])
    occupied = np.stack(
        [_occupied_s(s, e) for s, e in zip(timeline.start_s, timeline.end_s, strict=True)]
    )
    result = {
        "iteration_s": total,
        "busy": float(busy.mean()) / total,
        "grad_sync": float(timeline.grad_sync_s.mean()) / total,
        "group_wait": float((occupied - busy).mean()) / total,
        "dp_bubble": float((stage_end[:, None] - lane_end).mean()) / total,
    }
    others = sum(result[name] for name in ("busy", "grad_sync", "group_wait", "dp_bubble"))
    result["pipeline_bubble"] = max(0.0, 1 - others)
    return result


def _occupied_s(start_s: FloatArray, end_s: FloatArray) -> FloatArray:
    """Seconds in which some op runs on each lane; two that run at the same time count once."""
    begun_s = start_s.copy()
    begun_s[1:] = np.maximum(start_s[1:], end_s[:-1])
    result: FloatArray = (end_s - begun_s).sum(axis=0)
    return result


def lower_bound_s(
    cost: CostModel, work_s: FloatArray, alone_s: FloatArray, through_s: FloatArray
) -> float:
    """No plan of these sequences on this pool can be faster, noise-free; seconds.

    Args:
        work_s: Least rank-work of each op, min over legal degrees d of d x cost as
            `CostModel.least` counts it, shape (3, stages, num_sequences).
        alone_s: Least time of each op, min over d of the cost, same shape.
        through_s: Least time of forward and input gradient through all stages at one degree,
            shape (num_sequences,).

    Per stage: the cheapest way in, then its share of F and B, the cheapest way back and the
    first stage's gradient sync; or its share of all work and its own sync. And whatever the
    costliest single sequence needs to pass forward and backward.
    """
    sync_s = grad_sync_s(cost)
    fastest, pool = float(cost.slow.min()), cost.pool_speed
    forward, backward, weight = work_s.sum(axis=2) / pool
    alone_s, through_s = alone_s * fastest, through_s * fastest
    way_in = np.concatenate([[0.0], np.cumsum(alone_s[FORWARD], axis=0).min(axis=1)[:-1]])
    way_back = np.concatenate([[0.0], np.cumsum(alone_s[INPUT_GRADIENT], axis=0).min(axis=1)[:-1]])
    there_and_back = way_in + forward + backward + way_back + sync_s[0]
    all_work = way_in + forward + backward + weight + sync_s
    return float(max(there_and_back.max(), all_work.max(), through_s.max()))


def planned_live_peaks(cost: CostModel, batch: BatchPlan, moves: Moves = NO_MOVES) -> FloatArray:
    """Most tokens whose activations each rank holds in a batch, shape (stages, lanes)."""
    placed, size = batch.sequences.placed(), batch.num_microbatches
    rows = slot_rows(placed, cost.ranks, size)
    moved = moved_tokens(cost, placed, moves, size) if moves else None
    return live_peaks(batch.schedule, rows, held_shares(cost.model, cost.recompute), moved)


def live_peaks(
    schedule: Schedule, rows: IntArray, shares: Shares, moved: FloatArray | None = None
) -> FloatArray:
    """Most tokens whose activations each rank holds at once, shape (stages, lanes).

    A token counts as what F keeps of it if nothing is made again, so a limit is as many bytes
    under every `recompute`. Per chunk F adds the share that it keeps of a slot's rows, B makes it
    the share that waits for W, BW or W frees all. `rows` has shape (lanes, microbatches); `moved`:
    tokens that slots hold more, (2, stages, lanes, microbatches), after F and after B.
    """
    shape = (2, len(schedule), *rows.shape)
    own: FloatArray = np.array(shares)[:, None, None, None] * rows
    held: FloatArray = np.broadcast_to(own, shape) if moved is None else own + moved
    peaks, place = np.zeros((len(schedule), rows.shape[0])), {"F": 0, "B": 1, "W": 2, "BW": 3}
    for stage, ops in enumerate(schedule):
        chunks = 1 + max((op.chunk for op in ops), default=0)
        kept, waits = held[:, stage]
        change = np.stack([kept, waits - kept, -waits, -kept]) / chunks
        kinds = np.array([place[op.kind] for op in ops], np.int64)
        added = change[kinds, :, np.array([op.microbatch for op in ops], np.int64)]
        peaks[stage] = np.cumsum(added, axis=0).max(axis=0, initial=0.0)
    return peaks


def peak_live_tokens(schedule: Schedule, rows: IntArray, shares: Shares) -> float:
    """Most tokens whose activations one rank holds at once; see `live_peaks`."""
    return float(live_peaks(schedule, rows, shares).max())


def sizes(
    cost: CostModel, placed: Sequences, slots: SlotTimes, schedule: Schedule
) -> dict[str, float]:
    """Figures of memory, groups and traffic."""
    wide = placed.degree > 1
    groups = set(zip(placed.first_rank[wide].tolist(), placed.degree[wide].tolist(), strict=True))
    return {
        "max_tokens_per_rank": float(slots.rows.max()),
        "peak_live_tokens": peak_live_tokens(
            schedule, slots.rows, held_shares(cost.model, cost.recompute)
        ),
        "num_groups": float(len(groups)),
        "num_shapes": float(max(len(np.unique(lane)) for lane in slots.rows)),
        "sent_bytes": float(sent_bytes(cost, placed).sum()),
        "padding_tokens": float(padding_tokens(slots.rows, cost.tp).sum()),
    }


def displacement(placed: Sequences) -> dict[str, float]:
    """How far rows move: place in the order of execution against place in the file.

    Both count the rows on ranks only. A batch runs microbatch after microbatch; rows of one
    microbatch are trained together and keep the order of the file among them.
    """
    microbatch = placed.microbatch[np.argsort(placed.sequence_id)]
    moved = np.abs(np.argsort(microbatch, kind="stable") - np.arange(len(microbatch)))
    return {
        "displacement_mean_rows": float(moved.mean()),
        "displacement_max_rows": float(moved.max()),
    }


def mean_figures(batches: Sequence[dict[str, float]]) -> dict[str, float]:
    """A plan's figures over its batches: the mean, or the maximum of what is a bound."""
    result = {}
    for name in FIGURES:
        values = [figures[name] for figures in batches]
        is_bound = name in ("num_groups", "displacement_max_rows")
        is_bound |= name.startswith(("max_", "peak_"))
        result[name] = max(values) if is_bound else float(np.mean(values))
    return result
