"""Which of torch's ops and Triton's kernels are chosen, and that a wrong kernel is not."""

import logging
import sys

import pytest
import torch

from hydraplan.errors import InputError
from hydraplan.kernels import glue as module
from hydraplan.kernels.glue import (
    TORCH,
    choose_glue,
    disagreement,
    glue_report,
    triton_glue,
    why_no_triton,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.delenv("HYDRAPLAN_TRITON", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    choose_glue.cache_clear()
    why_no_triton.cache_clear()
    yield
    choose_glue.cache_clear()
    why_no_triton.cache_clear()


def test_the_cpu_uses_torch_and_the_report_says_why():
    assert choose_glue(CPU, torch.float32) is TORCH
    assert why_no_triton(CPU, torch.float32).startswith("it runs on CUDA devices only")


def test_without_a_device_the_report_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    reason = "it runs on CUDA devices only, and torch finds none"
    assert glue_report() == ("triton", False, reason)


def test_the_choice_is_logged_once_and_loudly_where_triton_should_have_run(monkeypatch, caplog):
    monkeypatch.setattr(module, "triton_glue", absent)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert choose_glue(CUDA, torch.bfloat16) is TORCH
            assert choose_glue(CPU, torch.bfloat16) is TORCH
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "No module named 'triton'" in caplog.records[0].message


def absent():
    raise ModuleNotFoundError("No module named 'triton'")


def test_where_triton_is_not_installed_torch_serves(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in ("merge", "heads"):
        monkeypatch.delitem(sys.modules, f"hydraplan.kernels.triton_{name}", raising=False)
    assert why_no_triton(CUDA, torch.bfloat16).startswith("it cannot be imported: ")
    with pytest.raises(ImportError):
        triton_glue()


def test_triton_is_used_once_it_agreed_and_not_where_it_is_switched_off(monkeypatch):
    kernels = TORCH._replace(name="triton")
    monkeypatch.setattr(module, "triton_glue", lambda: kernels)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose_glue(CPU, torch.float32) is kernels
    monkeypatch.setenv("HYDRAPLAN_TRITON", "off")
    why_no_triton.cache_clear()
    assert why_no_triton(CPU, torch.float32) == "switched off by HYDRAPLAN_TRITON=off"
    monkeypatch.setenv("HYDRAPLAN_TRITON", "never")
    why_no_triton.cache_clear()
    with pytest.raises(InputError, match="HYDRAPLAN_TRITON=never is neither auto nor off"):
        why_no_triton(CPU, torch.float32)


def out_a_little_off(out, lse, *part):
    TORCH.merge_rows(out, lse, *part)
    out *= 1.0001


def lse_not_written(out, lse, *part):
    TORCH.merge_rows(out, lse.clone(), *part)


def not_a_number_where_nothing_is_seen(out, lse, *part):
    TORCH.merge_rows(out, lse, *part)
    out[lse == -torch.inf] = torch.nan


def rows_ignored(out, lse, rows, part, part_lse):
    TORCH.merge_rows(out[: len(part)], lse[: len(part)], None, part, part_lse)


def does_not_compile(*_):
    raise ValueError("ptxas failed\nwith many lines")


def heads_in_another_order(parts, heads):
    return TORCH.gather_heads([part.flip(1) for part in parts], heads)


def replicas_not_summed(flat, rows, width, heads, num_heads):
    q, kv = TORCH.scatter_heads(flat, rows, width, heads, num_heads)
    return [q, kv / 2]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"merge_rows": out_a_little_off}, "a merged output is wrong on a small case"),
        ({"merge_rows": lse_not_written}, "a merged lse is wrong on a small case"),
        ({"merge_rows": not_a_number_where_nothing_is_seen}, "a merged output is wrong"),
        ({"merge_rows": rows_ignored}, "a merged output is wrong"),
        ({"merge_rows": does_not_compile}, "a small call failed: ptxas failed"),
        ({"gather_heads": heads_in_another_order}, "gathered heads are wrong on a small case"),
        ({"scatter_heads": replicas_not_summed}, "summed heads are wrong on a small case"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_broken_kernel_is_seen_and_named(broken, reason, dtype, monkeypatch):
    kernels = TORCH._replace(name="triton", **broken)
    assert disagreement(TORCH, CPU, dtype) == ""
    assert disagreement(kernels, CPU, dtype).startswith(reason)
    assert "\n" not in disagreement(kernels, CPU, dtype)
    monkeypatch.setattr(module, "triton_glue", lambda: kernels)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose_glue(CPU, dtype) is TORCH
