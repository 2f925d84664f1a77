"""The packed CPU kernel, and the packed reference kernel, against plain autograd."""

import pytest
import torch

from hydraplan.kernels import cpu, reference
from hydraplan.kernels.reference import reference_attention

KERNELS = pytest.mark.parametrize("kernel", [cpu, reference], ids=["cpu", "reference"])
HEADS = pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (8, 2), (8, 1)])
SCALE = 16**-0.5


def tensors(q_rows: int, k_rows: int, heads: int, kv_heads: int, dtype=torch.float64):
    """Upstream gradient, q, k, v."""
    generator = torch.Generator().manual_seed(q_rows + k_rows)
    return [
        torch.randn(rows, n, 16, generator=generator, dtype=torch.float64).to(dtype)
        for rows, n in ((q_rows, heads), (q_rows, heads), (k_rows, kv_heads), (k_rows, kv_heads))
    ]


def full_attention(q, k, v):
    """Every query sees every key."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    share = torch.einsum("thd,shd->hts", q, k).mul(SCALE).softmax(-1)
    return torch.einsum("hts,shd->thd", share, v)


@KERNELS
@HEADS
def test_causal_segments_match_autograd_in_float64(kernel, heads, kv_heads):
    cu = (0, 1, 1, 4, 40)
    dout, *qkv = tensors(40, 40, heads, kv_heads)
    leaves = [x.clone().requires_grad_() for x in qkv]
    right = torch.cat([reference_attention(*(x[a:b] for x in leaves)) for a, b in
                       ((0, 1), (1, 4), (4, 40))])  # fmt: skip
    right.backward(dout)
    out, lse = kernel.forward(*qkv, cu, cu, True, SCALE)
    grads = kernel.backward(dout, *qkv, out, lse, cu, cu, True, SCALE)
    assert lse.shape == (heads, 40)
    assert (out - right).abs().max() <= 1e-12
    for grad, leaf in zip(grads, leaves, strict=True):
        assert (grad - leaf.grad).abs().max() <= 1e-12


@KERNELS
@HEADS
def test_full_rectangles_match_autograd_in_float64(kernel, heads, kv_heads):
    cu_q, cu_k = (0, 3, 3, 20), (0, 5, 9, 16)
    dout, *qkv = tensors(20, 16, heads, kv_heads)
    q, k, v = leaves = [x.clone().requires_grad_() for x in qkv]
    right = torch.cat([full_attention(q[:3], k[:5], v[:5]), full_attention(q[3:], k[9:], v[9:])])
    right.backward(dout)
    out, lse = kernel.forward(*qkv, cu_q, cu_k, False, SCALE)
    grads = kernel.backward(dout, *qkv, out, lse, cu_q, cu_k, False, SCALE)
    assert (out - right).abs().max() <= 1e-12
    for grad, leaf in zip(grads, leaves, strict=True):
        assert (grad - leaf.grad).abs().max() <= 1e-12


@KERNELS
def test_key_blocks_with_the_global_output_and_lse_add_up_to_the_whole_gradient(kernel):
    dout, q, k, v = tensors(6, 10, 4, 2)
    out, lse = kernel.forward(q, k, v, (0, 6), (0, 10), False, SCALE)
    whole = kernel.backward(dout, q, k, v, out, lse, (0, 6), (0, 10), False, SCALE)
    halves = [
        kernel.backward(
            dout, q, k[rows], v[rows], out, lse, (0, 6), (0, len(k[rows])), False, SCALE
        )
        for rows in (slice(0, 4), slice(4, 10))
    ]
    torch.testing.assert_close(halves[0][0] + halves[1][0], whole[0], rtol=0, atol=1e-14)
    for i in (1, 2):
        joined = torch.cat([halves[0][i], halves[1][i]])
        torch.testing.assert_close(joined, whole[i], rtol=0, atol=1e-14)


@KERNELS
def test_queries_without_keys_and_keys_without_queries_do_not_reach_the_op(kernel):
    dout, q, k, v = tensors(4, 3, 4, 2)
    cu_q, cu_k = (0, 4, 4), (0, 0, 3)
    out, lse = kernel.forward(q, k, v, cu_q, cu_k, False, SCALE)
    assert torch.equal(out, torch.zeros_like(q))
    assert torch.equal(lse, torch.full((4, 4), -torch.inf, dtype=torch.float64))
    grads = kernel.backward(dout, q, k, v, out, lse, cu_q, cu_k, False, SCALE)
    assert all(torch.equal(g, torch.zeros_like(x)) for g, x in zip(grads, (q, k, v), strict=True))


@KERNELS
def test_no_rows_at_all(kernel):
    dout, q, k, v = tensors(0, 0, 4, 2)
    out, lse = kernel.forward(q, k, v, (0,), (0,), True, SCALE)
    grads = kernel.backward(dout, q, k, v, out, lse, (0,), (0,), True, SCALE)
    assert (out.shape, lse.shape) == ((0, 4, 16), (4, 0))
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]


@KERNELS
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)],
    ids=str,
)
def test_narrow_types_stay_near_float64(kernel, dtype, tolerance):
    dout, q, k, v = tensors(50, 50, 8, 2, dtype)
    case = ((0, 20, 50), (0, 20, 50), True, SCALE)
    out, lse = kernel.forward(q, k, v, *case)
    grads = kernel.backward(dout, q, k, v, out, lse, *case)
    exact = [x.double() for x in (dout, q, k, v)]
    right, right_lse = reference.forward(*exact[1:], *case)
    right_grads = reference.backward(*exact, right, right_lse, *case)
    assert lse.dtype == torch.float32
    for got, expected in zip((out, lse, *grads), (right, right_lse, *right_grads), strict=True):
        assert (got.double() - expected).norm() <= tolerance * expected.norm()


@KERNELS
@pytest.mark.parametrize("strided", range(4), ids=["dout", "q", "k", "v"])
def test_heads_that_do_not_lie_side_by_side_are_read_right(kernel, strided):
    dense = tensors(9, 9, 4, 2)
    case = ((0, 9), (0, 9), True, SCALE)
    out, lse = kernel.forward(*dense[1:], *case)
    right = (out, *kernel.backward(*dense, out, lse, *case))
    given = list(dense)
    given[strided] = torch.stack([dense[strided], dense[strided] + 1], -1)[..., 0]
    out, lse = kernel.forward(*given[1:], *case)
    got = (out, *kernel.backward(*given, out, lse.T.contiguous().T, *case))
    for a, b in zip(got, right, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)
