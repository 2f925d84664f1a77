import pytest
import torch

from hydraplan.executor.data import CPU
from hydraplan.executor.groups import World
from hydraplan.executor.transport import RECEIVES_AHEAD, SENDS_AHEAD, Transport
from hydraplan.planner.pipeline.lowering import Message
from tests.processes import run_ranks


@pytest.mark.dist
def test_messages_of_two_chunks_and_both_ways_arrive_whatever_order_they_are_used_in():
    """Two stages; rows by microbatch, four ways in turn, each used in pairs the wrong way round."""
    rows = [3, 1, 5, 2, 4]
    ways = (("forward", 0, 1), ("backward", 1, 0), ("forward", 1, 0), ("backward", 0, 1))
    rounds = [
        [Message(way, m, chunk, source, target) for m in range(5) for chunk in range(2)]
        for way, source, target in ways
    ]
    assert len(rounds[0]) > max(RECEIVES_AHEAD, SENDS_AHEAD)

    def value_of(message):
        number = 100 * message.microbatch + 10 * message.to_chunk + (message.way == "forward")
        return torch.full((rows[message.microbatch], 8), float(number))

    def worker(rank):
        coming = iter([m for made in rounds for m in made if m.to_stage == rank])
        transport = Transport(World(rank, 2, 1), rows, 2, 8, torch.float32, coming, CPU)
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
        return wrong

    assert run_ranks(worker, 2, timeout_s=20.0) == [[], []]


def test_a_slot_without_rows_receives_nothing_and_still_has_a_shape():
    transport = Transport(World(0, 2, 1), [3, 0], 1, 8, torch.float32, iter(()), CPU)
    assert transport.receive(Message("backward", 1, 0, 1, 0)).shape == (0, 8)
    transport.finish()
