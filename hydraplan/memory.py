"""How many bytes a rank of each stage holds at its fullest moment, term by term.

A batch is walked op by op. Between ops a rank holds what F keeps of its slots and what B leaves for
W (`hydraplan.activations`), here in bytes and with what lies at the end of the route; inside an op
it works with more: B with the gradients of one layer, with the layer itself where that is made
again, the loss with logits. Beside them lie messages that are on their way. Weights, gradients and
moments are there throughout; the gradient sum and the update, when no activations are left, are two
moments of their own. The terms of a stage are those of its fullest moment, so they add up to it.

What two engines hold is known: `hydraplan` is the executor, `megatron` its distributed optimizer;
activations are the executor's either way. Not counted: allocators' rounding and fragments, what the
driver keeps, token ids, what attention works with inside a layer, which is less than its MLP does.

Symbols as in `hydraplan.activations`, and V vocab_size, T rows of a slot.

Source: derived from `hydraplan.executor`; tests hold them against torch's allocator.
"""

from heapq import heapify, heapreplace
from typing import Literal, NamedTuple

import numpy as np

from hydraplan.activations import Recompute, forward_bytes, waiting_bytes
from hydraplan.config import ACCUMULATOR_BYTES, DTYPE_BYTES, ModelShape
from hydraplan.cost import CostModel
from hydraplan.model import FloatArray, IntArray, Op, Schedule, Sequences
from hydraplan.route import NOWHERE
from hydraplan.slots import slot_rows

Engine = Literal["hydraplan", "megatron"]

TERMS = (
    "weights", "gradients", "optimizer", "activations", "working", "logits", "messages",
    "exchanges", "communicators",
)  # fmt: skip
"""Working: what the op at hand makes besides what stays. Logits: of the last stage, with the final
norm's rows. Messages: between stages, and the gradient sum's. Exchanges: of inner groups and
rings."""

LOSS_CHUNK_ELEMENTS = 2**22
"""Logits of a slot beyond which they are made in chunks, as `hydraplan.executor.decoder` does."""

MESSAGES_AHEAD = 4
"""Receives posted ahead, and sends not waited for, of `hydraplan.executor.transport`."""

COMMUNICATOR_BYTES = 256 << 20
"""Of one NCCL communicator. Assumed: about 32 channels, two buffers of 4 MiB each (the default
of NCCL_BUFFSIZE); NVIDIA/nccl issue 986 says that it grows with channels and communicators."""


class LossBytes(NamedTuple):
    """Final norm, head and loss of slots: held after F, after B, and worked with in F and in B."""

    kept: FloatArray
    waits: FloatArray
    in_forward: FloatArray
    in_backward: FloatArray


def weight_elements(cost: CostModel) -> list[list[list[int]]]:
    """Elements of every weight of each [stage][chunk], after tensor parallelism."""
    model = cost.model
    hidden, ffn, vocab = model.hidden_size, model.ffn_hidden_size, model.vocab_size
    query, key = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    matrices = [query, key, key, query, ffn, ffn, ffn]
    layer = [hidden, hidden, *(hidden * width // cost.tp for width in matrices)]
    stages = [[layer * count for count in chunks] for chunks in cost.layers]
    begins, ends = cost.route.ends()
    for stage, chunk in begins:
        stages[stage][chunk] += [vocab * hidden // cost.tp]
    for stage, chunk in ends:
        stages[stage][chunk] += [hidden, vocab * hidden // cost.tp]
    return stages


def state_bytes(cost: CostModel, engine: Engine = "hydraplan") -> IntArray:
    """Bytes of weights, gradients and optimizer on the fullest rank of each stage, (3, stages).

    Source: the executor holds weights, gradients and both AdamW moments in the accumulator's
    precision, the moments of a weight on one lane of its stage. Megatron Core's guide states
    6 + 12 / d bytes a parameter for 16-bit parameters with 32-bit gradients, 8 + 8 / d for 32-bit
    ones, d data-parallel ranks, which are all R here.
    """
    element, wide = DTYPE_BYTES[cost.model.dtype], ACCUMULATOR_BYTES[cost.model.dtype]
    found = []
    for chunks in weight_elements(cost):
        sizes = [size for chunk in chunks for size in chunk]
        total = sum(sizes)
        if engine == "hydraplan":
            fullest = _fullest_share(sizes, cost.ranks)
            found.append([wide * total, wide * total, 2 * wide * fullest])
        else:
            copies = 2 if element == wide else 3
            shard = -(-total // cost.ranks)
            found.append([element * total, wide * total, copies * wide * shard])
    return np.array(found, np.int64).T


def _fullest_share(sizes: list[int], ranks: int) -> int:
    """Elements on the fullest rank where whole weights go, largest first, to the emptiest.

    Source: PyTorch's ZeroRedundancyOptimizer.
    """
    held = [0] * ranks
    heapify(held)
    for size in sorted(sizes, reverse=True):
        heapreplace(held, held[0] + size)
    return max(held)


def layer_work_bytes(model: ModelShape, recompute: Recompute, is_split: bool) -> tuple[int, int]:
    """Bytes of a row that B has most at once in a layer, besides what it found there.

    First what is there from the layer's last linear on: the gradient that came, and under full the
    layer made again. Then what SwiGLU adds: gradients of its product and of both factors, where
    the product is free by then unless W waits for it (`is_split`); selective makes silu(gate) and
    the product again.
    """
    b, a = DTYPE_BYTES[model.dtype], ACCUMULATOR_BYTES[model.dtype]
    hidden, ffn = b * model.hidden_size, b * model.ffn_hidden_size
    if recompute == "selective":
        return hidden, 5 * ffn
    gated = (3 if is_split else 2) * ffn
    if recompute == "none":
        return hidden, gated
    # What went in is the first norm's input, and is a copy of it only in another precision.
    return hidden + forward_bytes(model) - (hidden if a == b else 0), gated


def kept_logit_rows(model: ModelShape) -> int:
    """Most rows of a slot whose logits are made whole and kept."""
    return max(1, LOSS_CHUNK_ELEMENTS // model.vocab_size)


def loss_bytes(cost: CostModel, rows: IntArray) -> LossBytes:
    """Bytes at the end of the route for slots of so many rows, each of the shape of `rows`.

    Few logits are kept as their log-softmax, beside which B has two gradients of them at once;
    more are made in chunks, and again in backward, with a gradient of the head for every chunk.
    """
    model = cost.model
    b, a = DTYPE_BYTES[model.dtype], ACCUMULATOR_BYTES[model.dtype]
    hidden, vocab = model.hidden_size, model.vocab_size
    norm = 2 * a * hidden + b * hidden + a
    chunk = kept_logit_rows(model)
    is_whole = rows <= chunk
    few, some = rows / cost.tp, np.minimum(rows, chunk) / cost.tp
    head = (a + b if a != b else a) * hidden * vocab / cost.tp
    made_again = some * (norm + 3 * a * vocab) + head
    return LossBytes(
        np.where(is_whole, few * (norm + a * vocab), few * b * hidden),
        np.where(is_whole, few * b * (hidden + vocab), 0.0),
        np.where(is_whole, few * a * vocab, some * (norm + 2 * a * vocab)),
        np.where(is_whole, 2 * few * a * vocab, made_again),
    )


def most_loss_bytes(cost: CostModel, rows: IntArray) -> LossBytes:
    """The most of `loss_bytes` for slots of at most so many rows.

    A slot has either kind of logits: what F and B work with is beyond what others may keep.
    """
    more = loss_bytes(cost, rows)
    few = loss_bytes(cost, np.minimum(rows, kept_logit_rows(cost.model)))
    kept = np.maximum(more.kept, few.kept)
    return LossBytes(
        kept,
        np.maximum(more.waits, few.waits),
        np.maximum(more.kept + more.in_forward, few.kept + few.in_forward) - kept,
        np.maximum(more.kept + more.in_backward, few.kept + few.in_backward) - kept,
    )


def stage_bytes(
    cost: CostModel,
    schedule: Schedule,
    rows: IntArray,
    engine: Engine = "hydraplan",
    num_communicators: int = 0,
    groups: FloatArray | None = None,
    at_most: bool = False,
) -> IntArray:
    """Bytes of every term on the fullest rank of each stage at its fullest moment.

    Args:
        rows: Of every slot, shape (lanes, microbatches).
        groups: What groups take besides (`group_bytes`); None where no sequence has any.
        num_communicators: NCCL communicators of a rank; none on a CPU.
        at_most: Slots may also hold fewer rows. All terms grow with them but the loss's: few
            logits are kept where more are not, so those count in full.

    Returns:
        Shape (len(TERMS), stages).
    """
    found: IntArray = np.zeros((len(TERMS), cost.pp), np.int64)
    states, elements = state_bytes(cost, engine), weight_elements(cost)
    groups = np.zeros((2, *rows.shape)) if groups is None else groups
    for stage in range(cost.pp):
        made = ACCUMULATOR_BYTES[cost.model.dtype] * np.array([*map(sum, elements[stage])])
        absent = _absent(schedule[stage], made) * (engine == "hydraplan")
        in_ops = _in_ops(cost, schedule, stage, rows, groups, absent, at_most)
        largest = max(map(max, elements[stage]))
        moments = np.concatenate([in_ops, _after_ops(cost, largest, states[1, stage])])
        fullest = moments[moments.sum(axis=1).argmax()]
        found[:3, stage] = states[:, stage]
        found[1, stage] += int(fullest[0])
        found[3:8, stage] = np.ceil(fullest[1:])
    found[8] = COMMUNICATOR_BYTES * num_communicators
    return found


def group_bytes(cost: CostModel, placed: Sequences, num_microbatches: int) -> FloatArray:
    """What slots take since their sequences have groups, shape (2, lanes, microbatches).

    First what F keeps more in a layer: in an inner group the output of the heads as well as that of
    the rows, and copies of KV heads. Then the buffers of one layer's exchanges, which live on until
    the transport lets go of them: both ends of both all-to-alls; keys and their gradients of two
    hops of a ring.
    """
    taken = np.zeros((2, cost.ranks, num_microbatches))
    shapes = np.stack([placed.ulysses_size, placed.ring_size])
    for u, r in np.unique(shapes, axis=1).T.tolist():
        alike = placed.take(np.flatnonzero((shapes[0] == u) & (shapes[1] == r)))
        rows = slot_rows(alike, cost.ranks, num_microbatches)
        taken += np.array(group_row_bytes(cost, u, r))[:, None, None] * rows
    return taken


def group_row_bytes(cost: CostModel, ulysses_size: int, ring_size: int) -> tuple[float, float]:
    """What `group_bytes` adds up for one row of a sequence with such a group."""
    b, a = DTYPE_BYTES[cost.model.dtype], ACCUMULATOR_BYTES[cost.model.dtype]
    query, key = (cost.model.head_dim * n for n in (cost.num_heads, 2 * cost.num_kv_heads))
    keys = max(1.0, ulysses_size / cost.num_kv_heads) * key
    kept, exchanged = 0.0, 0.0
    if ulysses_size > 1:
        kept, exchanged = b * (query + keys - key), 2 * b * (2 * query + keys)
    if ring_size > 1:
        exchanged += 2 * (a + b) * keys
    return kept, exchanged


def _absent(ops: tuple[Op, ...], made: IntArray) -> IntArray:
    """Bytes of gradients that are not there yet, negative, at every op, (ops,).

    Those of a chunk, `made` (chunks,), come with its first W or BW.
    """
    there, result = np.zeros(len(made), np.bool_), np.zeros(len(ops), np.int64)
    for i, op in enumerate(ops):
        result[i] = -made[~there].sum()
        there[op.chunk] |= op.kind in ("W", "BW")
    return result


def _after_ops(cost: CostModel, largest: int, gradient_bytes: int) -> FloatArray:
    """Terms of the gradient sum and of the update as `_in_ops` gives them, (2, 6)."""
    summed = float(gradient_bytes) if cost.ranks > 1 else 0.0
    update = 2.0 * ACCUMULATOR_BYTES[cost.model.dtype] * largest
    return np.array([[0.0, 0.0, 0.0, 0.0, summed, 0.0], [0.0, 0.0, update, 0.0, 0.0, 0.0]])


def _in_ops(
    cost: CostModel,
    schedule: Schedule,
    stage: int,
    rows: IntArray,
    groups: FloatArray,
    absent: IntArray,
    at_most: bool,
) -> FloatArray:
    """Terms in the fullest moment of each lane, (lanes, 6).

    First gradients that are not there yet (`absent`), then those from activations to exchanges.
    """
    model, ops = cost.model, schedule[stage]
    b, a = DTYPE_BYTES[model.dtype], ACCUMULATOR_BYTES[model.dtype]
    kind = np.array([op.kind for op in ops])[:, None]
    chunk = np.array([op.chunk for op in ops], np.int64)
    microbatch = np.array([op.microbatch for op in ops], np.int64)
    op_rows, op_grouped = rows.T[microbatch], groups[0].T[microbatch]
    layers = np.array(cost.layers[stage], float)[chunk][:, None]
    is_first = (cost.route.before[stage] == NOWHERE)[chunk][:, None]
    is_last = (cost.route.after[stage] == NOWHERE)[chunk][:, None]
    is_forward, is_b, is_w, is_bw = (kind == name for name in ("F", "B", "W", "BW"))

    hidden = b * model.hidden_size / cost.tp
    kept = (layers * forward_bytes(model, cost.recompute) / cost.tp + a * model.head_dim) * op_rows
    if cost.recompute != "full":
        kept = kept + layers * op_grouped
    waits = (layers * waiting_bytes(model) / cost.tp + is_first * hidden) * op_rows
    parts = (most_loss_bytes if at_most else loss_bytes)(cost, op_rows)
    loss = LossBytes(*(is_last * part for part in parts))
    activations = is_forward * kept + is_b * (waits - kept) - is_w * waits - is_bw * kept
    logits = is_forward * loss.kept + is_b * (loss.waits - loss.kept)
    logits = logits - is_w * loss.waits - is_bw * loss.kept
    held, ends = np.cumsum(activations, axis=0), np.cumsum(logits, axis=0)
    held_before, ends_before = held - activations, ends - logits

    product = (a if a == b else a + b) * model.hidden_size * model.ffn_hidden_size / cost.tp
    whole, gated = (
        np.where(is_b, split, joined) / cost.tp * op_rows
        for joined, split in zip(
            layer_work_bytes(model, cost.recompute, False),
            layer_work_bytes(model, cost.recompute, True),
            strict=True,
        )
    )
    made = 2 * hidden * op_rows
    if cost.recompute == "full":
        made, whole = made + 4 * b * model.ffn_hidden_size / cost.tp * op_rows, whole + op_grouped
    grown = is_b * (layers - 1) / layers * np.maximum(0.0, waits - kept)
    back = grown + whole + np.maximum(gated, np.where(is_b, 0.0, product))
    working = is_forward * made + (is_b | is_bw) * back + is_w * product
    ahead = _messages(cost, ops, stage)[:, None] * hidden * rows.max(axis=1)
    exchanged = np.broadcast_to(groups[1].max(axis=1), ahead.shape)
    absent = np.broadcast_to(absent[:, None], ahead.shape)
    in_layers = (
        absent,
        np.where(is_forward, held, held_before),
        working,
        np.where(is_forward, ends_before, np.where(is_w, ends_before, ends)),
        ahead,
        exchanged,
    )
    in_loss = (
        absent,
        np.where(is_forward, held, held_before),
        is_forward * loss.in_forward + (is_b | is_bw) * loss.in_backward,
        np.where(is_forward, ends, ends_before),
        ahead,
        exchanged,
    )
    moments = np.concatenate([np.stack(in_layers, axis=-1), np.stack(in_loss, axis=-1)])
    fullest = moments.sum(axis=2).argmax(axis=0)
    result: FloatArray = moments[fullest, np.arange(rows.shape[0])]
    return result


def _messages(cost: CostModel, ops: tuple[Op, ...], stage: int) -> IntArray:
    """Messages on their way at every op: receives posted ahead, sends not waited for, (ops,)."""
    own = range(stage * cost.route.num_chunks, (stage + 1) * cost.route.num_chunks)
    comes, goes = [], []
    for op in ops:
        sides = cost.route.before[stage, op.chunk], cost.route.after[stage, op.chunk]
        source, target = sides if op.kind == "F" else sides[::-1]
        comes.append(op.kind != "W" and source not in (NOWHERE, *own))
        goes.append(op.kind != "W" and target not in (NOWHERE, *own))
    received, sent = np.cumsum(comes), np.cumsum(goes) - goes
    left = received[-1] - received
    result: IntArray = np.minimum(MESSAGES_AHEAD, left) + np.minimum(MESSAGES_AHEAD, sent)
    return result
