"""The traps of attention kernels, each closed once for every back end."""

import pytest
import torch

from hydraplan.errors import InputError
from hydraplan.kernels import attention, reference
from hydraplan.kernels.guarded import AttentionKernel, check_borders, guarded
from tests.kernels import flash_standins

ON_CPU = ("cpu", "reference", "flash2", "flash4")
EVERY_KERNEL = pytest.mark.parametrize("name", sorted(attention.KERNELS))
KERNEL = pytest.mark.parametrize("name", ON_CPU)
SCALE = 0.25


@pytest.fixture(autouse=True)
def standins(monkeypatch):
    flash_standins.install(monkeypatch)


def test_every_kernel_is_tried_here_but_the_one_that_needs_a_gpu():
    assert set(attention.KERNELS) == {*ON_CPU, "cuda"}


def tensors(q_rows, k_rows, heads=4, kv_heads=2, width=16, v_width=16, dtype=torch.bfloat16):
    """Upstream gradient, q, k, v."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((q_rows, heads, v_width), (q_rows, heads, width),
              (k_rows, kv_heads, width), (k_rows, kv_heads, v_width))  # fmt: skip
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]


def both(kernel, dout, q, k, v, *case):
    """Output, lse and gradients."""
    out, lse = kernel.forward(q, k, v, *case)
    return [out, lse, *kernel.backward(dout, q, k, v, out, lse, *case)]


@KERNEL
@pytest.mark.parametrize("empty", ["queries", "keys", "both"])
def test_a_segment_without_queries_or_keys_changes_nothing_of_the_others(name, empty):
    kernel = attention.KERNELS[name]
    q_size, k_size = {"queries": (0, 3), "keys": (2, 0), "both": (0, 0)}[empty]
    dout, q, k, v = tensors(7 + q_size, 9 + k_size)
    cu_q, cu_k = (0, 4, 4 + q_size, 7 + q_size), (0, 5, 5 + k_size, 9 + k_size)
    out, lse, dq, dk, dv = both(kernel, dout, q, k, v, cu_q, cu_k, False, SCALE)
    q_rows = [*range(4), *range(4 + q_size, 7 + q_size)]
    k_rows = [*range(5), *range(5 + k_size, 9 + k_size)]
    rest = [dout[q_rows], q[q_rows], k[k_rows], v[k_rows], (0, 4, 7), (0, 5, 9), False, SCALE]
    right = both(kernel, *rest)
    got = [out[q_rows], lse[:, q_rows], dq[q_rows], dk[k_rows], dv[k_rows]]
    for a, b in zip(got, right, strict=True):
        assert torch.equal(a, b)
    for x in (out[4 : 4 + q_size], dq[4 : 4 + q_size], dk[5 : 5 + k_size], dv[5 : 5 + k_size]):
        assert torch.equal(x, torch.zeros_like(x))
    assert torch.equal(lse[:, 4 : 4 + q_size], torch.full((4, q_size), -torch.inf))


@KERNEL
@pytest.mark.parametrize(("cu_q", "cu_k"), [((0,), (0,)), ((0, 0), (0, 0)), ((0, 0, 0), (0, 0, 0))])
def test_no_rows_at_all_reach_no_kernel_and_have_their_shapes(name, cu_q, cu_k):
    dout, q, k, v = tensors(0, 0)
    out, lse, *grads = both(attention.KERNELS[name], dout, q, k, v, cu_q, cu_k, True, SCALE)
    assert (out.shape, lse.shape, lse.dtype) == (q.shape, (4, 0), torch.float32)
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]


@EVERY_KERNEL
def test_a_causal_segment_that_is_no_square_is_refused(name):
    dout, q, k, v = tensors(2, 3)
    lse = torch.zeros(4, 2)
    with pytest.raises(AssertionError, match="causal segment must be square"):
        attention.KERNELS[name].forward(q, k, v, (0, 2), (0, 3), True, SCALE)
    with pytest.raises(AssertionError, match="causal segment must be square"):
        attention.KERNELS[name].backward(dout, q, k, v, q, lse, (0, 2), (0, 3), True, SCALE)


@EVERY_KERNEL
def test_squares_in_sum_that_are_rectangles_one_by_one_are_refused(name):
    _, q, k, v = tensors(5, 5)
    with pytest.raises(AssertionError, match="causal segment must be square"):
        attention.KERNELS[name].forward(q, k, v, (0, 2, 5), (0, 3, 5), True, SCALE)


@EVERY_KERNEL
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 4), (2, 4)])
def test_heads_that_kv_heads_do_not_divide_are_refused(name, heads, kv_heads):
    dout, q, k, v = tensors(3, 3, heads, kv_heads)
    lse = torch.zeros(heads, 3)
    with pytest.raises(InputError, match=f"{heads} query heads are not a multiple of {kv_heads}"):
        attention.KERNELS[name].forward(q, k, v, (0, 3), (0, 3), True, SCALE)
    with pytest.raises(InputError, match=f"{heads} query heads are not a multiple of {kv_heads}"):
        attention.KERNELS[name].backward(dout, q, k, v, q, lse, (0, 3), (0, 3), True, SCALE)


@EVERY_KERNEL
@pytest.mark.parametrize(("width", "v_width"), [(24, 16), (16, 24)])
def test_values_of_another_head_dim_are_refused(name, width, v_width):
    _, q, k, v = tensors(3, 3, width=width, v_width=v_width)
    with pytest.raises(InputError, match=f"head_dim {width}, {width}, {v_width}") as error:
        attention.KERNELS[name].forward(q, k, v, (0, 3), (0, 3), True, SCALE)
    assert "pad v" in error.value.hint


@EVERY_KERNEL
@pytest.mark.parametrize(
    ("cu_q", "cu_k", "complaint"),
    [
        ((1, 4), (0, 5), "queries begin at 1"),
        ((0, 4), (2, 5), "keys begin at 2"),
        ((0, 3), (0, 5), "queries end at 3, not at the 4 rows"),
        ((0, 4), (0, 6), "keys end at 6, not at the 5 rows"),
        ((0, 3, 2, 4), (0, 1, 2, 5), "queries fall"),
        ((0, 4), (0, 2, 5), "borders of 2 and 3"),
    ],
)
def test_borders_that_do_not_cover_the_rows_are_refused(name, cu_q, cu_k, complaint):
    dout, q, k, v = tensors(4, 5)
    lse = torch.zeros(4, 4)
    with pytest.raises(AssertionError, match=complaint):
        attention.KERNELS[name].forward(q, k, v, cu_q, cu_k, False, SCALE)
    with pytest.raises(AssertionError, match=complaint):
        attention.KERNELS[name].backward(dout, q, k, v, q, lse, cu_q, cu_k, False, SCALE)


def test_an_lse_by_rows_is_refused_and_one_of_another_type():
    def by_rows(*arguments):
        out, lse = reference.forward(*arguments)
        return out, lse.T

    def narrow(*arguments):
        out, lse = reference.forward(*arguments)
        return out, lse.bfloat16()

    _, q, k, v = tensors(3, 3)
    case = ((0, 3), (0, 3), True, SCALE)
    for forward, complaint in ((by_rows, r"\(3, 4\), not .* \(4, 3\)"), (narrow, "bfloat16, not")):
        kernel = guarded(AttentionKernel("odd", forward, reference.backward, False))
        with pytest.raises(AssertionError, match=f"lse .*{complaint}"):
            kernel.forward(q, k, v, *case)


@KERNEL
def test_backward_takes_no_lse_by_rows(name):
    dout, q, k, v = tensors(3, 3)
    with pytest.raises(AssertionError, match="lse has shape"):
        attention.KERNELS[name].backward(
            dout, q, k, v, q, torch.zeros(3, 4), (0, 3), (0, 3), True, SCALE
        )


@KERNEL
def test_lists_serve_as_borders(name):
    dout, q, k, v = tensors(4, 5)
    case = [0, 1, 4], [0, 2, 5], False, SCALE
    given = both(attention.KERNELS[name], dout, q, k, v, *case)
    right = both(attention.KERNELS[name], dout, q, k, v, (0, 1, 4), (0, 2, 5), *case[2:])
    assert all(map(torch.equal, given, right))


def test_borders_are_checked_once():
    check_borders.cache_clear()
    dout, q, k, v = tensors(4, 4)
    for _ in range(3):
        both(attention.KERNELS["cpu"], dout, q, k, v, (0, 4), (0, 4), True, SCALE)
    assert check_borders.cache_info().misses == 1
