"""What can be checked of the CUDA kernel without a GPU: borders, shapes and the call itself."""

import pytest
import torch

from hydraplan.errors import InputError
from hydraplan.kernels import cuda, reference

META = torch.device("meta")
CASE = ((0, 5, 12), (0, 3, 11), False, 0.25)


def tensors(device, head_dim: int = 16):
    """Upstream gradient, q, k, v."""
    torch.manual_seed(0)
    return [
        torch.randn(rows, heads, head_dim).to(device, torch.bfloat16)
        for rows, heads in ((12, 4), (12, 4), (11, 2), (11, 2))
    ]


def test_the_operators_take_the_arguments_and_give_the_shapes():
    dout, q, k, v = tensors(META)
    out, lse = cuda.forward(q, k, v, *CASE)
    assert (out.shape, lse.shape, lse.dtype) == (q.shape, (4, 12), torch.float32)
    grads = cuda.backward(dout, q, k, v, out, lse, *CASE)
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]


def test_borders_are_32_bit_with_the_longest_segments():
    cu_q, cu_k, max_q, max_k = cuda._borders(*CASE[:3], torch.device("cpu"))
    assert (cu_q.tolist(), cu_k.tolist(), max_q, max_k) == ([0, 5, 12], [0, 3, 11], 7, 8)
    assert cu_q.dtype == cu_k.dtype == torch.int32


def test_borders_beyond_32_bits_are_refused():
    with pytest.raises(InputError, match="2147483648 rows"):
        cuda._borders((0, 2**31), (0, 2**31), True, META)


@pytest.mark.parametrize(
    ("cu_q", "cu_k", "causal", "complaint"),
    [((0, 0, 2), (0, 1, 2), False, "left out"), ((0, 2), (0, 3), True, "square")],
)
def test_segments_that_flash_would_get_wrong_are_refused(cu_q, cu_k, causal, complaint):
    with pytest.raises(AssertionError, match=complaint):
        cuda._borders(cu_q, cu_k, causal, META)


def test_head_dims_the_kernel_does_not_serve_are_refused():
    for head_dim in (12, 264):
        _, q, k, v = tensors(META, head_dim)
        with pytest.raises(InputError, match=f"head_dim {head_dim}"):
            cuda.forward(q, k, v, *CASE)


def test_no_segments_need_no_kernel():
    dout, q, k, v = (x[:0] for x in tensors("cpu"))
    out, lse = cuda.forward(q, k, v, (0,), (0,), True, 0.25)
    grads = cuda.backward(dout, q, k, v, out, lse, (0,), (0,), True, 0.25)
    assert (out.shape, lse.shape) == (q.shape, (4, 0))
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("causal", [True, False])
def test_the_kernel_matches_the_reference_on_the_gpu(causal):
    case = (CASE[0], CASE[0] if causal else CASE[1], causal, 0.25)
    dout, q, k, v = tensors("cuda")
    if causal:
        k, v = torch.cat([k, k[:1]]), torch.cat([v, v[:1]])
    out, lse = cuda.forward(q, k, v, *case)
    grads = cuda.backward(dout, q, k, v, out, lse, *case)
    exact = [x.double() for x in (dout, q, k, v)]
    right, right_lse = reference.forward(*exact[1:], *case)
    right_grads = reference.backward(*exact, right, right_lse, *case)
    for got, expected in zip((out, lse, *grads), (right, right_lse, *right_grads), strict=True):
        assert (got.double() - expected).norm() <= 2e-2 * expected.norm()
