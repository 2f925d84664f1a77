import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.heads import HeadRun, contiguous_split
from hydraplan.kernels.attention import choose_kernel
from hydraplan.kernels.head_runs import by_runs
from tests.head_splits import head_splits

KERNEL = choose_kernel(torch.device("cpu"), torch.float64)
CASE = ((0, 3, 8), (0, 3, 8), True, 0.5)


def drawn(rows, heads, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, heads, 4, generator=generator, dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(head_splits(), st.data())
def test_every_head_gets_what_a_call_for_it_alone_gives(split, data):
    ring = data.draw(st.integers(0, split.ring_size - 1))
    inner = data.draw(st.integers(0, split.ulysses_size - 1))
    held, columns = split.q_heads[ring][inner], split.kv_heads[inner]
    q, dout = (drawn(8, len(held), seed) for seed in (1, 2))
    k, v = (drawn(8, len(columns), seed) for seed in (3, 4))
    kernel = by_runs(KERNEL, split.runs[ring][inner], len(held), len(columns))
    out, lse = kernel.forward(q, k, v, *CASE)
    dq, dk, dv = kernel.backward(dout, q, k, v, out, lse, *CASE)
    want_dk, want_dv = torch.zeros_like(k), torch.zeros_like(v)
    each = split.num_heads // split.num_kv_heads
    for i, head in enumerate(held):
        own, key = slice(i, i + 1), columns.index(head // each)
        alone = (q[:, own], k[:, key : key + 1], v[:, key : key + 1])
        want_out, want_lse = KERNEL.forward(*alone, *CASE)
        assert torch.equal(out[:, own], want_out)
        assert torch.equal(lse[own], want_lse)
        grads = KERNEL.backward(dout[:, own], *alone, want_out, want_lse, *CASE)
        assert torch.equal(dq[:, own], grads[0])
        want_dk[:, key : key + 1] += grads[1]
        want_dv[:, key : key + 1] += grads[2]
    torch.testing.assert_close(dk, want_dk, rtol=0, atol=1e-13)
    torch.testing.assert_close(dv, want_dv, rtol=0, atol=1e-13)


def test_one_call_serves_an_even_member_and_a_member_without_heads_makes_none():
    even = contiguous_split(4, 2, [[2, 2]])
    assert by_runs(KERNEL, even.runs[0][0], 2, 1) is KERNEL
    idle = by_runs(KERNEL, (), 0, 0)
    q = drawn(8, 0, 1)
    out, lse = idle.forward(q, q, q, *CASE)
    assert out.shape == (8, 0, 4)
    assert lse.shape == (0, 8)
    assert [x.shape for x in idle.backward(q, q, q, q, out, lse, *CASE)] == [(8, 0, 4)] * 3


def test_an_uneven_group_in_one_call_would_have_been_wrong():
    split = contiguous_split(8, 2, [[6, 2]])
    assert split.runs[0][0] == (
        HeadRun(slice(0, 4), slice(0, 1)),
        HeadRun(slice(4, 6), slice(1, 2)),
    )
    q, k, v = drawn(8, 6, 1), drawn(8, 2, 2), drawn(8, 2, 3)
    right, _ = by_runs(KERNEL, split.runs[0][0], 6, 2).forward(q, k, v, *CASE)
    silent, _ = KERNEL.forward(q, k, v, *CASE)
    assert (right - silent).abs().max() > 0.1
