"""The engine on real ranks, on cases that hypothesis draws.

Ranks are started once. Rank 0 draws and tells the others each case as text; all run it, and
rank 0 judges the worst of what they found, so that shrinking works as in one process.
"""

import json
from dataclasses import dataclass
from math import isqrt

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from hydraplan.heads import HeadSplit, contiguous_split, even_split
from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.nested import nested_attention
from hydraplan.kernels.packing import BucketKey, rank_layout
from hydraplan.model import Sequences
from hydraplan.traffic import member_bytes
from tests.attention_cases import (
    Tensors,
    WorldGroups,
    oracle,
    sent_here,
    shares,
    whole_tensors,
)
from tests.builders import Place, placed_sequences
from tests.head_splits import head_splits
from tests.processes import run_ranks

HEAD_DIM = 8
CPU = torch.device("cpu")
LENGTHS = st.one_of(st.integers(1, 20), st.integers(21, 400), st.integers(401, 4_097))
FEW_SCORES, MANY_SCORES = 2**22, 2**24
"""Sum of length squared times heads of one drawn case, so that the oracle stays affordable."""
MAX_TEXT = 2**13
"""Letters of a case."""

HEADS = {
    "MHA": st.integers(1, 6).map(lambda n: (n, n)),
    "GQA": st.tuples(st.integers(2, 4), st.integers(2, 3)).map(lambda x: (x[0] * x[1], x[0])),
    "MQA": st.integers(2, 6).map(lambda n: (n, 1)),
}


@dataclass(frozen=True)
class Case:
    """Sequences of one microbatch, the head splits of some of its buckets, how messages go."""

    heads: int
    kv_heads: int
    places: tuple[Place, ...]
    splits: tuple[tuple[BucketKey, HeadSplit], ...]
    batched_hops: bool = True
    grouped: bool = True


LONG = Case(
    2, 1, (Place(4_097, 0, 2, 2),), (((0, 2, 2), contiguous_split(2, 1, [[0, 2], [1, 1]])),)
)


def text_of(case: Case) -> str:
    splits = [[key, split.q_heads] for key, split in case.splits]
    ways = case.batched_hops, case.grouped
    return json.dumps([case.heads, case.kv_heads, case.places, splits, *ways])


def case_of(text: str) -> Case:
    heads, kv_heads, places, splits, *ways = json.loads(text)
    held = [
        (tuple(key), tuple(tuple(map(tuple, shard)) for shard in q_heads))
        for key, q_heads in splits
    ]
    return Case(
        heads,
        kv_heads,
        tuple(Place(*place) for place in places),
        tuple((key, HeadSplit(heads, kv_heads, q_heads)) for key, q_heads in held),
        *ways,
    )


@st.composite
def cases(draw: st.DrawFn, ranks: int, size: tuple[int, int], kind: str, max_scores: int) -> Case:
    """A sequence on a group of `size`, and up to three others anywhere, evenly split or not."""
    heads, kv_heads = draw(HEADS[kind])
    sizes = [(u, r) for u in range(1, ranks + 1) for r in range(1, ranks // u + 1)]
    left, places = max_scores // heads, []
    for u, r in [size, *draw(st.lists(st.sampled_from(sizes), max_size=3))]:
        length = min(draw(LENGTHS), isqrt(left))
        left -= length**2
        if length:
            places.append(Place(length, draw(st.integers(0, ranks - u * r)), u, r))
    splits = []
    for key in sorted({(p.first_rank, p.ulysses_size, p.ring_size) for p in places}):
        if key[1] > 1 and draw(st.booleans()):
            split = draw(head_splits(st.just((heads, kv_heads)), st.just((key[1], key[2]))))
            splits.append((key, split))
    ways = draw(st.booleans()), draw(st.booleans())
    return Case(heads, kv_heads, tuple(places), tuple(splits), *ways)


def run_case(case: Case, rank: int, groups: WorldGroups) -> list[float]:
    """Worst over all ranks: error of out; of gradients; bytes sent too many or few, both ways."""
    placed = placed_sequences(case.places)
    whole = whole_tensors(placed, case.heads, case.kv_heads, HEAD_DIM)
    right = told_by_rank_0(rank, placed, case, whole)
    layout = rank_layout(placed, 0, rank, dict(case.splits))
    kernel = choose_kernel(CPU, torch.float64)
    *qkv, dout = (x.double() for x in shares(placed, rank, whole))
    leaves = [x.clone().requires_grad_() for x in qkv]
    groups.batched_hops, groups.grouped = case.batched_hops, case.grouped
    with sent_here() as forward:
        out = nested_attention(*leaves, layout, groups, kernel)
    with sent_here() as backward:
        grads = torch.autograd.grad(out, leaves, dout)
    errors = [
        float((a - b).abs().max()) if len(a) else 0.0
        for a, b in zip((out.detach(), *grads), shares(placed, rank, right), strict=True)
    ]
    counted = torch.tensor([sum(forward), sum(backward)])
    off = (counted - bytes_of(case, rank)).abs().tolist()
    worst = torch.tensor([errors[0], max(errors[1:]), *off], dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    found: list[float] = worst.tolist()
    return found


def told_by_rank_0(rank: int, placed: Sequences, case: Case, whole: Tensors) -> Tensors:
    """The naive oracle's answers, computed by one rank for all."""
    heads = [case.heads, case.heads, case.kv_heads, case.kv_heads]
    shapes = [(n, h, HEAD_DIM) for n in placed.length_tokens.tolist() for h in heads]
    sizes = [n * h * d for n, h, d in shapes]
    flat = torch.empty(sum(sizes), dtype=torch.float64)
    ids = placed.sequence_id.tolist()
    if rank == 0:
        right = oracle(whole)
        torch.cat([answer.reshape(-1) for i in ids for answer in right[i]], out=flat)
    dist.broadcast(flat, 0)
    parts = [x.view(shape) for x, shape in zip(flat.split(sizes), shapes, strict=True)]
    return {i: tuple(parts[4 * at : 4 * at + 4]) for at, i in enumerate(ids)}


def bytes_of(case: Case, rank: int) -> Tensor:
    """What a rank should send in float64, forward and backward, counted from actual rows."""
    splits, sent = dict(case.splits), torch.zeros(2, dtype=torch.int64)
    for length, first, u, r, _ in case.places:
        if first <= rank < first + u * r:
            split = splits.get((first, u, r)) or even_split(case.heads, case.kv_heads, u, r)
            sent += torch.from_numpy(member_bytes(length, split, HEAD_DIM, 8, 8)[:, rank - first])
    return sent


def draw_on_ranks(rank: int, ranks: int, max_scores: int) -> int:
    """Run drawn cases of every group size and kind of heads; how many there were."""
    groups, count = WorldGroups(ranks), 0
    if rank:
        while text := told(""):
            run_case(case_of(text), rank, groups)
        return 0

    def judge(case: Case) -> None:
        nonlocal count
        count += 1
        told(text_of(case))
        out, gradients, *off = run_case(case, rank, groups)
        assert out <= 1e-12
        assert gradients <= 1e-10
        assert off == [0, 0]

    calm = settings(
        max_examples=2,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        judge(LONG)
        for u in range(1, ranks + 1):
            for r in range(1, ranks // u + 1):
                for kind in HEADS:
                    calm(given(cases(ranks, (u, r), kind, max_scores))(judge))()
    finally:
        told("")
    return count


def told(text: str) -> str:
    """What rank 0 says, on all ranks."""
    letters = torch.tensor(list(text.ljust(MAX_TEXT).encode()), dtype=torch.uint8)
    assert len(letters) == MAX_TEXT
    dist.broadcast(letters, 0)
    return bytes(letters.tolist()).decode().rstrip()


@pytest.mark.dist
def test_drawn_cases_on_four_ranks_match_the_oracle_and_the_count_of_bytes():
    run, *_ = run_ranks(draw_on_ranks, 4, 4, FEW_SCORES)
    assert run >= 40


@pytest.mark.dist
@pytest.mark.slow
def test_drawn_cases_on_eight_ranks_match_the_oracle_and_the_count_of_bytes():
    run, *_ = run_ranks(draw_on_ranks, 8, 8, MANY_SCORES, timeout_s=110)
    assert run >= 100
