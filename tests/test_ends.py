import numpy as np
import pytest

from hydraplan.config import load_cluster, load_model
from hydraplan.cost import CostModel
from hydraplan.costfit import LinkFit, RateFit
from hydraplan.ends import embedding_s, head_flops, loss_s
from hydraplan.profiler.analytic import analytic_fit

FIT = analytic_fit(load_cluster("h100-sxm"))
MODEL = load_model("llama-8b")
ENDS = {
    "embedding_forward": LinkFit(bytes_per_s=1e12, latency_s=1e-6),
    "embedding_weight": LinkFit(bytes_per_s=2e12, latency_s=2e-6),
    "loss_forward": RateFit(call_s=3e-6, flops_per_s=1e14),
    "loss_input": RateFit(call_s=4e-6, flops_per_s=2e14),
    "loss_weight": RateFit(call_s=5e-6, flops_per_s=4e14),
}


def test_derived_ends_move_rows_and_logits_as_memory_does_and_multiply_as_linears_do() -> None:
    row_s, call_s = embedding_s(FIT, MODEL)
    moved_s = 2 * 4096 / FIT.memory_bytes_per_s
    assert row_s == pytest.approx([2 * moved_s, 0, 3 * moved_s])
    assert not call_s.any()
    row_s, call_s = loss_s(FIT, MODEL, tp=2)
    product_s = 4096 * 128_256 / FIT.linear_forward.flops_per_s
    logits_s = 3 * 4 * 64_128 / FIT.memory_bytes_per_s
    assert row_s == pytest.approx([product_s + logits_s, product_s + logits_s, product_s])
    assert call_s == pytest.approx([FIT.linear_forward.call_s] * 3)


def test_measured_ends_take_what_was_measured_each_by_itself() -> None:
    fit = FIT.model_copy(update=ENDS)
    row_s, call_s = embedding_s(fit, MODEL)
    assert row_s == pytest.approx([8192 / 1e12, 0, 8192 / 2e12])
    assert call_s == pytest.approx([1e-6, 0, 2e-6])
    row_s, call_s = loss_s(fit, MODEL, tp=1)
    assert row_s == pytest.approx(head_flops(MODEL) / np.array([1e14, 2e14, 4e14]))
    assert call_s == pytest.approx([3e-6, 4e-6, 5e-6])
    half = FIT.model_copy(update={"loss_weight": ENDS["loss_weight"]})
    assert loss_s(half, MODEL, 1)[0][:2] == pytest.approx(loss_s(FIT, MODEL, 1)[0][:2])


def test_a_cost_model_has_them_on_its_first_and_last_stage_alone() -> None:
    layers = ((8,), (8,), (8,), (8,))
    derived = CostModel(FIT, MODEL, 1, 4, 8, layers)
    measured = CostModel(FIT.model_copy(update=ENDS), MODEL, 1, 4, 8, layers)
    for name in ("row_s", "call_s"):
        off = getattr(measured, name) - getattr(derived, name)
        assert not off[:, 1:3].any()
        assert off[:, 0].any()
        assert off[:, 3].any()
