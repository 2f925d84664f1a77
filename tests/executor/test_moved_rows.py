from functools import partial

import pytest
import torch

from hydraplan.executor.decoder import MlpWeights, gated, initial_weights, norm
from hydraplan.executor.moved_rows import RowTrip
from hydraplan.executor.split_linear import WeightGradients
from hydraplan.kernels.link import Link, Outbox
from tests.processes import run_ranks

SHAPES = {"mlp_norm": (32,), "gate": (32, 48), "up": (32, 48), "down": (48, 32)}
ROWS = (96, 70)
"""Of giver and taker."""


def one_lane(rank, dtype, recompute, put_off, moved_rows, taker_rows=ROWS[1]):
    """Result and gradient of the input of two microbatches, gradients of the weights."""
    weights = initial_weights(SHAPES, 3, dtype)
    mlp_weights = MlpWeights(*weights.values())
    gradients = WeightGradients(are_put_off=put_off)
    linears = gradients.remaking if recompute == "selective" else gradients.keeping

    def mlp(x):
        gate, up = linears(norm, (x, mlp_weights.norm), mlp_weights[1:3])
        return linears(gated, (gate, up), mlp_weights[3:])[0]

    outbox, found = Outbox(), []
    for m in range(2):
        link = Link(1 - rank, "the other", "rows", 0, m, outbox)
        shared = RowTrip(moved_rows, rank == 0, link, gradients).shared
        run = partial(shared, mlp, weights=mlp_weights) if moved_rows else mlp
        if recompute == "full":
            run = partial(torch.utils.checkpoint.checkpoint, run, use_reentrant=False)
        generator = torch.Generator().manual_seed(2 * m + rank)
        rows = (ROWS[0], taker_rows)[rank]
        x, dy = (torch.randn(rows, 32, generator=generator).to(dtype) for _ in range(2))
        x.requires_grad_()
        found.append((x, run(x), dy))
    for x, y, dy in reversed(found):
        torch.autograd.backward(x + y, dy)
    for work in gradients.take():
        work()
    outbox.finish()
    return [t for x, y, _ in found for t in (y, x.grad)], [w.grad for w in weights.values()]


CASES = [
    ("float64", "none", True, 16), ("float64", "selective", False, 48),
    ("float64", "full", True, 96), ("float32", "full", False, 32),
    ("bfloat16", "none", True, 64),
]  # fmt: skip
TOLERANCE = {"float64": 1e-14, "float32": 1e-6, "bfloat16": 1e-2}


@pytest.mark.dist
def test_results_and_input_gradients_are_those_of_the_owner_to_the_bit_and_weights_add_up():
    def entry(rank):
        said = []
        for dtype, *case in CASES:
            args = (rank, getattr(torch, dtype), *case[:2])
            moved, ours = one_lane(*args, case[2])
            still, alone = one_lane(*args, 0)
            same = [torch.equal(a, b) for a, b in zip(moved, still, strict=True)]
            apart = [float((a - b).norm() / b.norm()) for a, b in zip(ours, alone, strict=True)]
            for both in (ours, alone):
                for gradient in both:
                    torch.distributed.all_reduce(gradient)
            error = [float((a - b).norm() / b.norm()) for a, b in zip(ours, alone, strict=True)]
            said.append([all(same), max(apart[1:]), max(error)])
        return said

    for said in run_ranks(entry, 2):
        for case, (same, apart, error) in zip(CASES, said, strict=True):
            assert same, case
            assert apart > 0.02, case  # a lane alone has other gradients
            assert error <= TOLERANCE[case[0]], case


@pytest.mark.dist
def test_a_taker_without_rows_of_its_own_works_for_the_giver():
    def entry(rank):
        moved, ours = one_lane(rank, torch.float64, "full", True, 48, taker_rows=0)
        still, alone = one_lane(rank, torch.float64, "full", True, 0, taker_rows=0)
        norms = [float(g.norm()) for g in ours[1:]], [float(g.norm()) for g in alone[1:]]
        return [all(map(torch.equal, moved, still)), *norms]

    (same, *_), (taken, ours, alone) = run_ranks(entry, 2)
    assert same
    assert taken
    assert min(ours) > 0 == max(alone)
