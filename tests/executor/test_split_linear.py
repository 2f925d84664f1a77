import weakref

import pytest
import torch
from torch.nn import functional

from hydraplan.executor.decoder import plain_linears
from hydraplan.executor.split_linear import WeightGradients, add_rows


def random(*shape, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def gradients_of(linear, rows, dtype=torch.float64, run=lambda: None):
    """Gradients of input and weight (12, 8) of two passes through one weight."""
    weight = random(12, 8, seed=0).to(torch.float32 if dtype == torch.bfloat16 else dtype)
    weight.requires_grad_()
    found = []
    for seed in (1, 2):
        x = random(rows, 12, seed=seed, dtype=dtype).requires_grad_()
        linear(x, weight).backward(random(rows, 8, seed=seed + 10, dtype=dtype))
        found.append(x.grad)
        run()
    return [*found, weight.grad]


@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_put_off_or_not_gradients_are_the_same_bits_and_those_of_autograd(rows, dtype):
    at_once, later = WeightGradients(), WeightGradients(are_put_off=True)

    def run():
        (work,) = later.take()
        work()

    now = gradients_of(at_once.linear, rows, dtype)
    waited = gradients_of(later.linear, rows, dtype, run)
    plain = gradients_of(lambda x, w: plain_linears(torch.clone, (x,), (w,))[0], rows, dtype)
    for first, second, third in zip(now, waited, plain, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first, third)
    assert now[2].dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)


@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("are_put_off", [False, True])
def test_an_input_that_is_made_again_gives_the_bits_of_one_that_was_kept(rows, are_put_off):
    def found(way):
        gradients = WeightGradients(are_put_off=are_put_off)
        inputs = [random(rows, 6, seed=s).requires_grad_() for s in (0, 1)]
        weights = [random(6, columns, seed=columns).requires_grad_() for columns in (3, 5, 2)]
        out = getattr(gradients, way)(lambda a, b: (a * b).tanh() + a, inputs, weights)
        sum((y * y).sum() for y in out).backward()
        for work in gradients.take():
            work()
        return [*out, *(x.grad for x in (*inputs, *weights))]

    for kept, remade in zip(found("keeping"), found("remaking"), strict=True):
        assert torch.equal(kept, remade)


def test_an_input_that_is_made_again_is_not_kept_between_the_passes():
    made = []

    def make(x):
        rows = x.sin()
        made.append(weakref.ref(rows))
        return rows

    gradients = WeightGradients(are_put_off=True)
    weights = [random(3, 2, seed=s).requires_grad_() for s in (0, 1)]
    out = gradients.remaking(make, [random(4, 3, seed=2).requires_grad_()], weights)
    assert [held() for held in made] == [None]
    (out[0] + out[1]).sum().backward()
    first, second = (work.args[1] for work in gradients.take())
    assert len(made) == 2
    assert first.data_ptr() == second.data_ptr()


def test_a_weight_has_no_gradient_before_its_work_is_done_and_the_input_has():
    later = WeightGradients(are_put_off=True)
    weight, x = random(3, 2, seed=0).requires_grad_(), random(4, 3, seed=1).requires_grad_()
    later.linear(x, weight).sum().backward()
    assert x.grad is not None
    assert weight.grad is None
    (work,) = later.take()
    work()
    torch.testing.assert_close(weight.grad, x.detach().sum(0)[:, None].expand(3, 2))
    assert later.take() == []


def test_what_waits_is_free_once_it_is_done():
    later = WeightGradients(are_put_off=True)
    weight, x = random(3, 2, seed=0).requires_grad_(), random(4, 3, seed=1).requires_grad_()
    rows = x.sin()
    later.linear(rows, weight).sum().backward()
    held = weakref.ref(rows)
    del rows
    waiting = later.take()
    assert held() is not None
    waiting.pop()()
    assert held() is None


def test_rows_of_one_id_add_up_in_the_embedding():
    ids = torch.tensor([3, 1, 3, 0, 3])
    ours, theirs = (random(5, 4, seed=0).requires_grad_() for _ in range(2))
    gradient = random(5, 4, seed=1)
    for _ in range(2):
        add_rows(ours, ids, gradient)
        functional.embedding(ids, theirs).backward(gradient)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-15, atol=0)
