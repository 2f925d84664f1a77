import pytest
import torch
import torch.distributed as dist

from hydraplan.heads import Heads
from hydraplan.kernels.exchange import Peers
from hydraplan.kernels.ulysses import heads_to_rows, rows_to_heads
from tests.processes import run_ranks

ROWS = (3, 0, 5, 1)
HEADS = (8, 4, 2, 1)
HELD: list[tuple[Heads, ...]] = [
    ((5, 7), (0, 1, 2), (), (3, 4, 6)),
    ((3,), (0, 1), (), (2,)),
    ((0, 1), (0,), (), (0, 1)),
    ((0,), (0,), (), (0,)),
]
"""Which heads of each tensor the peers hold: any of them, none, and the same ones."""


def part(rank: int, rows: int, heads: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1_000 * seed + rank)
    return torch.randn(rows, heads, 2, generator=generator, dtype=torch.float64)


def delivered(rank: int) -> None:
    mine = [part(rank, ROWS[rank], heads, heads) for heads in HEADS]
    for group in (dist.group.WORLD, None):
        found = rows_to_heads(mine, HELD, ROWS, Peers((0, 1, 2, 3), rank, group, 7))
        for heads, held, got in zip(HEADS, HELD, found, strict=True):
            whole = torch.cat([part(peer, ROWS[peer], heads, heads) for peer in range(4)])
            assert torch.equal(got, whole[:, list(held[rank])])


@pytest.mark.dist
def test_each_peer_gets_its_heads_of_all_rows_fused_uneven_and_replicated():
    run_ranks(delivered, 4)


def products(rank: int) -> list[float]:
    """<A x, y> and <x, A^T y> of this rank, A from rows to heads."""
    x = [part(rank, ROWS[rank], heads, 10 + heads) for heads in HEADS]
    y = [part(rank, sum(ROWS), len(held[rank]), 20 + i) for i, held in enumerate(HELD)]
    group = dist.group.WORLD
    there = rows_to_heads(x, HELD, ROWS, Peers((0, 1, 2, 3), rank, group, 7))
    back = heads_to_rows(y, HELD, HEADS, ROWS, Peers((0, 1, 2, 3), rank, group, 7))
    assert [b.shape for b in back] == [a.shape for a in x]
    return [
        sum(float((a * b).sum()) for a, b in zip(left, right, strict=True))
        for left, right in ((there, y), (x, back))
    ]


@pytest.mark.dist
def test_the_way_back_is_the_transpose_of_the_way_there():
    sums = [sum(column) for column in zip(*run_ranks(products, 4), strict=True)]
    assert sums[0] == pytest.approx(sums[1], abs=1e-12)
    assert abs(sums[0]) > 0.1
