import pytest
import torch

from hydraplan.executor.groups import World
from hydraplan.executor.transport import Transport
from hydraplan.model import Op
from tests.processes import run_ranks


@pytest.mark.dist
def test_messages_arrive_whatever_the_order_and_slots_without_rows_send_none():
    rows = [3, 0, 5, 1, 2, 4]
    forward = [Op("F", m) for m in range(6)]
    orders = (
        (*forward, *(Op("BW", m) for m in (5, 0, 3, 1, 2, 4))),
        (*(Op("F", m) for m in (4, 2, 5, 0, 1, 3)), *(Op("BW", m) for m in range(6))),
    )

    def worker(rank):
        world = World(rank, pp=2, ranks=1)
        transport = Transport(world, orders[rank], rows, 8, torch.float32)
        wrong = []
        for kind, m, _ in orders[rank]:
            mine = "activation" if kind == "F" else "gradient"
            value = torch.full((rows[m], 8), 10.0 * m + (kind == "F"))
            if (kind == "F") == (rank == 0):
                transport.send(mine, m, value)
            elif not torch.equal(transport.receive(mine, m), value):
                wrong.append([kind, m])
        transport.finish()
        return wrong

    assert run_ranks(worker, 2) == [[], []]
