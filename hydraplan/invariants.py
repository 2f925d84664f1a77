"""What every valid plan obeys, each rule once; used by `validate`, the tests and `execute`.

A rule yields one sentence for every broken row, naming the row and both values.
"""

from collections.abc import Callable, Iterator

import numpy as np

from hydraplan.activations import held_shares
from hydraplan.cost import CostModel
from hydraplan.errors import many
from hydraplan.layout import MAX_LENGTH_TOKENS, expand, legal_degrees, rank_tokens, rank_tokens_max
from hydraplan.metrics import peak_live_tokens
from hydraplan.model import ON_RANKS, UNPLACED, BatchPlan, IntArray, Sequences
from hydraplan.planheader import PlanHeader, reorder_window

Rule = Callable[[PlanHeader, CostModel, BatchPlan, Sequences], Iterator[str]]


def check_plan(header: PlanHeader, batch: BatchPlan) -> list[str]:
    """Sentences about everything broken in one batch; empty if the batch is valid."""
    return [text for texts in broken_rules(header, batch).values() for text in texts]


def broken_rules(header: PlanHeader, batch: BatchPlan) -> dict[str, list[str]]:
    """The same by the rule that is broken, as plans promise it; a rule that holds is left out.

    Rules that rest on others are only asked once those hold, so that one fault is named once.
    """
    cost = header.cost_model()
    unknown = sorted(set(header.invariants) - set(RULES))
    if unknown:
        text = f"the plan promises invariants this version does not know: {', '.join(unknown)}"
        return {"invariants": [text]}
    missing = sorted(FOUNDATIONS - set(header.invariants))
    if missing:
        text = f"the plan does not promise {', '.join(missing)}, which everything rests on"
        return {"invariants": [text]}
    broken: dict[str, list[str]] = {}
    for name in (n for n in RULES if n in header.invariants):
        placed = batch.sequences.placed()
        texts = [
            f"batch {batch.batch}: {text}" for text in RULES[name](header, cost, batch, placed)
        ]
        if texts:
            broken[name] = texts
        if broken and name in FOUNDATIONS:
            break
    return broken


def follows(header: PlanHeader, batch: BatchPlan, first_row: int) -> list[str]:
    """Sentences about rows lost or doubled between batches; rows are consecutive over a plan.

    Args:
        first_row: Row after the last one of the batch before; 0 for the first batch.
    """
    rows, asked = batch.sequences, header.options.batch_sequences
    found = []
    if len(rows) and rows.sequence_id[0] != first_row:
        found.append(f"begins with sequence {rows.sequence_id[0]}, not {first_row}")
    last = batch.batch == header.num_batches - 1
    if asked is not None and (len(rows) > asked or (len(rows) < asked and not last)):
        found.append(f"holds {len(rows)} rows, --batch-sequences asks for {asked}")
    most, held = header.options.batch_tokens, int(rows.length_tokens.sum())
    if most is not None and held > most and len(rows) > 1:
        found.append(f"holds {held} tokens, --batch-tokens asks for at most {most}")
    return [f"batch {batch.batch} {text}" for text in found]


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
    legal = {(u, r) for d in legal_degrees(cost.ranks) for u, r in cost.shapes(int(d))}
    for i in range(len(placed)):
        u, r, d = int(placed.ulysses_size[i]), int(placed.ring_size[i]), int(placed.degree[i])
        if u * r != d or (u, r) not in legal:
            yield (
                f"sequence {placed.sequence_id[i]}: degree {d} as ulysses {u} x ring {r} is not"
                f" legal for {cost.num_heads} query and {cost.num_kv_heads} KV heads on"
                f" {cost.ranks} ranks, blocks of {cost.node_ranks} inside a node"
            )


def _layout(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """rank_tokens_max is what the layout of the sequence gives."""
    fullest = rank_tokens_max(placed.length_tokens, placed.ulysses_size, placed.ring_size)
    for i in np.flatnonzero(fullest != placed.rank_tokens_max):
        yield (
            f"sequence {placed.sequence_id[i]}: rank_tokens_max {placed.rank_tokens_max[i]},"
            f" its layout gives {fullest[i]}"
        )


def _inside(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """Groups are blocks of lanes inside the pool, in an existing microbatch."""
    for i in range(len(placed)):
        first, d, m = (int(a[i]) for a in (placed.first_rank, placed.degree, placed.microbatch))
        if first < 0 or first + d > cost.ranks:
            yield f"{_on_ranks(placed, i)} leave the pool 0..{cost.ranks - 1}"
        if not 0 <= m < batch.num_microbatches:
            yield (f"sequence {placed.sequence_id[i]}: microbatch {m} of {batch.num_microbatches}")


def _aligned(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """Groups are aligned blocks: they begin at a multiple of their degree."""
    for i in np.flatnonzero(placed.first_rank % placed.degree):
        yield f"{_on_ranks(placed, int(i))} are not aligned to degree {placed.degree[i]}"


def _min_degree(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """No degree is below the smallest that was asked for."""
    least = header.options.min_degree
    for i in np.flatnonzero(placed.degree < least):
        yield (
            f"sequence {placed.sequence_id[i]} has degree {placed.degree[i]},"
            f" the smallest allowed is {least}"
        )


def _microbatch_multiple(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """The number of microbatches is a multiple of what was asked for."""
    count, multiple = batch.num_microbatches, header.options.microbatch_multiple
    if count % multiple:
        yield f"{many(count, 'microbatch')}, no multiple of {multiple}"


def _no_empty_microbatch(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """Every microbatch holds a sequence; single lanes of it may hold none."""
    for microbatch in np.setdiff1d(np.arange(batch.num_microbatches), placed.microbatch):
        yield f"microbatch {microbatch} holds no sequence on any lane, it must hold 1"


def _cap(header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences) -> Iterator[str]:
    """Exact rows of every slot stay within the cap."""
    rows = _rows(cost, batch, placed)
    cap = header.options.max_tokens_per_rank
    for lane, microbatch in np.argwhere(rows > cap):
        yield (
            f"microbatch {microbatch}, lane {lane} holds {rows[lane, microbatch]} rows,"
            f" the cap is {cap}"
        )


def _cap_mean(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """Length over degree, summed over a slot, stays within the cap; exact rows may not."""
    sequence, lane, microbatch = _slots(placed)
    held = np.zeros((cost.ranks, batch.num_microbatches))
    np.add.at(held, (lane, microbatch), (placed.length_tokens / placed.degree)[sequence])
    cap = header.options.max_tokens_per_rank
    for r, m in np.argwhere(held > cap * (1 + ROUNDING)):
        yield (
            f"microbatch {m}, lane {r} holds {held[r, m]:.10g} tokens as length over degree,"
            f" the cap is {cap}"
        )


def _cap_per_sequence(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """Length over degree of every single sequence stays within the cap; their sum may not."""
    cap = header.options.max_tokens_per_rank
    for i in np.flatnonzero(placed.length_tokens > cap * placed.degree):
        share = placed.length_tokens[i] / placed.degree[i]
        yield (
            f"sequence {placed.sequence_id[i]} has {share:.10g} tokens on each of its"
            f" {placed.degree[i]} ranks, the cap is {cap}"
        )


def _every_rank(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """Every lane holds something in every microbatch."""
    held = np.zeros((cost.ranks, batch.num_microbatches), np.bool_)
    held[_slots(placed)[1:]] = True
    for lane, microbatch in np.argwhere(~held):
        yield f"microbatch {microbatch}, lane {lane} holds 0 sequences, it must hold 1"


def _one_degree(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """What a lane holds in a microbatch lies on one block of ranks."""
    sequence, lane, microbatch = _slots(placed)
    first = np.full((cost.ranks, batch.num_microbatches), len(placed))
    np.minimum.at(first, (lane, microbatch), sequence)
    other = first[lane, microbatch]
    block = np.stack([placed.first_rank, placed.degree])
    differ = np.flatnonzero((block[:, sequence] != block[:, other]).any(axis=0))
    for j in differ[np.unique(sequence[differ], return_index=True)[1]]:
        yield (
            f"microbatch {microbatch[j]}, lane {lane[j]} belongs to two blocks:"
            f" {_on_ranks(placed, int(other[j]))}; {_on_ranks(placed, int(sequence[j]))}"
        )


def _rows(cost: CostModel, batch: BatchPlan, placed: Sequences) -> IntArray:
    """Exact rows of every slot, (lanes, microbatches)."""
    rows = np.zeros((cost.ranks, batch.num_microbatches), np.int64)
    exact = rank_tokens(placed.length_tokens, placed.ulysses_size, placed.ring_size)
    np.add.at(rows, _slots(placed)[1:], exact)
    return rows


def _slots(placed: Sequences) -> tuple[IntArray, IntArray, IntArray]:
    """Sequence (as index), lane and microbatch of every member of every group."""
    sequence, member = expand(placed.degree)
    return sequence, placed.first_rank[sequence] + member, placed.microbatch[sequence]


def _on_ranks(placed: Sequences, i: int) -> str:
    """Where one sequence lies, in words."""
    first, degree = int(placed.first_rank[i]), int(placed.degree[i])
    return f"sequence {placed.sequence_id[i]}: ranks {first}..{first + degree - 1}"


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


def _max_groups(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """No more distinct groups of two and more ranks than asked."""
    wide, most = placed.degree > 1, header.options.max_groups
    groups = set(zip(placed.first_rank[wide].tolist(), placed.degree[wide].tolist(), strict=True))
    if most is not None and len(groups) > most:
        yield f"{len(groups)} distinct groups of ranks, at most {most} are asked for"


def _reorder(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """No row runs before one of an earlier window (`planheader.reorder_window`).

    Windows are so many rows of the file in turn, `none` means windows of one row. A microbatch
    may hold rows of several: the next one begins with the window it ended with, or a later one.
    """
    size = reorder_window(header.options.reorder) or np.iinfo(np.int64).max  # all are in one
    window = (placed.sequence_id - batch.sequences.sequence_id.min()) // size
    by = np.lexsort((window, placed.microbatch))
    used, start = np.unique(placed.microbatch[by], return_index=True)
    first, last = by[start], by[np.append(start[1:], len(by)) - 1]
    for i in np.flatnonzero(window[last[:-1]] > window[first[1:]]):
        yield (
            f"sequence {placed.sequence_id[last[i]]} is in microbatch {used[i]}, sequence"
            f" {placed.sequence_id[first[i + 1]]} of an earlier window only in {used[i + 1]};"
            f" windows have {size} rows"
        )


def _schedule(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """Every stage runs every microbatch forward, then backward, exactly once a chunk."""
    last = batch.num_microbatches - 1
    for stage, ops in enumerate(batch.schedule):
        chunks = range(len(cost.layers[stage]))
        seen: dict[tuple[int, int], str] = {
            (m, c): "" for m in range(batch.num_microbatches) for c in chunks
        }
        for position, (kind, m, c, _) in enumerate(ops):
            where = f"stage {stage}, position {position}: {kind} of microbatch {m}, chunk {c}"
            following = _NEXT_OPS.get(seen.get((m, c), ""), ())
            if kind not in _OPS:
                yield (
                    f"stage {stage}, position {position}: op {kind!r} is unknown;"
                    f" there are {', '.join(_OPS)}"
                )
            elif (m, c) not in seen:
                yield (
                    f"{where} does not exist; there are microbatches 0..{last},"
                    f" chunks 0..{len(chunks) - 1}"
                )
            elif kind not in following:
                yield (
                    f"{where} runs after {', '.join(seen[m, c]) or 'nothing'} of these;"
                    f" what may run there is {' or '.join(following) or 'nothing'}"
                )
            else:
                seen[m, c] += kind
        for (m, c), done in seen.items():
            if done != "FBW":
                yield (
                    f"stage {stage}: microbatch {m}, chunk {c} runs only"
                    f" {', '.join(done) or 'nothing'}; it must run F, then B and W or both as BW"
                )


def _live_tokens(
    header: PlanHeader, cost: CostModel, batch: BatchPlan, placed: Sequences
) -> Iterator[str]:
    """No rank ever holds activations of more tokens than were allowed."""
    limit = header.options.live_limit_tokens
    if limit is None or any(_schedule(header, cost, batch, placed)):
        return
    rows = _rows(cost, batch, placed)
    peak = peak_live_tokens(batch.schedule, rows, held_shares(cost.model, cost.recompute))
    if peak > limit * (1 + ROUNDING):
        yield (
            f"activations of {peak:.10g} tokens are held at once, the limit is"
            f" {header.options.live_microbatches} x {header.options.max_tokens_per_rank}"
        )


_OPS = ("F", "B", "W", "BW")
_NEXT_OPS = {"": ("F",), "F": ("B", "BW"), "FB": ("W",)}

ROUNDING = 1e-9
"""Share by which sums of length over degree may pass the cap, and activations their limit."""

RULES: dict[str, Rule] = {
    "accounted": _accounted,
    "degree": _degree,
    "layout": _layout,
    "inside": _inside,
    "aligned": _aligned,
    "min-degree": _min_degree,
    "microbatch-multiple": _microbatch_multiple,
    "no-empty-microbatch": _no_empty_microbatch,
    "max-groups": _max_groups,
    "cap": _cap,
    "cap-mean": _cap_mean,
    "cap-per-sequence": _cap_per_sequence,
    "every-rank": _every_rank,
    "one-degree": _one_degree,
    "order": _order,
    "reorder": _reorder,
    "schedule": _schedule,
    "live-tokens": _live_tokens,
}
"""Every rule by the name a plan promises it under, foundations first."""

CAPS = {
    "cap": "at most {cap} tokens a rank and microbatch",
    "cap-mean": "at most {cap} tokens, as length over degree, a rank and microbatch",
    "cap-per-sequence": "at most {cap} tokens of each sequence a rank, more of several together",
}
"""What each way to keep to the cap means, in words; a strategy promises one of them."""

FOUNDATIONS = frozenset({"accounted", "degree", "layout", "inside"})
"""Rules without which no other can even be asked; every plan must promise them."""
