"""What the probe finds, and which cases it tries."""

from itertools import pairwise

import pytest
import torch

from hydraplan.kernels import attention, probe, reference
from hydraplan.kernels.guarded import AttentionKernel, guarded
from tests.kernels import flash_standins

CPU = torch.device("cpu")
FLASH = pytest.mark.parametrize("name", ["flash2", "flash4"])


def tried(forward=reference.forward, backward=reference.backward, dtype=torch.float64):
    return probe.probe(guarded(AttentionKernel("odd", forward, backward, True)), CPU, dtype)


@pytest.mark.parametrize("dtype", list(probe.TOLERANCE), ids=str)
def test_the_cpu_kernel_passes(dtype):
    assert probe.probe(attention.KERNELS["cpu"], CPU, dtype) == ""


@FLASH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_flash_packages_pass(name, dtype, monkeypatch):
    calls = flash_standins.install(monkeypatch)
    assert probe.probe(attention.KERNELS[name], CPU, dtype) == ""
    assert len(calls) == 2 * len(probe.CASES)


@FLASH
def test_a_package_that_gives_lse_by_rows_is_refused(name, monkeypatch):
    flash_standins.install(monkeypatch, spoil=lambda out, lse: (out, lse.T.contiguous()))
    reason = probe.probe(attention.KERNELS[name], CPU, torch.bfloat16)
    assert reason == "a small call failed: lse has shape (156, 4), not (heads, rows) = (4, 156)"


@FLASH
def test_a_package_whose_lse_is_to_base_two_is_refused(name, monkeypatch):
    flash_standins.install(monkeypatch, spoil=lambda out, lse: (out, lse / 0.6931))
    reason = probe.probe(attention.KERNELS[name], CPU, torch.bfloat16)
    assert reason == "its lse is off by 4.4e-01 on a small case"


def test_a_backward_that_uses_its_own_lse_is_found():
    def own(dout, q, k, v, out, lse, *case):
        return reference.backward(dout, q, k, v, *reference.forward(q, k, v, *case), *case)

    assert tried(backward=own).startswith("its dq is off by")


def test_swapped_gradients_are_found():
    def swapped(*arguments):
        dq, dk, dv = reference.backward(*arguments)
        return dq, dv, dk

    assert tried(backward=swapped).startswith("its dk is off by")


def test_a_gradient_of_another_shape_is_found():
    def flat(*arguments):
        dq, dk, dv = reference.backward(*arguments)
        return dq, dk.flatten(1), dv

    assert tried(backward=flat) == "its dk has shape (156, 128), not (156, 2, 64)"


def test_heads_taken_for_the_wrong_group_are_found():
    def interleaved(q, k, v, *case):
        groups = k.shape[1]
        order = [h for g in range(groups) for h in range(g, q.shape[1], groups)]
        out, lse = reference.forward(q[:, order], k, v, *case)
        return out[:, (back := torch.tensor(order).argsort())], lse[back]

    assert tried(interleaved).startswith("its output is off by")


def test_a_last_row_beyond_a_tile_that_is_left_out_is_found():
    def whole_tiles(q, k, v, cu_q, cu_k, causal, scale):
        out, lse = reference.forward(q, k, v, cu_q, cu_k, causal, scale)
        for a, b in pairwise(cu_q):
            if b - a > 128:
                out[a + 128 : b] = 0
        return out, lse

    assert tried(whole_tiles).startswith("its output is off by")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CUDA error: no kernel image\nmore"), "CUDA error: no kernel image"),
        (AssertionError(), "AssertionError"),
        (KeyError("sm_75"), "'sm_75'"),
    ],
)
def test_whatever_a_call_raises_is_the_reason_in_one_line(error, reason):
    def failing(*_):
        raise error

    assert tried(failing) == f"a small call failed: {reason}"


def test_the_cases_are_the_shapes_that_kernels_treat_apart():
    cases = probe.CASES
    assert {case.heads // case.kv_heads for case in cases} == {1, 2, 4}
    assert {case.causal for case in cases} == {True, False}
    sizes = [*(n for case in cases for n in (*case.q_sizes, *case.k_sizes))]
    assert {129, 257, 1, 2, 3} <= set(sizes)
    assert any(set(case.q_sizes) == {1} and case.heads > case.kv_heads for case in cases)


def test_keys_and_values_are_strided_views():
    _, _, k, v = probe._tensors(probe.CASES[0], CPU, torch.float32)
    assert not k.is_contiguous()
    assert v.data_ptr() - k.data_ptr() == 4 * 2 * probe.HEAD_DIM
