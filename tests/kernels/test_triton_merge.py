"""The fused merge against torch's ops, on any strides, rows, types and rows without keys."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hydraplan.kernels.glue import choose_glue
from hydraplan.kernels.merge import accumulator_dtype, merge_rows
from hydraplan.kernels.packing import RowMap
from tests.triton_device import IGNORE_NUMPY, triton_device

DEVICE = triton_device()
fused = pytest.importorskip("hydraplan.kernels.triton_merge")
pytestmark = IGNORE_NUMPY

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def test_triton_is_chosen_where_these_tests_run():
    for dtype in TYPES:
        assert choose_glue(DEVICE, dtype).name == "triton"


def laid_out(x: Tensor, order: tuple[int, ...], step: int) -> Tensor:
    """The same values with axes in another order in memory and gaps between elements."""
    spread = x.permute(order).repeat_interleave(step, dim=-1).contiguous()[..., ::step]
    back = [order.index(axis) for axis in range(x.ndim)]
    return spread.permute(back)


def drawn(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


@st.composite
def merges(draw: st.DrawFn) -> tuple[tuple[Tensor, Tensor], RowMap | None, Tensor, Tensor]:
    """Accumulators, their rows, and a part: blocks are cut in rows and in columns."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from(TYPES))
    wide = accumulator_dtype(dtype)
    width = draw(st.sampled_from([1, 5, 16, 160]))
    num_rows, heads = draw(st.integers(0, 40)), draw(st.integers(1, 4))
    chosen = draw(st.sampled_from(["all", "run", "others"]))
    index = np.flatnonzero(np.array(draw(st.lists(st.booleans(), min_size=30, max_size=30))))
    index = index[index < num_rows]
    if chosen != "others":
        index = np.arange(0 if chosen == "all" else num_rows // 3, num_rows)
    rows = None if chosen == "all" else RowMap(index)
    out, part = (
        drawn(generator, t, n, heads, width) for t, n in ((wide, num_rows), (dtype, len(index)))
    )
    lse, part_lse = (
        drawn(generator, wide, num_rows, heads),
        drawn(generator, wide, heads, len(index)),
    )
    shift = draw(st.sampled_from([0.0, 40.0, -1e4]))
    for x in (lse, part_lse):
        x += shift * drawn(generator, wide, *x.shape)
        x[drawn(generator, wide, *x.shape) > draw(st.sampled_from([0.0, 1.0, 9.0]))] = -torch.inf
    step = draw(st.integers(1, 2))
    part = laid_out(part, draw(st.permutations(range(3)).map(tuple)), step)
    part_lse = laid_out(part_lse, draw(st.permutations(range(2)).map(tuple)), step)
    out = laid_out(out, draw(st.sampled_from([(0, 1, 2), (1, 0, 2)])), 1)
    return (out, lse), rows, part, part_lse


def cloned(accumulators: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    out, lse = accumulators
    return out.clone(memory_format=torch.preserve_format), lse.clone()


@settings(max_examples=30)
@given(merges())
def test_a_merged_part_is_what_torch_makes_of_it_and_other_rows_keep_their_bits(case):
    before, rows, part, part_lse = case
    got, right = cloned(before), cloned(before)
    fused.merge_rows(*got, rows, part, part_lse)
    merge_rows(*right, rows, part, part_lse)
    others = [] if rows is None else np.setdiff1d(np.arange(len(before[0])), rows.index)
    for a, b, first in zip(got, right, before, strict=True):
        off = 8 * torch.finfo(a.dtype).eps
        torch.testing.assert_close(a, b, rtol=off, atol=off)
        assert torch.equal(a[others], first[others])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_row_without_keys_weighs_nothing_even_if_its_output_is_nan(dtype):
    wide = accumulator_dtype(dtype)
    seen = torch.arange(24.0, device=DEVICE).view(2, 3, 4)
    nan = torch.full((2, 3, 4), torch.nan, device=DEVICE)
    lse = torch.tensor([[-1e5, 3.0, 0.0], [80.0, 0.0, -4.0]], device=DEVICE, dtype=wide)
    no_lse = torch.full((2, 3), -torch.inf, device=DEVICE, dtype=wide)
    for out, out_lse, part, part_lse in ((seen, lse, nan, no_lse), (nan, no_lse, seen, lse)):
        merged = out.to(wide), out_lse.clone()
        fused.merge_rows(*merged, None, part.to(dtype), part_lse.T.clone())
        assert torch.equal(merged[0], seen.to(wide))
        assert torch.equal(merged[1], lse)


def test_two_rows_without_keys_stay_zero_and_minus_infinity():
    out, lse = torch.zeros(3, 2, 8, device=DEVICE), torch.full((3, 2), -torch.inf, device=DEVICE)
    part = torch.full((3, 2, 8), torch.nan, device=DEVICE, dtype=torch.bfloat16)
    fused.merge_rows(out, lse, None, part, lse.T.clone())
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full_like(lse, -torch.inf))


@pytest.mark.slow
def test_rows_beyond_2_to_the_31_elements_are_found():
    far = torch.empty(2**31 + 8, dtype=torch.float16, device=DEVICE)
    part = far.as_strided((3, 1, 4), (2**30, 4, 1))
    part[:] = torch.arange(12.0).view(3, 1, 4)
    out, lse = torch.zeros(3, 1, 4, device=DEVICE), torch.full((3, 1), -torch.inf, device=DEVICE)
    fused.merge_rows(out, lse, None, part, torch.zeros(1, 3, device=DEVICE))
    assert out.flatten().tolist() == list(range(12))
