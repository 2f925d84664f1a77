import weakref

import pytest
import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from hydraplan.activations import forward_bytes, waiting_bytes
from hydraplan.config import ACCUMULATOR_BYTES
from hydraplan.executor import decoder
from hydraplan.executor.data import generated_tokens, load_slot
from hydraplan.executor.decoder import decoder_layer, rotary_angles
from hydraplan.executor.stage import build_stage, layer_ranges
from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.nested import nested_attention
from hydraplan.kernels.packing import rank_layout
from hydraplan.kernels.reference import reference_attention
from hydraplan.route import route
from tests.builders import Place
from tests.plans import batch_rows, tiny_model

MODEL = tiny_model(8, 2, 8)


def stage_of(name, layers, stage, recompute="none", compute=torch.float64):
    way = route(name, len(layers), len(layers[0]))
    return build_stage(MODEL, layers, way, stage, 4, compute, recompute=recompute)


def slot_of(rows):
    """One sequence on lane 0, or what lane 1 has of it."""
    placed = batch_rows([Place(rows or 1)]).placed()
    return load_slot(rank_layout(placed, 0, int(not rows)), placed, generated_tokens(1, 64))


def random_rows(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 32, generator=generator, dtype=torch.float64)


def test_layers_are_counted_along_the_route():
    layers = ((1, 2), (3, 4))
    assert layer_ranges(layers, route("loop", 2, 2)) == [
        [range(0, 1), range(4, 6)],
        [range(1, 4), range(6, 10)],
    ]
    assert layer_ranges(layers, route("v", 2, 2)) == [
        [range(0, 1), range(8, 10)],
        [range(1, 4), range(4, 8)],
    ]


def test_the_first_stage_of_a_v_embeds_and_makes_the_loss():
    layers = ((2, 2), (1, 3))
    first, last = (stage_of("v", layers, s) for s in range(2))
    assert [chunk[1:] for chunk in first.chunks] == [(True, False), (False, True)]
    assert {"embedding", "head", "final_norm", "layers.0.query", "layers.7.query"} < set(
        first.weights
    )
    assert not {"embedding", "head"} & set(last.weights)
    assert [chunk.layers for chunk in last.chunks] == [range(2, 3), range(3, 6)]


def found_by(stage, chunk, slot, received, gradient, put_off):
    """Output, gradient of the input, weights that have one after B, all gradients after W."""
    passed, output = stage.forward(chunk, slot, received, reference_attention)
    found, waiting = stage.backward(chunk, slot, passed, gradient, put_off)
    early = {n for n, w in stage.weights.items() if w.grad is not None}
    assert bool(waiting) == put_off
    for work in waiting:
        work()
    return output, found, early, {n: w.grad for n, w in stage.weights.items()}


@pytest.mark.parametrize("rows", [0, 9])
@pytest.mark.parametrize("chunk", [0, 1])
def test_b_then_w_gives_the_bits_of_bw_on_the_stage_with_both_ends(rows, chunk):
    slot, received = slot_of(rows), None if chunk == 0 else random_rows(rows)
    gradient = random_rows(rows, 1) if chunk == 0 else torch.tensor(0.125, dtype=torch.float64)
    split = found_by(stage_of("v", ((1, 2), (2, 3)), 0), chunk, slot, received, gradient, True)
    fused = found_by(stage_of("v", ((1, 2), (2, 3)), 0), chunk, slot, received, gradient, False)
    held = {n for n, g in fused[3].items() if g is not None}
    assert fused[2] == held
    assert split[2] == {n for n in held if n.endswith("norm")}
    assert torch.equal(split[0], fused[0])
    assert torch.equal(split[1], fused[1])
    for name in held:
        assert torch.equal(split[3][name], fused[3][name]), name


@pytest.mark.parametrize("put_off", [False, True])
@pytest.mark.parametrize("compute", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_made_again_gives_the_same_bits_and_leaves_the_same_for_w(
    recompute, chunk, compute, put_off
):
    slot, received = slot_of(9), None if chunk == 0 else random_rows(9).to(compute)
    gradient = random_rows(9, 1).to(compute) if chunk == 0 else torch.tensor(0.125).double()
    stages = [stage_of("v", ((1, 2), (2, 3)), 0, mode, compute) for mode in ("none", recompute)]
    kept, remade = (found_by(s, chunk, slot, received, gradient, put_off) for s in stages)
    assert remade[2] == kept[2]
    assert torch.equal(remade[0], kept[0])
    assert torch.equal(remade[1], kept[1])
    for name, found in kept[3].items():
        assert (found is None) == (remade[3][name] is None)
        assert found is None or torch.equal(found, remade[3][name]), name


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_chunk_without_rows_goes_through_both_ways_under_every_recompute(recompute):
    stage = stage_of("loop", ((2,), (6,)), 0, recompute)
    _, found, _, gradients = found_by(stage, 0, slot_of(0), None, random_rows(0), True)
    assert found.shape == (0, 32)
    assert all((g == 0).all() for g in gradients.values())


@pytest.mark.parametrize(("recompute", "calls"), [("none", 3), ("selective", 3), ("full", 6)])
def test_attention_runs_again_in_b_only_if_whole_layers_are_made_again(recompute, calls):
    seen = []

    def attend(q, k, v):
        seen.append(len(q))
        return reference_attention(q, k, v)

    stage, slot, received = stage_of("loop", ((2,), (3,), (3,)), 1, recompute), slot_of(9), None
    received = random_rows(9)
    passed, _ = stage.forward(0, slot, received, attend)
    assert len(seen) == 3
    _, waiting = stage.backward(0, slot, passed, random_rows(9, 1), True)
    assert len(seen) == calls
    for work in waiting:
        work()
    assert len(seen) == calls


def test_autograds_own_split_of_plain_linears_finds_the_same():
    """PyTorch's I and W on the graph of a middle chunk, of which ours needs no private part."""
    slot, received, gradient = slot_of(21), random_rows(21), random_rows(21, 1)
    stage = stage_of("loop", ((2,), (3,), (3,)), 1)
    _, found, _, ours = found_by(stage, 0, slot, received, gradient, True)
    weights = {n: w.detach().clone().requires_grad_() for n, w in stage.weights.items()}
    x = received.clone().requires_grad_()
    out, rotary = x, rotary_angles(MODEL, slot.positions_T, torch.float64)
    for layer in range(2, 5):
        out = decoder_layer(weights, layer, MODEL, out, rotary, reference_attention)
    (theirs,), groups = stage_backward_input([out], [gradient], [x], iter(weights.values()))
    torch.testing.assert_close(found, theirs, rtol=1e-12, atol=1e-14)
    stage_backward_weight(iter(weights.values()), groups)
    for name, weight in weights.items():
        torch.testing.assert_close(ours[name], weight.grad, rtol=1e-12, atol=1e-13)


def test_the_heads_weight_waits_only_while_all_logits_are_kept(monkeypatch):
    slot, received = slot_of(9), random_rows(9)
    gradient = torch.tensor(1.0, dtype=torch.float64)
    found = []
    for limit in (64 * 4, 64 * 9):
        monkeypatch.setattr(decoder, "LOSS_CHUNK_ELEMENTS", limit)
        stage = stage_of("loop", ((2,), (6,)), 1)
        *_, early, gradients = found_by(stage, 0, slot, received, gradient, True)
        found.append(gradients)
        assert ("head" in early) == (limit < 64 * 9)
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-12, atol=1e-14)


def bytes_held(model, rows, num_layers, recompute):
    """Bytes of all tensors but weights that a middle chunk keeps: after F, and after B."""
    compute, received = getattr(torch, model.dtype), torch.ones(rows, model.hidden_size)
    layers = ((1,), (num_layers,), (model.num_layers - 1 - num_layers,))
    stage = build_stage(model, layers, route("loop", 3, 1), 1, 4, compute, recompute=recompute)
    slot, kernel = slot_of(rows), choose_kernel(torch.device("cpu"), compute)
    weights = {w.untyped_storage().data_ptr() for w in stage.weights.values()}

    def attend(q, k, v):
        return nested_attention(q, k, v, slot.layout, None, kernel)

    def size(tensors):
        storages = [t.untyped_storage() for t in tensors]
        return sum(
            {s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in weights}.values()
        )

    saved = []

    def keep(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        passed, output = stage.forward(0, slot, received.to(compute), attend)
    gradient, came_out = torch.ones_like(output), weakref.ref(output.untyped_storage())
    del output
    assert came_out() is None  # but for who received it
    _, waiting = stage.backward(0, slot, passed, gradient, True)
    return size(saved), size([t for work in waiting for t in work.args[1:]])


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(("heads", "kv_heads", "ffn"), [(8, 2, 48), (4, 4, 112), (8, 1, 40)])
def test_f_keeps_and_b_leaves_for_w_the_bytes_that_the_model_says(
    heads, kv_heads, ffn, dtype, recompute
):
    shape = {"num_heads": heads, "num_kv_heads": kv_heads, "ffn_hidden_size": ffn, "dtype": dtype}
    model = MODEL.model_copy(update=shape)
    found = [bytes_held(model, 40, num_layers, recompute) for num_layers in (2, 5)]
    after_f, after_b = (more - less for less, more in zip(*found, strict=True))
    assert after_f == 3 * 40 * forward_bytes(model, recompute)
    assert after_b == 3 * 40 * waiting_bytes(model)
    angles = 40 * model.head_dim * ACCUMULATOR_BYTES[dtype]  # once a chunk
    if recompute == "full":  # an argument of the checkpoints, held but not saved
        angles = 0
    assert found[0] == (2 * after_f // 3 + angles, 2 * after_b // 3)
