import pytest
import torch

from hydraplan.kernels import reference
from hydraplan.kernels.reference import reference_attention


def leaves(rows: int, heads: int, kv_heads: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rows, n, 4, generator=generator, dtype=torch.float64).requires_grad_()
        for n in (heads, kv_heads, kv_heads)
    ]


def test_one_token_sees_only_itself():
    q, k, v = leaves(1, 2, 1)
    assert torch.equal(reference_attention(q, k, v), v.expand(1, 2, 4))


def test_two_tokens_by_hand():
    q = torch.tensor([[[5.0]], [[2.0]]], dtype=torch.float64)
    k = torch.tensor([[[1.0]], [[3.0]]], dtype=torch.float64)
    v = torch.tensor([[[10.0]], [[20.0]]], dtype=torch.float64)
    share = 1 / (1 + 2.718281828459045 ** (2 - 6))
    out = reference_attention(q, k, v)
    assert out[0].item() == 10.0
    assert out[1].item() == pytest.approx(10 + 10 * share, abs=1e-12)


def test_no_rows_give_no_rows():
    q, k, v = leaves(0, 2, 1)
    out = reference_attention(q, k, v)
    out.sum().backward()
    assert out.shape == (0, 2, 4)
    assert q.grad is not None


@pytest.mark.parametrize("max_scores", [1, 40, 2**22])
def test_blocks_change_nothing(monkeypatch, max_scores):
    q, k, v = leaves(13, 4, 2)
    whole = reference_attention(q, k, v)
    right = torch.autograd.grad(whole.sin().sum(), (q, k, v))
    monkeypatch.setattr(reference, "MAX_SCORES", max_scores)
    blocked = reference_attention(q, k, v)
    torch.testing.assert_close(blocked, whole, rtol=0, atol=1e-14)
    for got, expected in zip(
        torch.autograd.grad(blocked.sin().sum(), (q, k, v)), right, strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
def test_it_agrees_with_torchs_math_attention(heads, kv_heads):
    q, k, v = leaves(9, heads, kv_heads)
    wide = [x.detach().repeat_interleave(heads // x.shape[1], 1).transpose(0, 1) for x in (q, k, v)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        right = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True)
    torch.testing.assert_close(
        reference_attention(q, k, v), right.transpose(0, 1), rtol=0, atol=1e-14
    )


def test_a_later_token_moves_no_earlier_output():
    q, k, v = leaves(8, 2, 1)
    before = reference_attention(q, k, v)
    with torch.no_grad():
        k[5:] += 1
        v[5:] -= 3
    after = reference_attention(q, k, v)
    assert torch.equal(before[:5], after[:5])
    assert not torch.equal(before[5:], after[5:])
