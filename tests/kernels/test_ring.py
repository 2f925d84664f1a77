import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.kernels import ring
from hydraplan.kernels.attention import AttentionKernel
from hydraplan.kernels.exchange import Neighbours
from hydraplan.kernels.packing import rank_layout
from hydraplan.kernels.ring import MAX_RING_SIZE, TAG_LIMIT, check_ring, tag
from tests.builders import Place, placed_sequences

messages = st.tuples(st.integers(0, 3), st.integers(0, 255), st.integers(0, MAX_RING_SIZE - 1))


@given(messages, messages)
def test_different_messages_have_different_tags(one, other):
    assert (tag(*one) == tag(*other)) == (one == other)


@given(st.integers(0, 3), st.integers(0, 10**9), st.integers(0, MAX_RING_SIZE - 1))
def test_tags_stay_below_those_of_the_pipeline(carries, order, hop):
    assert 0 <= tag(carries, order, hop) < TAG_LIMIT == 2**20


def test_a_ring_too_long_for_its_tags_is_refused():
    check_ring(MAX_RING_SIZE)
    with pytest.raises(InputError, match="ring_size 2048 exceeds 1024"):
        check_ring(2 * MAX_RING_SIZE)


def events_of_a_ring_of_three(monkeypatch) -> tuple[list[str], list[str]]:
    """What lane 1 does in turn, forward and backward; works are named after what they carry."""
    events: list[str] = []
    names = {ring.FORWARD_KV: "keys", ring.BACKWARD_KV: "keys", ring.BACKWARD_GRADIENT: "gradient"}

    def post(send, receive, lanes, message):
        receive.zero_()
        name = f"{names[message // MAX_RING_SIZE % 4]} {message % MAX_RING_SIZE}"
        events.append(f"post {name}")
        return [name]

    def forward(q, k, v, *case):
        events.append("kernel")
        return torch.zeros_like(q), q.new_zeros(q.shape[1::-1])

    def backward(dout, q, k, v, *rest):
        events.append("kernel")
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)

    monkeypatch.setattr(ring, "post", post)
    monkeypatch.setattr(ring, "wait", lambda works: events.extend(f"wait {w}" for w in works))
    (bucket,) = rank_layout(placed_sequences([Place(24, 0, 1, 3)]), 0, 1).buckets
    x, lanes = torch.zeros(8, 1, 2), Neighbours(2, 0, bucket.order, True, False)
    kernel = AttentionKernel("noting", forward, backward, True)
    out, lse = ring.ring_forward(x, x, x, bucket.steps, lanes, kernel, 1.0)
    there = events.copy()
    events.clear()
    ring.ring_backward(x, x, x, x, out, lse, bucket.steps, lanes, kernel, 1.0)
    return there, events


def test_the_next_keys_travel_while_the_kernel_runs(monkeypatch):
    forward, _ = events_of_a_ring_of_three(monkeypatch)
    assert forward == [
        *("post keys 0", "kernel", "wait keys 0"),
        *("post keys 1", "kernel", "wait keys 1"),
        "kernel",
    ]


def test_gradients_travel_one_hop_behind_their_keys_while_the_next_kernel_runs(monkeypatch):
    _, backward = events_of_a_ring_of_three(monkeypatch)
    assert backward == [
        *("post keys 0", "kernel", "post gradient 0", "wait keys 0"),
        *("post keys 1", "kernel", "wait gradient 0", "post gradient 1", "wait keys 1"),
        *("kernel", "wait gradient 1", "post gradient 2", "wait gradient 2"),
    ]
