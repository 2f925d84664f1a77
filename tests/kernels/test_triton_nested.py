"""The whole engine on Triton kernels: rings, inner groups, uneven and replicated heads."""

import pytest
import torch

from hydraplan.heads import HeadSplit, contiguous_split
from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.glue import choose_glue
from hydraplan.kernels.nested import nested_attention
from hydraplan.kernels.packing import rank_layout
from tests.attention_cases import WorldGroups, oracle, shares, whole_tensors
from tests.builders import Place, placed_sequences
from tests.processes import run_ranks
from tests.triton_device import IGNORE_NUMPY, triton_device

DEVICE = triton_device()
if DEVICE.type != "cpu":
    pytest.skip("ranks are gloo processes", allow_module_level=True)
pytestmark = [IGNORE_NUMPY, pytest.mark.slow, pytest.mark.dist]

PLACES = [Place(29, 0, 4, 1), Place(31, 0, 2, 2), Place(3, 0, 4, 1), Place(26, 0, 1, 4)]
SPLITS = {
    (0, 4, 1): HeadSplit(6, 2, (((1, 2), (0, 5), (3, 4), ()),)),
    (0, 2, 2): contiguous_split(6, 2, [[4, 2], [1, 5]]),
}


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.bfloat16, 2e-2)])
def test_the_engine_matches_the_naive_oracle(dtype, limit):
    placed = placed_sequences(PLACES)
    whole = {
        i: tuple(x.to(dtype) for x in parts) for i, parts in whole_tensors(placed, 6, 2, 5).items()
    }
    right = oracle(whole)

    def errors(rank: int) -> list[float]:
        assert choose_glue(DEVICE, dtype).name == "triton"
        *leaves, dout = shares(placed, rank, whole)
        leaves = [x.requires_grad_() for x in leaves]
        layout, kernel = rank_layout(placed, 0, rank, SPLITS), choose_kernel(DEVICE, dtype)
        out = nested_attention(*leaves, layout, WorldGroups(4), kernel)
        got = (out.detach(), *torch.autograd.grad(out, leaves, dout))
        exact = shares(placed, rank, right)
        return [float((a.double() - b).norm() / b.norm()) for a, b in zip(got, exact, strict=True)]

    assert max(map(max, run_ranks(errors, 4))) <= limit
