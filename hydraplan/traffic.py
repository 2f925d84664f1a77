"""What a plan moves between ranks and stages: bytes of groups, activations, gradients.

Volumes are counted from the algorithm. The seconds that groups spend on their exchanges are
part of `hydraplan.cost`, since hops hide behind compute.
"""

import numpy as np

from hydraplan.config import ACCUMULATOR_BYTES
from hydraplan.cost import CostModel
from hydraplan.heads import HeadSplit, even_split
from hydraplan.layout import rank_tokens
from hydraplan.model import FloatArray, IntArray, Schedule, Sequences
from hydraplan.route import NOWHERE, Route
from hydraplan.topology import group_link, stage_link


def sent_bytes(cost: CostModel, placed: Sequences) -> FloatArray:
    """Bytes the members of each sequence's group send in one step, (num_sequences,).

    All layers, forward and backward, summed over members; counted from actual rows, since
    the members' rows add up to the length. Zero at degree 1. Where B makes whole layers again,
    forward counts twice.
    """
    u, r = placed.ulysses_size.astype(float), placed.ring_size.astype(float)
    kv_heads = np.maximum(cost.num_kv_heads, u)
    row_elements = placed.length_tokens * float(cost.model.head_dim)
    accumulator = ACCUMULATOR_BYTES[cost.model.dtype]
    times = 3 if cost.recompute == "full" else 2
    inner = times * cost.element_bytes * (u - 1) / u * 2 * (cost.num_heads + kv_heads)
    moved = times * cost.element_bytes * (r - 1) + accumulator * np.where(r > 1, r, 0)
    hops = 2 * kv_heads * moved
    result: FloatArray = cost.tp * cost.model.num_layers * row_elements * (inner + hops)
    return result


def member_bytes(
    length_tokens: int,
    split: HeadSplit,
    head_dim: int,
    element_bytes: int,
    accumulator_bytes: int,
) -> IntArray:
    """Bytes each member of a group sends for one sequence in one layer, (2, degree).

    First forward, then backward. Counted from the rows and heads each member really holds:
    exact for every length and every head split. The all-to-alls carry q, k, v and the output
    one way, their gradients the other; a ring member passes on keys and values of all shards but
    its follower's, and in backward the gradients of all shards.

    Source: derived here; counted on the wire in the tests of the engine.
    """
    u, r = split.ulysses_size, split.ring_size
    rows = rank_tokens(*np.array([[length_tokens], [u], [r]], np.int64)).reshape(r, u)
    shard = rows.sum(axis=1, keepdims=True)
    queries = np.array([list(map(len, members)) for members in split.q_heads], np.int64)
    keys = 2 * np.array(list(map(len, split.kv_heads)), np.int64)
    away, others_queries, others_keys = shard - rows, split.num_heads - queries, keys.sum() - keys
    forward = rows * (others_queries + others_keys) + queries * away
    backward = rows * others_queries + (queries + keys) * away
    hops = (length_tokens - np.roll(shard, -1, axis=0)) * keys
    gradients = np.broadcast_to(length_tokens * keys if r > 1 else 0 * keys, (r, u))
    elements = np.stack([forward + hops, backward + hops]).reshape(2, u * r)
    sent: IntArray = element_bytes * elements
    sent[1] += accumulator_bytes * gradients.reshape(-1)
    return head_dim * sent


def lane_bytes(cost: CostModel, placed: Sequences) -> IntArray:
    """Bytes each lane of a stage sends inside groups for one layer, forward and backward.

    Shape (2, ranks), counted as `member_bytes` does, heads divided evenly. Backward includes the
    forward that B makes again under `recompute` full.
    """
    sent = np.zeros((2, cost.ranks), np.int64)
    shape = cost.model.head_dim, cost.element_bytes, ACCUMULATOR_BYTES[cost.model.dtype]
    columns = (placed.length_tokens, placed.first_rank, placed.ulysses_size, placed.ring_size)
    for length, first, u, r in np.stack(columns, axis=1).tolist():
        if u * r > 1:
            split = even_split(cost.num_heads, cost.num_kv_heads, u, r)
            sent[:, first : first + u * r] += member_bytes(length, split, *shape)
    if cost.recompute == "full":
        sent[1] += sent[0]
    return cost.tp * sent


def rank_bytes(cost: CostModel, placed: Sequences, rows: IntArray, schedule: Schedule) -> IntArray:
    """Bytes each rank sends in one step, (3, stages, lanes).

    In messages between stages, inside context-parallel groups, and to sum gradients as a ring
    does. `rows` of every slot, shape (lanes, microbatches).
    """
    width = cost.model.hidden_size * cost.element_bytes // cost.tp
    sync = 2 * (cost.ranks - 1) * stage_parameters(cost) * ACCUMULATOR_BYTES[cost.model.dtype]
    sent = np.zeros((3, cost.pp, cost.ranks), np.int64)
    sent[0] = width * _departures(cost.route, schedule, rows.shape[1]) @ rows.T
    for chunk, layers in enumerate(np.array(cost.layers, np.int64).T):
        ran = [op.microbatch for op in schedule[0] if op.kind == "F" and op.chunk == chunk]
        here = placed.take(np.flatnonzero(np.isin(placed.microbatch, ran)))
        sent[1] += np.outer(layers, lane_bytes(cost, here).sum(axis=0))
    sent[2] = (sync // cost.tp // cost.ranks)[:, None]
    return sent


def _departures(route: Route, schedule: Schedule, num_microbatches: int) -> IntArray:
    """Messages of each microbatch that leave each stage, shape (stages, microbatches)."""
    counts: IntArray = np.zeros((len(schedule), num_microbatches), np.int64)
    for stage, ops in enumerate(schedule):
        for kind, microbatch, chunk, _ in ops:
            if kind != "W":
                target = (route.after if kind == "F" else route.before)[stage, chunk]
                counts[stage, microbatch] += target not in (NOWHERE, *_own(route, stage))
    return counts


def _own(route: Route, stage: int) -> range:
    return range(stage * route.num_chunks, (stage + 1) * route.num_chunks)


def stage_parameters(cost: CostModel) -> IntArray:
    """Weights of every stage, norms, embedding and head included, shape (stages,)."""
    model = cost.model
    counts: IntArray = np.array(cost.layers, np.int64).sum(axis=1)
    counts *= model.layer_parameters + 2 * model.hidden_size
    begins, ends = cost.route.ends()
    for stage, _ in begins:
        counts[stage] += model.vocab_size * model.hidden_size
    for stage, _ in ends:
        counts[stage] += (model.vocab_size + 1) * model.hidden_size
    return counts


def boundary_s(cost: CostModel, rows: FloatArray) -> FloatArray:
    """Seconds to hand `rows` rows of activations to the next stage, over the slowest link."""
    link = stage_link(cost.fit, cost.world)
    moved = rows * cost.model.hidden_size * cost.element_bytes / cost.tp
    result: FloatArray = link.latency_s + moved / link.bytes_per_s
    return result


def grad_sync_s(cost: CostModel) -> FloatArray:
    """Exposed all-reduce of each stage's gradients over its pool, shape (stages,).

    A ring all-reduce in accumulator precision after the last backward, as the executor does
    it.
    """
    if cost.ranks == 1:
        return np.zeros(cost.pp)
    link = group_link(cost.fit, cost.world, cost.ranks)
    parameters = np.array(cost.layers, float).sum(axis=1) * cost.model.layer_parameters
    begins, ends = cost.route.ends()
    for stage, _ in begins + ends:  # embedding, and head
        parameters[stage] += cost.model.vocab_size * cost.model.hidden_size
    moved = 2 * (cost.ranks - 1) / cost.ranks * parameters / cost.tp
    moved *= ACCUMULATOR_BYTES[cost.model.dtype]
    result: FloatArray = moved / link.bytes_per_s + 2 * (cost.ranks - 1) * link.latency_s
    return result
