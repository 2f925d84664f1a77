"""The flash-attn-4 adapter against a stand-in of the package; no GPU."""

import inspect
from importlib.util import find_spec

import pytest
import torch

from hydraplan.errors import InputError
from hydraplan.kernels import flash4, reference
from tests.kernels import flash_standins

CASES = {
    "causal": ((0, 5, 12), (0, 5, 12), True, 0.25),
    "full": ((0, 5, 12), (0, 3, 11), False, 0.3),
}


def tensors(k_rows, width=16):
    """Upstream gradient, q, k, v; keys and values are views with strides."""
    generator = torch.Generator().manual_seed(0)
    dout, q = (torch.randn(12, 4, width, generator=generator).bfloat16() for _ in range(2))
    k, v = torch.randn(k_rows, 2, 2, width, generator=generator).bfloat16().unbind(1)
    return dout, q, k, v


@pytest.mark.parametrize("case", list(CASES))
def test_the_package_gets_what_it_names_and_its_answer_comes_back(case, monkeypatch):
    calls = flash_standins.install(monkeypatch)
    cu_q, cu_k, causal, scale = CASES[case]
    dout, q, k, v = tensors(cu_k[-1])
    out, lse = flash4.forward(q, k, v, cu_q, cu_k, causal, scale)
    given = out / 2, (lse + 0.7).T.contiguous().T  # those over other keys too
    grads = flash4.backward(dout, q, k, v, *given, cu_q, cu_k, causal, scale)
    right = reference.forward(q, k, v, cu_q, cu_k, causal, scale)
    right += reference.backward(dout, q, k, v, *given, cu_q, cu_k, causal, scale)
    for got, expected in zip((out, lse, *grads), right, strict=True):
        assert torch.equal(got, expected)
    assert [call.name for call in calls] == list(flash4.PACKAGE.functions)
    for call in calls:
        assert (call.given["causal"], call.given["softmax_scale"]) == (causal, scale)
        assert call.given["k"].data_ptr() == k.data_ptr()  # a view with strides is not copied


def test_heads_that_do_not_lie_side_by_side_are_copied(monkeypatch):
    flash_standins.install(monkeypatch)
    dense = tensors(12)
    case = CASES["causal"]
    out, lse = flash4.forward(*dense[1:], *case)
    spread = [torch.stack([x, x + 1], -1)[..., 0] for x in (*dense, out)]
    assert torch.equal(flash4.forward(*spread[1:4], *case)[0], out)
    grads = flash4.backward(*spread, lse, *case)
    for a, b in zip(grads, flash4.backward(*dense, out, lse, *case), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("capability", "served", "refused"),
    [
        ((9, 0), (8, 128, 192, 256), (12, 264)),
        ((10, 0), (8, 128, 256), (136, 192)),
        ((11, 0), (64, 256), (192,)),
        ((12, 0), (64, 128), (192, 256)),
    ],
)
def test_head_dims_depend_on_the_device(capability, served, refused, monkeypatch):
    flash_standins.install(monkeypatch, capability=capability)
    for head_dim in served:
        _, q, k, v = tensors(12, head_dim)
        assert flash4.forward(q, k, v, *CASES["causal"])[0].shape == (12, 4, head_dim)
    for head_dim in refused:
        _, q, k, v = tensors(12, head_dim)
        with pytest.raises(InputError, match=f"head_dim {head_dim} .* flash4 needs"):
            flash4.forward(q, k, v, *CASES["causal"])


@pytest.mark.parametrize(
    ("capability", "reason"),
    [
        ((8, 0), "flash-attn-4 needs compute capability 9.x to 12.x, cuda:0 has 8.0"),
        ((9, 0), ""),
        ((12, 1), ""),
        ((13, 0), "flash-attn-4 needs compute capability 9.x to 12.x, cuda:0 has 13.0"),
    ],
)
def test_a_device_without_a_backward_is_named(capability, reason, monkeypatch):
    flash_standins.install(monkeypatch, capability=capability)
    assert flash4.why_absent(torch.device("cuda", 0)) == reason


@pytest.mark.parametrize(
    ("version", "works"),
    [("4.0.0b35", False), ("4.0.0b36", True), ("4.0.0b102", True), ("4.0.0rc1", True),
     ("4.0.0", True), ("4.1.2", True), ("5.0.0", False), ("4.0.0a9", False)],
)  # fmt: skip
def test_versions_are_held_against_the_range(version, works, monkeypatch):
    flash_standins.install(monkeypatch, {"flash-attn-4": version})
    reason = f"flash-attn-4 {version} is installed, not 4.0.0b36 or later below 5"
    assert flash4.why_absent(torch.device("cuda", 0)) == ("" if works else reason)


@pytest.mark.skipif(find_spec("cutlass") is None, reason="needs flash-attn-4")
@pytest.mark.parametrize("name", flash4.PACKAGE.functions)
def test_the_stand_in_has_the_signature_of_the_package(name):
    genuine = inspect.signature(getattr(flash4._interface(), name))
    assert list(genuine.parameters) == list(flash_standins.signature(name).parameters)
