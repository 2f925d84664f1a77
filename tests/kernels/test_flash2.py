"""The flash-attn 2 adapter against a stand-in of the package; no GPU."""

import inspect
from importlib.util import find_spec

import pytest
import torch

from hydraplan.errors import InputError
from hydraplan.kernels import flash2, reference
from tests.kernels import flash_standins

CASES = {
    "causal": ((0, 5, 12), (0, 5, 12), True, 0.25),
    "full": ((0, 5, 12), (0, 3, 11), False, 0.3),
}


def tensors(k_rows, width=16, dtype=torch.bfloat16):
    """Upstream gradient, q, k, v; the last two and the first with strides."""
    generator = torch.Generator().manual_seed(0)
    dout, q = (torch.randn(4, 12, width, generator=generator).to(dtype) for _ in range(2))
    k, v = torch.randn(k_rows, 2, 2, width, generator=generator).to(dtype).unbind(1)
    return dout.transpose(0, 1), q.transpose(0, 1).contiguous(), k, v


@pytest.mark.parametrize("case", list(CASES))
def test_the_package_gets_what_it_names_and_its_answer_comes_back(case, monkeypatch):
    calls = flash_standins.install(monkeypatch)
    cu_q, cu_k, causal, scale = CASES[case]
    dout, q, k, v = tensors(cu_k[-1])
    out, lse = flash2.forward(q, k, v, cu_q, cu_k, causal, scale)
    grads = flash2.backward(dout, q, k, v, out, lse, cu_q, cu_k, causal, scale)
    right = reference.forward(q, k, v, cu_q, cu_k, causal, scale)
    right += reference.backward(dout, q, k, v, *right, cu_q, cu_k, causal, scale)
    for got, expected in zip((out, lse, *grads), right, strict=True):
        assert torch.equal(got, expected)
    assert [call.name for call in calls] == list(flash2.PACKAGE.functions)
    for call in calls:
        given = call.given
        assert given["q"].data_ptr() == q.data_ptr()
        assert given["k"].data_ptr() == k.data_ptr()  # a view with strides is not copied
        assert (given["causal"], given["softmax_scale"]) == (causal, scale)


def test_gradients_of_a_block_use_the_global_output_and_lse(monkeypatch):
    flash_standins.install(monkeypatch)
    dout, q, k, v = tensors(12)
    case = CASES["causal"]
    out, lse = reference.forward(q, k, v, *case)
    given = out / 2, (lse + 0.7).T.contiguous().T
    got = flash2.backward(dout, q, k, v, *given, *case)
    for a, b in zip(got, reference.backward(dout, q, k, v, *given, *case), strict=True):
        assert torch.equal(a, b)


def test_heads_that_do_not_lie_side_by_side_are_copied(monkeypatch):
    flash_standins.install(monkeypatch)
    dense = tensors(12)
    case = CASES["causal"]
    right = flash2.forward(*dense[1:], *case)
    spread = [torch.stack([x, x + 1], -1)[..., 0] for x in dense]
    out, lse = flash2.forward(*spread[1:], *case)
    assert torch.equal(out, right[0])
    grads = flash2.backward(*spread, torch.stack([out, out], -1)[..., 0], lse, *case)
    for a, b in zip(grads, flash2.backward(*dense, out, lse, *case), strict=True):
        assert torch.equal(a, b)
        assert a.is_contiguous()


@pytest.mark.parametrize("head_dim", [12, 264, 0])
def test_a_head_dim_it_does_not_serve_is_refused(head_dim, monkeypatch):
    calls = flash_standins.install(monkeypatch)
    _, q, k, v = tensors(12, head_dim)
    with pytest.raises(InputError, match=f"head_dim {head_dim} .* up to 256, as .* flash2 needs"):
        flash2.forward(q, k, v, *CASES["causal"])
    assert not calls


@pytest.mark.parametrize(
    ("capability", "reason"),
    [
        ((7, 5), "flash-attn 2 needs compute capability 8.0 or above, cuda:0 has 7.5"),
        ((8, 0), ""),
        ((8, 9), ""),
        ((9, 0), ""),
        ((12, 0), ""),
    ],
)
def test_a_device_that_is_too_old_is_named(capability, reason, monkeypatch):
    flash_standins.install(monkeypatch, capability=capability)
    assert flash2.why_absent(torch.device("cuda", 0)) == reason


@pytest.mark.parametrize("version", ["2.8.2", "2.7.4.post1", "3.0.0b1"])
def test_another_version_is_named(version, monkeypatch):
    flash_standins.install(monkeypatch, {"flash-attn": version})
    assert flash2.why_absent(torch.device("cuda", 0)) == (
        f"flash-attn {version} is installed, not 2.8.3 or later below 3"
    )


@pytest.mark.skipif(find_spec("flash_attn_2_cuda") is None, reason="needs flash-attn 2")
@pytest.mark.parametrize("name", flash2.PACKAGE.functions)
def test_the_stand_in_has_the_signature_of_the_package(name):
    genuine = inspect.signature(getattr(flash2._interface(), name)._init_fn)
    assert list(genuine.parameters) == list(flash_standins.signature(name).parameters)
