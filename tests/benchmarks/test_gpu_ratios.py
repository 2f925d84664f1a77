"""The ratio test of attention kernels: what passes, and that a wrong kernel does not."""

import math
import time

import pytest
import torch

from hydraplan.kernels import attention
from tests.benchmarks.gpu_scripts import gpu_script


@pytest.fixture
def ratios(monkeypatch):
    return gpu_script(monkeypatch, "kernel_ratios")


@pytest.fixture
def scale(monkeypatch):
    whole = gpu_script(monkeypatch, "scale")
    heads = (whole.Heads("MHA", 2, 2), whole.Heads("MQA", 4, 1))
    quick = whole.quick_scale("cpu")
    return quick._replace(heads=heads, packed=(1, 7, 40), long_tokens=(90,), head_dim=8)


@pytest.fixture
def left(monkeypatch):
    return gpu_script(monkeypatch, "budget").Left(time.monotonic() + 1_000)


def only(monkeypatch, ratios, **kernels):
    """Leave these kernels, by name, beside the reference."""
    known = {"reference": attention.KERNELS["reference"]} | kernels
    monkeypatch.setattr(ratios, "KERNELS", known)
    monkeypatch.setattr(ratios, "why_not", lambda name, device, dtype: "")


def altered(change):
    """The reference kernel with other gradients of values."""
    whole = attention.KERNELS["reference"]

    def backward(*inputs):
        dq, dk, dv = whole.backward(*inputs)
        return dq, dk, change(dv)

    return whole._replace(name="made up", backward=backward)


def test_the_reference_passes_in_both_directions_with_every_number_of_heads(
    ratios, scale, left, monkeypatch
):
    only(monkeypatch, ratios)
    rows = list(ratios.kernel_rows(scale, left))
    assert [row.what for row in rows] == [
        f"reference {name} {way}" for name in ("MHA", "MQA") for way in ("forward", "backward")
    ]
    assert {row.verdict for row in rows} == {"ok"}
    assert all(0 < row.value <= 1.5 for row in rows)


@pytest.mark.parametrize("change", [lambda dv: dv * 1.05, lambda dv: dv * math.nan])
def test_a_kernel_that_is_off_in_one_gradient_is_told_by_name(
    ratios, scale, left, monkeypatch, change
):
    only(monkeypatch, ratios, **{"made up": altered(change)})
    wrong = [row for row in ratios.kernel_rows(scale, left) if row.verdict == "no"]
    assert [row.what for row in wrong] == ["made up MHA backward", "made up MQA backward"]
    assert all("worst in dv" in row.note for row in wrong)


def test_kernels_that_do_not_work_here_are_named_with_the_reason(ratios, scale, left):
    rows = list(ratios.kernel_rows(scale._replace(heads=()), left))
    absent = {row.what: row.note for row in rows}
    assert {row.verdict for row in rows} == {"absent"}
    assert set(absent) == set(attention.KERNELS) - {"cpu", "reference"}
    assert all(absent.values())


def test_cases_without_time_are_named(ratios, scale, left, monkeypatch):
    only(monkeypatch, ratios)
    spent = left._replace(end_s=0.0) if hasattr(left, "_replace") else type(left)(0.0)
    rows = list(ratios.kernel_rows(scale._replace(heads=scale.heads[:1]), spent))
    assert [row.what for row in rows] == [f"MHA, {name}" for name, *_ in ratios.shapes(scale)]
    assert {row.verdict for row in rows} == {"left out"}


def test_the_plain_way_is_attention(ratios, scale):
    heads = scale.heads[1]
    for name, cu_q, cu_k, causal in ratios.shapes(scale):
        case = ratios.drawn(scale, heads, name, cu_q, cu_k, causal)
        exact = ratios.run(attention.KERNELS["reference"], case, torch.float64)
        assert max(ratios.errors(ratios.plainly(case), exact)) < 0.01


def test_ratios_have_a_floor_and_keep_what_is_no_number(ratios):
    found = ratios.ratio([2e-3, 0.0, math.nan, math.inf], [1e-3, 0.0, 1e-3, 1e-3])
    assert found[:2] == [2.0, 1.0]
    assert math.isnan(found[2])
    assert found[3] == math.inf
