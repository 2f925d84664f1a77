from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from hydraplan.kernels.exchange import Neighbours, post, totals


@pytest.fixture
def posted(monkeypatch):
    """Calls in the order in which they are made, as (how, peer, tag)."""
    calls: list[tuple[str, int, int]] = []

    def one(how):
        def call(tensor, peer, tag):
            calls.append((how, peer, tag))
            return SimpleNamespace(wait=lambda: None)

        return call

    def batch(ops):
        calls.append(("batch", len(ops), ops[0].tag))
        return [SimpleNamespace(wait=lambda: None) for _ in ops]

    monkeypatch.setattr(dist, "isend", one("send"))
    monkeypatch.setattr(dist, "irecv", one("receive"))
    monkeypatch.setattr(dist, "batch_isend_irecv", batch)
    monkeypatch.setattr(
        dist,
        "P2POp",
        lambda op, tensor, peer, tag: SimpleNamespace(op=op, tensor=tensor, peer=peer, tag=tag),
    )
    return calls


def lanes(ring: int, size: int, batched: bool) -> Neighbours:
    return Neighbours((ring + 1) % size, (ring - 1) % size, 0, batched, ring % 2 == 0)


def test_a_hop_is_one_batch_or_two_messages_in_turn(posted):
    some = torch.ones(2, 3)
    assert len(post(some, some, lanes(0, 4, True), 9)) == 2
    assert len(post(some, some, lanes(0, 4, False), 9)) == 2
    assert len(post(some, some, lanes(1, 4, False), 9)) == 2
    assert posted == [
        ("batch", 2, 9),
        ("send", 1, 9),
        ("receive", 3, 9),
        ("receive", 0, 9),
        ("send", 2, 9),
    ]


@pytest.mark.parametrize("batched", [True, False])
def test_empty_messages_are_neither_posted_nor_counted(posted, batched):
    some, none, before = torch.ones(2, 3), torch.ones(0, 3), totals().ring_bytes
    assert post(none, none, lanes(0, 2, batched), 9) == []
    assert posted == []
    assert len(post(some, none, lanes(0, 2, batched), 9)) == 1
    assert len(post(none, some, lanes(0, 2, batched), 9)) == 1
    assert totals().ring_bytes - before == 24


def ends(orders: list[list[tuple[str, int]]]) -> bool:
    """Whether all lanes end where each waits for its first message until the peer is at it too."""
    met = True
    while met:
        met = False
        for lane, order in enumerate(orders):
            if order and order[0][0] == "send":
                target = order[0][1]
                if orders[target][:1] == [("receive", lane)]:
                    del order[0], orders[target][0]
                    met = True
    return not any(orders)


@pytest.mark.parametrize("size", range(2, 10))
def test_single_hops_go_round_even_where_a_lanes_messages_wait_for_each_other(size, posted):
    some, orders = torch.ones(1), []
    for ring in range(size):
        posted.clear()
        post(some, some, lanes(ring, size, False), 0)
        orders.append([(how, peer) for how, peer, _ in posted])
    all_send_first = [sorted(order, reverse=True) for order in orders]
    assert ends(orders)
    assert not ends(all_send_first)
