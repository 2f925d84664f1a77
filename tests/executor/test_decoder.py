import math

import pytest
import torch
from torch.nn import functional

from hydraplan.executor import decoder
from hydraplan.executor.decoder import (
    decoder_layer,
    embed,
    initial_weights,
    loss_sum,
    rotary_angles,
    weight_shapes,
)
from hydraplan.executor.stage import build_stage
from hydraplan.kernels.reference import reference_attention
from hydraplan.route import route
from tests.plans import tiny_model

LOOP = route("loop", 2, 1)
MODEL = tiny_model(num_heads=4, num_kv_heads=2)


def whole(dtype=torch.float64):
    shapes = weight_shapes(MODEL, range(MODEL.num_layers), True, True)
    return initial_weights(shapes, seed=3, compute=dtype)


def test_a_stage_holds_the_same_bits_as_the_whole_model():
    weights = whole(torch.float32)
    stages = [build_stage(MODEL, ((1,), (1,)), LOOP, s, 3, torch.float32) for s in range(2)]
    held = [name for stage in stages for name in stage.weights]
    assert sorted(held) == sorted(weights)
    for stage in stages:
        for name, weight in stage.weights.items():
            assert torch.equal(weight, weights[name])


def test_another_seed_gives_other_matrices():
    shapes = {"layers.0.query": (8, 8)}
    one, other = (initial_weights(shapes, seed, torch.float64) for seed in (0, 1))
    assert not torch.equal(one["layers.0.query"], other["layers.0.query"])


def test_a_layer_agrees_with_one_written_with_torchs_own_operators():
    weights, name = whole(), "layers.1."
    x = torch.randn(11, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rotary = rotary_angles(MODEL, torch.arange(11), torch.float64)
    found = decoder_layer(weights, 1, MODEL, x, rotary, reference_attention)

    def turn(heads):  # pairs (i, i + D/2) are complex numbers turned by position * base^(-2i/D)
        pairs = torch.complex(heads[..., :4], heads[..., 4:])
        frequency = 500_000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
        angle = torch.arange(11, dtype=torch.float64)[:, None, None] * frequency
        turned = pairs * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([turned.real, turned.imag], -1)

    normed = functional.rms_norm(x, (32,), weights[name + "attention_norm"], 1e-5)
    q = turn((normed @ weights[name + "query"]).view(11, 4, 8)).transpose(0, 1)
    k = turn((normed @ weights[name + "key"]).view(11, 2, 8)).transpose(0, 1)
    v = (normed @ weights[name + "value"]).view(11, 2, 8).transpose(0, 1)
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    y = x + out.transpose(0, 1).reshape(11, 32) @ weights[name + "output"]
    normed = functional.rms_norm(y, (32,), weights[name + "mlp_norm"], 1e-5)
    gated = functional.silu(normed @ weights[name + "gate"]) * (normed @ weights[name + "up"])
    torch.testing.assert_close(found, y + gated @ weights[name + "down"], rtol=1e-12, atol=1e-12)


def test_equal_logits_lose_the_logarithm_of_the_vocabulary_on_labelled_rows_only():
    weights = {"final_norm": torch.ones(4), "head": torch.zeros(4, 64)}
    labels = torch.tensor([5, -1, 0])
    assert loss_sum(weights, torch.ones(3, 4), labels).item() == pytest.approx(2 * math.log(64))


def test_chunks_of_rows_change_neither_loss_nor_gradients(monkeypatch):
    weights = whole()
    x = torch.randn(10, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([1, 2, -1, 3, 4, 5, 6, -1, 7, 8])
    results = []
    for limit in (64 * 3, 64 * 100):
        monkeypatch.setattr(decoder, "LOSS_CHUNK_ELEMENTS", limit)
        inputs = x.clone().requires_grad_()
        loss = loss_sum(weights, inputs, labels)
        wanted = [inputs, weights["head"], weights["final_norm"]]
        results.append([loss, *torch.autograd.grad(loss, wanted)])
    for chunked, at_once in zip(*results, strict=True):
        torch.testing.assert_close(chunked, at_once, rtol=1e-13, atol=1e-14)


def test_no_rows_pass_through_forward_and_backward():
    weights = whole()
    x = embed(weights, torch.zeros(0, dtype=torch.int64), torch.float64)
    rotary = rotary_angles(MODEL, torch.zeros(0, dtype=torch.int64), torch.float64)
    x = decoder_layer(weights, 0, MODEL, x, rotary, reference_attention)
    loss = loss_sum(weights, x, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0.0
    assert not weights["embedding"].grad.any()


def test_half_precision_computes_in_it_but_keeps_weights_and_loss_wide():
    weights = whole(torch.bfloat16)
    x = embed(weights, torch.tensor([1, 2]), torch.bfloat16)
    rotary = rotary_angles(MODEL, torch.arange(2), torch.bfloat16)
    x = decoder_layer(weights, 0, MODEL, x, rotary, reference_attention)
    assert x.dtype == torch.bfloat16
    loss_sum(weights, x, torch.tensor([1, -1])).backward()
    assert {w.dtype for w in weights.values()} == {torch.float32}
    assert weights["layers.0.gate"].grad.dtype == torch.float32
