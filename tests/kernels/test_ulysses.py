import pytest
import torch
import torch.distributed as dist

from hydraplan.errors import InputError
from hydraplan.kernels.ulysses import check_heads, heads_to_rows, rows_to_heads
from hydraplan.layout import legal_ulysses
from tests.processes import run_ranks

ROWS = (3, 0, 5, 1)
HEADS = (8, 4, 2, 1)


def part(rank: int, rows: int, heads: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1_000 * seed + rank)
    return torch.randn(rows, heads, 2, generator=generator, dtype=torch.float64)


def delivered(rank: int) -> None:
    mine = [part(rank, ROWS[rank], heads, heads) for heads in HEADS]
    for heads, got in zip(HEADS, rows_to_heads(mine, ROWS, dist.group.WORLD), strict=True):
        whole = torch.cat([part(peer, ROWS[peer], heads, heads) for peer in range(4)])
        first = rank * heads // 4
        assert torch.equal(got, whole[:, first : first + max(1, heads // 4)])


@pytest.mark.dist
def test_each_peer_gets_its_heads_of_all_rows_fused_uneven_and_replicated():
    run_ranks(delivered, 4)


def products(rank: int) -> list[float]:
    """<A x, y> and <x, A^T y> of this rank, A from rows to heads."""
    x = [part(rank, ROWS[rank], heads, 10 + heads) for heads in HEADS]
    y = [part(rank, sum(ROWS), max(1, heads // 4), 20 + heads) for heads in HEADS]
    there = rows_to_heads(x, ROWS, dist.group.WORLD)
    back = heads_to_rows(y, HEADS, ROWS, ROWS[rank], dist.group.WORLD)
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


def accept(num_heads: int, num_kv_heads: int, ulysses_size: int) -> bool:
    try:
        check_heads(num_heads, num_kv_heads, ulysses_size)
    except InputError:
        return False
    return True


def test_accepted_sizes_are_exactly_the_legal_ones():
    for heads, kv_heads in ((8, 8), (8, 2), (8, 1), (40, 8), (28, 4), (32, 2), (12, 6)):
        sizes = [2**i for i in range(7)]
        assert [u for u in sizes if accept(heads, kv_heads, u)] == legal_ulysses(
            heads, kv_heads, 64
        )


def test_uneven_heads_are_refused_with_a_sentence():
    with pytest.raises(InputError, match="ulysses_size 4 cuts 6 KV heads unevenly"):
        check_heads(12, 6, 4)
    with pytest.raises(InputError, match="ulysses_size 8 does not divide 28 query heads"):
        check_heads(28, 4, 8)
    with pytest.raises(InputError, match="8 query heads are not a multiple of 3 KV heads"):
        check_heads(8, 3, 1)
