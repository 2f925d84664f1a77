from hydraplan.executor.groups import World, inner_ranges
from tests.builders import Place
from tests.plans import batch_rows


def test_world_rank_counts_lanes_first():
    world = World(rank=6, pp=2, ranks=4)
    assert (world.stage, world.lane) == (1, 2)
    assert world.describe(3) == "rank 3 (stage 0, lane 3)"


def test_only_inner_groups_that_a_plan_names_are_created():
    batch = batch_rows(
        [Place(64, 0, 2, 2), Place(9, 4, 4, 1), Place(9, 0, 1, 8, 1), Place(5, 2, 1, 1, 1)]
    )
    assert inner_ranges([batch.placed()]) == {(0, 2), (2, 2), (4, 4)}
