"""Gathering and scattering of heads against torch's ops, to the bit where they copy."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hydraplan.kernels.head_columns import gather_heads, head_counts, scatter_heads
from tests.head_splits import head_splits
from tests.triton_device import IGNORE_NUMPY, INTERPRETED, triton_device

DEVICE = triton_device()
fused = pytest.importorskip("hydraplan.kernels.triton_heads")
pytestmark = IGNORE_NUMPY

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}
WIDTHS = st.sampled_from([1, 3, 16, 160])
ROWS = st.integers(0, 20)


def same_bits(a: Tensor, b: Tensor) -> bool:
    kind = BITS[a.element_size()]
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def drawn(seed: int, dtype: torch.dtype, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator).to(DEVICE, dtype)
    return torch.where(x.abs() < 0.1, -0.0, x)


@settings(max_examples=15)
@given(head_splits(), st.integers(0, 2), ROWS, WIDTHS, st.sampled_from(TYPES))
def test_gathered_heads_are_those_of_torch_to_the_bit(split, ring, rows, width, dtype):
    heads = [split.q_heads[ring % split.ring_size], split.kv_heads, split.kv_heads]
    q, kv = split.num_heads, split.num_kv_heads
    fused_THD = drawn(0, dtype, rows, q + 2 * kv, width)
    parts = [
        fused_THD[:, :q],
        fused_THD[:, q : q + kv],
        drawn(1, dtype, width, kv, rows).permute(2, 1, 0),
    ]
    assert same_bits(fused.gather_heads(parts, heads), gather_heads(parts, heads))
    assert same_bits(fused.gather_heads(parts[:1], heads[:1]), gather_heads(parts[:1], heads[:1]))


@settings(max_examples=15)
@given(head_splits(), st.integers(0, 2), ROWS, WIDTHS, st.sampled_from(TYPES))
def test_scattered_heads_are_those_of_torch_and_sums_are_rounded_once(
    split, ring, rows, width, dtype
):
    heads = [split.q_heads[ring % split.ring_size], split.kv_heads, split.kv_heads]
    num_heads = [split.num_heads, split.num_kv_heads, split.num_kv_heads]
    flat = drawn(2, dtype, rows * sum(head_counts(heads)) * width)
    got, right = (
        x(flat, rows, width, heads, num_heads) for x in (fused.scatter_heads, scatter_heads)
    )
    assert same_bits(got[0], right[0])
    # Triton's interpreter cuts bfloat16 off instead of rounding it to the nearest.
    off = torch.finfo(dtype).eps if INTERPRETED and dtype == torch.bfloat16 else 0.0
    for a, b in zip(got, right, strict=True):
        torch.testing.assert_close(a, b, rtol=off, atol=0.0)


def test_what_peers_hold_of_one_head_is_summed_wide():
    flat = torch.tensor([1.0, *[2.0**-9] * 8], dtype=torch.bfloat16, device=DEVICE)
    (whole,) = fused.scatter_heads(flat, 1, 1, [((0,),) * 9], [1])
    assert whole.dtype == torch.bfloat16
    assert float(whole) == 1 + 2.0**-6


def test_a_head_that_no_peer_holds_is_zero():
    flat = torch.ones(4, device=DEVICE)
    (whole,) = fused.scatter_heads(flat, 2, 1, [((0,), (2,))], [3])
    assert whole.flatten().tolist() == [1, 0, 1, 1, 0, 1]


def test_tables_are_made_once_for_all_numbers_of_rows():
    heads = [((0, 1), (2,))]
    fused.gather_table.cache_clear()
    for rows in (1, 5, 5, 9):
        fused.gather_heads([torch.ones(rows, 3, 2, device=DEVICE)], [list(heads[0])])
    assert fused.gather_table.cache_info()[:2] == (3, 1)


@pytest.mark.slow
def test_rows_beyond_2_to_the_31_elements_are_found():
    far = torch.empty(2**31 + 8, dtype=torch.int8, device=DEVICE)
    part = far.as_strided((3, 2, 4), (2**30, 4, 1))
    part[:] = torch.arange(24).view(3, 2, 4)
    flat = fused.gather_heads([part], [((1,), (0,))])
    assert flat.tolist() == [
        4,
        5,
        6,
        7,
        12,
        13,
        14,
        15,
        20,
        21,
        22,
        23,
        0,
        1,
        2,
        3,
        8,
        9,
        10,
        11,
        16,
        17,
        18,
        19,
    ]
