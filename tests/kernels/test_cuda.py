"""What can be checked of the CUDA kernel without a GPU: shapes and the call itself."""

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


def test_head_dims_the_kernel_does_not_serve_are_refused():
    for head_dim in (12, 264):
        _, q, k, v = tensors(META, head_dim)
        with pytest.raises(InputError, match=f"head_dim {head_dim}"):
            cuda.forward(q, k, v, *CASE)


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
