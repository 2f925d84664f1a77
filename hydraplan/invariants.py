"""What every valid plan obeys, each rule once; used by `validate`, the tests and `execute`.

A rule yields one sentence for every broken row, naming the row and both values.
"""

from collections.abc import Callable, Iterator

import numpy as np

from hydraplan.cost import CostModel
from hydraplan.layout import MAX_LENGTH_TOKENS, expand, rank_tokens, rank_tokens_max
from hydraplan.model import ON_RANKS, UNPLACED, BatchPlan, Sequences
from hydraplan.planheader import PlanHeader

Rule = Callable[[PlanHeader, CostModel, BatchPlan, Sequences], Iterator[str]]


def check_plan(header: PlanHeader, batch: BatchPlan) -> list[str]:
    """Sentences about everything broken in one batch; empty if the batch is valid.

    Rules that rest on others are only asked once those hold, so that one fault is named once.
    """
    cost = header.cost_model()
    unknown = sorted(set(header.invariants) - set(RULES))
    if unknown:
        return [f"the plan promises invariants this version does not know: {', '.join(unknown)}"]
    missing = sorted(FOUNDATIONS - set(header.invariants))
    if missing:
        return [f"the plan does not promise {', '.join(missing)}, which everything rests on"]
    broken: list[str] = []
    for name in (n for n in RULES if n in header.invariants):
        placed = batch.sequences.placed()
        broken += [
            f"batch {batch.batch}: {text}" for text in RULES[name](header, cost, batch, placed)
        ]
        if broken and name in FOUNDATIONS:
            break
    return broken


def _accounted(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """Every row of the batch stands once, with a status that fits its length and its place."""
    s = batch.sequences
    if len(s) == 0 or len(placed) == 0:
        yield f"{len(s)} rows, {len(placed)} of them placed; a batch trains on something"
    ids = s.sequence_id
    for gap in np.flatnonzero(np.diff(ids) != 1):
        yield f"sequence_id {ids[gap]} is followed by {ids[gap + 1]}, rows must be consecutive"
    if len(ids) and ids[0] < 0:
        yield f"sequence_id {ids[0]} is negative"
    for i, status in enumerate(s.status):
        length, on = s.length_tokens[i], status in ON_RANKS
        if status not in (*ON_RANKS, "empty", "overlong"):
            yield f"sequence {ids[i]} has the unknown status {status!r}"
        elif length > MAX_LENGTH_TOKENS:
            yield f"sequence {ids[i]} of {length} tokens is beyond {MAX_LENGTH_TOKENS}"
        elif length < 0 or (length == 0) != (status == "empty"):
            yield f"sequence {ids[i]} of {length} tokens has status {status}"
        elif not on and (s.degree[i], s.microbatch[i], s.first_rank[i]) != (0, UNPLACED, UNPLACED):
            yield f"sequence {ids[i]} is {status} but holds a place"
        elif on and s.valid_tokens[i] != length - 1:
            yield (
                f"sequence {ids[i]} of {length} tokens has {s.valid_tokens[i]} valid tokens;"
                " every token but the last has a label"
            )
        elif on and not np.isfinite(s.predicted_s[i]):
            yield f"sequence {ids[i]} has no finite predicted_s"


def _degree(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """Degree = ulysses_size x ring_size, and heads can be divided that way."""
    legal = {(u, r) for k in range(cost.ranks.bit_length()) for u, r in cost.shapes(1 << k)}
    for i in range(len(placed)):
        u, r, d = int(placed.ulysses_size[i]), int(placed.ring_size[i]), int(placed.degree[i])
        if u * r != d or (u, r) not in legal:
            yield (
                f"sequence {placed.sequence_id[i]}: degree {d} as ulysses {u} x ring {r} is not"
                f" legal for {cost.num_heads} query and {cost.num_kv_heads} KV heads on"
                f" {cost.ranks} ranks, blocks of {cost.node_ranks} inside a node"
            )


def _aligned(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """Groups are aligned blocks of lanes inside the pool, in an existing microbatch."""
    for i in range(len(placed)):
        first, d, m = (int(a[i]) for a in (placed.first_rank, placed.degree, placed.microbatch))
        where = f"sequence {placed.sequence_id[i]}: ranks {first}..{first + d - 1}"
        if first < 0 or first + d > cost.ranks:
            yield f"{where} leave the pool 0..{cost.ranks - 1}"
        elif first % d:
            yield f"{where} are not aligned to degree {d}"
        if not 0 <= m < batch.num_microbatches:
            yield (f"sequence {placed.sequence_id[i]}: microbatch {m} of {batch.num_microbatches}")


def _cap(header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences) -> Iterator[str]:
    """Exact rows of every slot stay within the cap, and rank_tokens_max is what layout says."""
    u, r = placed.ulysses_size, placed.ring_size
    fullest = rank_tokens_max(placed.length_tokens, u, r)
    for i in np.flatnonzero(fullest != placed.rank_tokens_max):
        yield (
            f"sequence {placed.sequence_id[i]}: rank_tokens_max {placed.rank_tokens_max[i]},"
            f" its layout gives {fullest[i]}"
        )
    rows = np.zeros((cost.ranks, batch.num_microbatches), np.int64)
    sequence, member = expand(placed.degree)
    exact = rank_tokens(placed.length_tokens, u, r)
    np.add.at(rows, (placed.first_rank[sequence] + member, placed.microbatch[sequence]), exact)
    cap = header.options.max_tokens_per_rank
    for lane, microbatch in np.argwhere(rows > cap):
        yield (
            f"microbatch {microbatch}, lane {lane} holds {rows[lane, microbatch]} rows,"
            f" the cap is {cap}"
        )


def _order(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """Inside a microbatch: degree descending, then sequence_id, numbered from 0."""
    by = np.lexsort((placed.sequence_id, -placed.degree, placed.microbatch))
    microbatch = placed.microbatch[by]
    expected = np.arange(len(by)) - np.searchsorted(microbatch, microbatch)
    for i in np.flatnonzero(placed.order[by] != expected):
        yield (
            f"sequence {placed.sequence_id[by[i]]} has order {placed.order[by[i]]} in microbatch"
            f" {microbatch[i]}, the global order gives {expected[i]}"
        )


def _schedule(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """Every stage runs every microbatch forward, then backward, exactly once a chunk."""
    for stage, ops in enumerate(batch.schedule):
        chunks = range(len(cost.layers[stage]))
        seen: dict[tuple[int, int], str] = {
            (m, c): "" for m in range(batch.num_microbatches) for c in chunks
        }
        for position, (kind, m, c) in enumerate(ops):
            where = f"stage {stage}, position {position}: {kind} of microbatch {m}, chunk {c}"
            if (m, c) not in seen:
                yield f"{where} does not exist"
            elif kind not in _NEXT_OPS.get(seen[m, c], ()):
                yield f"{where} follows {seen[m, c] or 'nothing'}"
            else:
                seen[m, c] += kind
        for (m, c), done in seen.items():
            if done not in ("FBW",):
                yield f"stage {stage}: microbatch {m}, chunk {c} runs only {done or 'nothing'}"


_NEXT_OPS = {"": ("F",), "F": ("B", "BW"), "FB": ("W",)}

RULES: dict[str, Rule] = {
    "accounted": _accounted,
    "degree": _degree,
    "aligned": _aligned,
    "cap": _cap,
    "order": _order,
    "schedule": _schedule,
}
"""Every rule by the name a plan promises it under, foundations first."""

FOUNDATIONS = frozenset({"accounted", "degree", "aligned"})
"""Rules without which no other can even be asked; every plan must promise them."""
