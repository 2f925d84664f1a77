import math

import pytest
import torch
import torch._dynamo  # AdamW imports it, which every forked rank would do by itself

from hydraplan.executor.decoder import initial_weights, weight_shapes
from hydraplan.executor.groups import World, create_groups
from hydraplan.executor.optimizer import clip_gradients, sharded_adamw, update
from tests.plans import tiny_model
from tests.processes import run_ranks

pytestmark = pytest.mark.dist

MODEL = tiny_model()


def weights_of(stage, compute=torch.float32):
    """One layer a stage, the embedding on the first, the head on the last of two."""
    shapes = weight_shapes(MODEL, range(stage, stage + 1), stage == 0, stage == 1)
    return initial_weights(shapes, 3, compute)


def give_gradients(weights, step, size=1.0):
    """The same gradients in every process that asks for a name and a step."""
    for name, weight in weights.items():
        generator = torch.Generator().manual_seed(hash_of(name) + step)
        weight.grad = size * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)


def hash_of(name):
    return int.from_bytes(name.encode()[-6:], "big")


@pytest.mark.parametrize(("pp", "ranks"), [(2, 2), (1, 3)])
def test_moments_lie_on_one_lane_and_the_weights_are_the_bits_of_unsharded_adamw(pp, ranks):
    def entry(rank):
        world = World(rank, pp, ranks)
        groups = create_groups(world, set(), 30.0)
        ours, plain = weights_of(world.stage), weights_of(world.stage)
        sharded = sharded_adamw(ours, groups, 1e-2)
        whole = torch.optim.AdamW(list(plain.values()), lr=1e-2)
        for step in range(3):
            give_gradients(ours, step)
            give_gradients(plain, step)
            update(sharded)
            whole.step()
        same = all(torch.equal(ours[name], plain[name]) for name in plain)
        return [same, sum(s["exp_avg"].numel() for s in sharded.optim.state.values())]

    said = run_ranks(entry, pp * ranks)
    assert all(same for same, _ in said)
    for stage in range(pp):
        held = [count for _, count in said[stage * ranks : (stage + 1) * ranks]]
        assert sum(held) == sum(w.numel() for w in weights_of(stage).values())
        assert max(held) < sum(held)


def test_a_pool_of_more_lanes_than_weights_trains_too():
    def entry(rank):
        groups = create_groups(World(rank, 1, 3), set(), 30.0)
        weights = {n: torch.ones(4).requires_grad_() for n in ("a", "b")}
        sharded = sharded_adamw(weights, groups, 0.5)
        give_gradients(weights, 0)
        update(sharded)
        return [weights["a"].tolist(), weights["b"].tolist()]

    said = run_ranks(entry, 3)
    assert said[0] == said[1] == said[2]
    assert 1.0 not in said[0][0] + said[0][1]


@pytest.mark.parametrize("limit", [0.0, 0.7, 1e6])
def test_the_norm_counts_every_weight_of_all_stages_once_and_scales_as_one_process_does(limit):
    def entry(rank):
        world = World(rank, 2, 2)
        groups = create_groups(world, set(), 30.0)
        weights = weights_of(world.stage, torch.float64)
        give_gradients(weights, world.stage)
        norm = clip_gradients(weights, groups, limit)
        return [norm, {name: w.grad.flatten()[:50].tolist() for name, w in weights.items()}]

    said = run_ranks(entry, 4)
    whole = {}
    for stage in range(2):
        held = weights_of(stage, torch.float64)
        give_gradients(held, stage)
        whole |= held
    assert {"embedding", "head"} < whole.keys()
    norm = torch.nn.utils.clip_grad_norm_(list(whole.values()), limit or math.inf)
    for rank, (found, gradients) in enumerate(said):
        assert found == said[0][0]
        assert found == pytest.approx(float(norm), rel=1e-13)
        assert len(gradients) == [10, 11][rank // 2]
        for name, values in gradients.items():
            assert values == pytest.approx(whole[name].grad.flatten()[:50].tolist(), rel=1e-13)


def test_a_norm_that_is_no_number_is_said_and_scales_nothing():
    def entry(rank):
        groups = create_groups(World(rank, 1, 1), set(), 30.0)
        weights = {"a": torch.ones(2).requires_grad_()}
        weights["a"].grad = torch.tensor([math.nan, 1.0])
        return [math.isnan(clip_gradients(weights, groups, 1.0)), float(weights["a"].grad[1])]

    assert run_ranks(entry, 1) == [[True, 1.0]]


def test_one_lane_has_nothing_to_share():
    def entry(rank):
        groups = create_groups(World(rank, 2, 1), set(), 30.0)
        return type(sharded_adamw(weights_of(rank), groups, 1e-2)).__name__

    assert run_ranks(entry, 2) == ["AdamW", "AdamW"]
