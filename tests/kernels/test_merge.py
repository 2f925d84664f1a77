import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.kernels.merge import merge, merge_rows
from hydraplan.kernels.packing import RowMap


def partial(score_HTS: torch.Tensor, v_SHD: torch.Tensor):
    """Output and lse over the given keys."""
    out = torch.einsum("hts,shd->thd", score_HTS.softmax(-1), v_SHD)
    return out, score_HTS.logsumexp(-1)


@given(st.integers(1, 7), st.integers(1, 6), st.floats(-1e5, 1e5), st.integers(0, 99))
def test_merged_halves_are_the_whole(keys, rows, shift, seed):
    generator = torch.Generator().manual_seed(seed)
    score = torch.randn(2, rows, 8, generator=generator, dtype=torch.float64)
    score[:, :, :keys] += shift
    v = torch.randn(8, 2, 3, generator=generator, dtype=torch.float64)
    halves = (*partial(score[:, :, :keys], v[:keys]), *partial(score[:, :, keys:], v[keys:]))
    for got, right in zip(merge(*halves), partial(score, v), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-12)


def nothing_seen(rows: int = 2):
    return torch.zeros(rows, 1, 3), torch.full((1, rows), -torch.inf)


def test_two_rows_without_keys_stay_zero_and_minus_infinity():
    out, lse = merge(*nothing_seen(), *nothing_seen())
    assert torch.equal(out, torch.zeros(2, 1, 3))
    assert torch.equal(lse, torch.full((1, 2), -torch.inf))


def test_a_row_without_keys_weighs_nothing_even_if_its_output_is_nan():
    seen = (torch.arange(6.0).view(2, 1, 3), torch.tensor([[-1e5, 3.0]]))
    unseen = (torch.full((2, 1, 3), torch.nan), torch.full((1, 2), -torch.inf))
    for pair in ((*seen, *unseen), (*unseen, *seen)):
        out, lse = merge(*pair)
        assert torch.equal(out, seen[0])
        assert torch.equal(lse, seen[1])


def test_half_types_are_merged_in_float32():
    half = torch.full((1, 1, 1), 1.0, dtype=torch.bfloat16)
    out, lse = merge(half, torch.zeros(1, 1), half + 2**-7, torch.zeros(1, 1))
    assert out.dtype == lse.dtype == torch.float32
    assert out.item() == 1.00390625


@pytest.mark.parametrize("lse", [1e5, -1e5, 0.3])
def test_weights_add_up_to_one_however_large_scores_are(lse):
    out, level = torch.ones(1, 1, 1), torch.full((1, 1), lse)
    merged, _ = merge(out, level, out, level - 0.7)
    assert abs(merged.item() - 1) <= 2**-23


@given(st.sets(st.integers(0, 9)))
def test_a_part_is_merged_into_its_rows_alone(held):
    rows = RowMap(np.array(sorted(held), np.int64))
    generator = torch.Generator().manual_seed(len(held))
    out, lse = (torch.randn(10, *shape, generator=generator) for shape in ((2, 3), (2,)))
    part, part_lse = torch.randn(10, 2, 3, generator=generator), torch.zeros(2, 10)
    right, right_lse = merge(out, lse.T, part, part_lse)
    got, got_lse, index = out.clone(), lse.clone(), torch.from_numpy(rows.index)
    merge_rows(got, got_lse, rows, part[index], part_lse[:, index])
    for i in range(10):
        assert torch.equal(got[i], right[i] if i in held else out[i])
        assert torch.equal(got_lse[i], right_lse[:, i] if i in held else lse[i])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_head_gets_the_same_bits_whatever_lies_beside_it(dtype):
    generator = torch.Generator().manual_seed(3)
    lse_HT, lse_b_HT = torch.randn(2, 300, 3, generator=generator, dtype=dtype) * 3
    out_THD, out_b_THD = torch.randn(2, 3, 300, 2, generator=generator, dtype=dtype)
    whole_THD, whole_HT = merge(out_THD, lse_HT, out_b_THD, lse_b_HT)
    for head in range(300):
        own = slice(head, head + 1)
        alone = merge(out_THD[:, own], lse_HT[own], out_b_THD[:, own], lse_b_HT[own])
        assert torch.equal(alone[0], whole_THD[:, own])
        assert torch.equal(alone[1], whole_HT[own])
