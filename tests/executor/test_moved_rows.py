from functools import partial
from types import SimpleNamespace

import pytest
import torch

from hydraplan.activations import foreign_row, forward_bytes
from hydraplan.executor.decoder import MlpWeights, gated, initial_weights, norm
from hydraplan.executor.moved_rows import RowTrip
from hydraplan.executor.split_linear import WeightGradients
from hydraplan.kernels.link import Link, Outbox
from tests.plans import tiny_model
from tests.processes import run_ranks

SHAPES = {"mlp_norm": (32,), "gate": (32, 48), "up": (32, 48), "down": (48, 32)}
ROWS = (96, 70)
"""Of giver and taker."""


class Echo:
    """A link of which the other end is not there: what comes is drawn."""

    def send(self, carries, *parts):
        pass

    def expect(self, carries, elements, like):
        drawn = torch.randn(elements).to(like.dtype)
        return SimpleNamespace(wait=lambda: drawn)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_a_taker_keeps_what_the_formula_says_and_leaves_it_for_w(dtype, recompute):
    model = tiny_model(dtype=dtype)
    held = {rows: kept(getattr(torch, dtype), recompute, rows) for rows in (0, 48)}
    found = [more - less for less, more in zip(held[0], held[48], strict=True)]
    whole = forward_bytes(model)
    assert found == pytest.approx([48 * share * whole for share in foreign_row(model, recompute)])
    assert foreign_row(model, "full").after_forward == 0


def kept(dtype, recompute, moved_rows):
    """Bytes that a taker of 70 rows keeps after F, and leaves for W."""
    weights = MlpWeights(*initial_weights(SHAPES, 3, dtype).values())
    gradients = WeightGradients(are_put_off=True)
    mlp = partial(own_mlp, gradients, recompute, weights)
    x, saved = torch.randn(70, 32).to(dtype).requires_grad_(), []

    def keep(tensor):
        saved.append(tensor)
        return tensor

    trip = RowTrip(moved_rows, False, Echo(), gradients)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = trip.shared(mlp, x, weights) if moved_rows else mlp(x)
    y.backward(torch.ones_like(y))
    return size(saved), size([t for work in gradients.take() for t in work.args[1:]])


def size(tensors):
    """Bytes of what lies under them."""
    storages = [t.untyped_storage() for t in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def own_mlp(gradients, recompute, weights, x):
    """A lane's own MLP, as `decoder` has it."""
    linears = gradients.remaking if recompute == "selective" else gradients.keeping
    gate, up = linears(norm, (x, weights.norm), weights[1:3])
    return linears(gated, (gate, up), weights[3:])[0]


def one_lane(rank, dtype, recompute, put_off, moved_rows, taker_rows=ROWS[1]):
    """Result and gradient of the input of two microbatches, gradients of the weights."""
    weights = initial_weights(SHAPES, 3, dtype)
    mlp_weights = MlpWeights(*weights.values())
    gradients = WeightGradients(are_put_off=put_off)
    mlp = partial(own_mlp, gradients, recompute, mlp_weights)
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
    return [t for x, y, _ in found for t in (y.detach(), x.grad)], [
        w.grad for w in weights.values()
    ]


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
def test_any_number_of_rows_may_move_though_few_have_other_roundings():
    def entry(rank):
        found = []
        for rows in (1, 7, 95):
            moved, _ = one_lane(rank, torch.float64, "none", False, rows)
            still, _ = one_lane(rank, torch.float64, "none", False, 0)
            found += [float((a - b).abs().max()) for a, b in zip(moved, still, strict=True)]
        return max(found)

    assert max(run_ranks(entry, 2)) <= 1e-13


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
