import re
from itertools import product

import pytest
import torch

from hydraplan.executor.data import CPU
from hydraplan.executor.groups import World, create_groups
from hydraplan.executor.transport import RECEIVES_AHEAD, SENDS_AHEAD, Transport
from hydraplan.planner.pipeline.lowering import Message
from tests.processes import RankFailed, run_ranks

ROWS = [3, 1, 5, 2, 4]
PLAN = "0123456789abcdef" * 4


def transport_of(rank, receives=(), ordered=False, plan_digest=None):
    """Stage `rank` of two, two chunks each."""
    world = World(rank, 2, 1)
    ways = create_groups(world, set(), 1.5, ordered=ordered).ways
    coming = iter(receives)
    return Transport(world, ROWS, 2, 8, torch.float32, coming, CPU, ways, plan_digest)


@pytest.mark.dist
def test_messages_of_two_chunks_and_both_ways_arrive_whatever_order_they_are_used_in():
    """Two stages; four ways in turn, each used in pairs the wrong way round; every transport."""
    ways = (("forward", 0, 1), ("backward", 1, 0), ("forward", 1, 0), ("backward", 0, 1))
    rounds = [
        [Message(way, m, chunk, source, target) for m in range(5) for chunk in range(2)]
        for way, source, target in ways
    ]
    assert len(rounds[0]) > max(RECEIVES_AHEAD, SENDS_AHEAD)

    def value_of(message):
        number = 100 * message.microbatch + 10 * message.to_chunk + (message.way == "forward")
        return torch.full((ROWS[message.microbatch], 8), float(number))

    def wrong_and_sent(rank, ordered, plan_digest):
        coming = [m for made in rounds for m in made if m.to_stage == rank]
        transport = transport_of(rank, coming, ordered, plan_digest)
        wrong = []
        for made in rounds:
            if made[0].from_stage == rank:
                for message in made:
                    transport.send(message, value_of(message))
                continue
            for first, second in zip(made[::2], made[1::2], strict=True):
                transport.post()
                transport.post()
                for message in (second, first):
                    if not torch.equal(transport.receive(message), value_of(message)):
                        wrong.append(message)
        transport.finish()
        assert transport.waited_s > 0
        return wrong, transport.sent_bytes

    def worker(rank):
        return [wrong_and_sent(rank, *way) for way in product((False, True), (None, PLAN))]

    sent_bytes = 2 * 2 * sum(ROWS) * 8 * 4  # two rounds, two chunks
    assert run_ranks(worker, 2, timeout_s=60.0) == [[[[], sent_bytes]] * 4] * 2


FIRST, SECOND = (Message("forward", m, 1, 0, 1) for m in range(2))
FROM = "for chunk 1 from rank 0 (stage 0, lane 0): "


@pytest.mark.dist
def test_a_crossed_order_is_refused_where_messages_have_no_tags():
    def worker(rank):
        transport = transport_of(rank, [FIRST, SECOND], True, PLAN)
        if rank == 1:
            transport.post()
        for message in (SECOND, FIRST):
            transport.send(message, torch.zeros(ROWS[message.microbatch], 8))
        transport.finish()

    named = f"activation of microbatch 0 {FROM}its microbatch is 1, 0 was waited for"
    with pytest.raises(RankFailed, match=re.escape(named)):
        run_ranks(worker, 2, timeout_s=60.0)


@pytest.mark.dist
def test_a_message_of_another_shape_is_refused_before_it_is_taken():
    def worker(rank):
        transport = transport_of(rank, [FIRST], plan_digest=PLAN)
        if rank == 1:
            transport.post()
        transport.rows[0] = 4
        transport.send(FIRST, torch.zeros(4, 8))
        transport.finish()

    named = f"activation of microbatch 0 {FROM}its rows is 4, 3 was waited for"
    with pytest.raises(RankFailed, match=re.escape(named)):
        run_ranks(worker, 2, timeout_s=60.0)


@pytest.mark.dist
def test_a_wait_that_is_too_long_names_microbatch_chunk_and_peer():
    def worker(rank):
        transport = transport_of(rank, [SECOND] * rank, ordered=True)
        if rank == 1:
            transport.post()
            transport.receive(SECOND)

    named = rf"activation of microbatch 1 {re.escape(FROM)}.*[Tt]imed out"
    with pytest.raises(RankFailed, match=named):
        run_ranks(worker, 2, timeout_s=1.5)


def test_a_slot_without_rows_receives_nothing_and_still_has_a_shape():
    transport = Transport(World(0, 2, 1), [3, 0], 1, 8, torch.float32, iter(()), CPU)
    assert transport.receive(Message("backward", 1, 0, 1, 0)).shape == (0, 8)
    transport.finish()
