"""Messages between all ranks of a small world that stands for two nodes."""

import pytest

torch = pytest.importorskip("torch")

from hydraplan.profiler import exchanges  # noqa: E402
from hydraplan.profiler.exchanges import Place, measure_exchanges, place  # noqa: E402
from tests.processes import run_ranks  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.dist
def test_every_group_size_inside_a_node_and_both_ways_across_are_timed_alike_on_all_ranks(
    monkeypatch,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(exchanges, "NUM_REQUIRED", 2)

    def measured(rank: int) -> list[list[object]]:
        here = place(CPU)
        assert here == Place(rank, 8, 4, CPU)
        return [list(row) for row in measure_exchanges(here, 0.01)]

    said = run_ranks(measured, 8)
    assert all(rows == said[0] for rows in said)
    rows = [exchanges.Measurement(*row) for row in said[0]]
    kinds = {(row.component, row.ranks, row.bytes) for row in rows}
    assert {(component, ranks) for component, ranks, _ in kinds} == {
        ("all_to_all", 2),
        ("all_to_all", 4),
        ("p2p", 2),
        ("fabric_all_to_all", 2),
        ("fabric_p2p", 2),
    }
    assert {size for _, _, size in kinds} >= {1024.0, 4096.0}
    assert all(0 < row.p10_s <= row.median_s <= row.p90_s for row in rows)


@pytest.mark.dist
def test_a_rank_without_a_partner_waits_and_the_slowest_of_all_counts(monkeypatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(exchanges, "NUM_REQUIRED", 1)

    def measured(rank: int) -> list[list[object]]:
        def timer(run: exchanges.Run) -> exchanges.Timed:
            run()
            return exchanges.Timed(1e-3 * (1 + rank))

        exchanges.wall_timer = timer
        return [list(row) for row in measure_exchanges(place(CPU), 1e-9)]

    said = run_ranks(measured, 3)
    assert said[0] == said[1] == said[2]
    rows = [exchanges.Measurement(*row) for row in said[0]]
    assert [(row.component, row.ranks) for row in rows] == [("all_to_all", 2), ("p2p", 2)]
    assert {row.median_s for row in rows} == {3e-3}  # also that of the rank that only waits
