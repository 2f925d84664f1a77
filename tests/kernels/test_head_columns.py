import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.kernels.head_columns import gather_heads, head_counts, scatter_heads
from tests.head_splits import head_splits

HELD = [((2, 3), (0, 1, 4)), ((1,), (0, 1))]
"""Of five query and two KV heads on two peers."""


def test_peers_lie_one_after_the_other_with_the_heads_of_all_tensors_side_by_side():
    q, k = torch.arange(10.0).view(2, 5, 1), torch.arange(10.0, 14.0).view(2, 2, 1)
    flat = gather_heads([q, k], HELD)
    assert head_counts(HELD) == [3, 5]
    assert flat.tolist() == [2, 3, 11, 7, 8, 13, 0, 1, 4, 10, 11, 5, 6, 9, 12, 13]


def test_what_two_peers_hold_of_one_head_is_summed_wide_and_rounded_once():
    flat = torch.tensor([1.0, 2.0**-8, 2.0**-8], dtype=torch.bfloat16)
    assert float(flat[0] + flat[1] + flat[2]) == 1.0
    (whole,) = scatter_heads(flat, 1, 1, [((0,), (0,), (0,))], [1])
    assert whole.dtype == torch.bfloat16
    assert float(whole) == 1 + 2.0**-7


@settings(max_examples=40, deadline=None)
@given(head_splits(), st.integers(0, 3), st.integers(0, 2))
def test_scattering_is_the_transpose_of_gathering(split, rows, ring):
    heads = [split.q_heads[ring % split.ring_size], split.kv_heads]
    num_heads = [split.num_heads, split.num_kv_heads]
    generator = torch.Generator().manual_seed(rows)
    parts = [torch.randn(rows, n, 2, generator=generator, dtype=torch.float64) for n in num_heads]
    flat = torch.randn(rows * sum(head_counts(heads)) * 2, generator=generator, dtype=torch.float64)
    there = float((gather_heads(parts, heads) * flat).sum())
    back = scatter_heads(flat, rows, 2, heads, num_heads)
    assert [b.shape for b in back] == [a.shape for a in parts]
    assert there == pytest.approx(
        sum(float((a * b).sum()) for a, b in zip(parts, back, strict=True)), abs=1e-12
    )
