import numpy as np
import pytest
import torch
import torch.distributed as dist

from hydraplan.executor.groups import World, create_groups, inner_ranges, warm_up
from tests.builders import Place
from tests.plans import batch_rows
from tests.processes import run_ranks


def test_world_rank_counts_lanes_first():
    world = World(rank=6, pp=2, ranks=4)
    assert (world.stage, world.lane) == (1, 2)
    assert world.describe(3) == "rank 3 (stage 0, lane 3)"


def test_only_inner_groups_that_a_plan_names_are_created():
    batch = batch_rows(
        [Place(64, 0, 2, 2), Place(9, 4, 4, 1), Place(9, 0, 1, 8, 1), Place(5, 2, 1, 1, 1)]
    )
    assert inner_ranges([batch.placed()]) == {(0, 2), (2, 2), (4, 4)}


def test_of_too_many_groups_those_that_serve_most_sequences_are_created():
    placed = batch_rows(
        [Place(64, 0, 2, 2), Place(9, 2, 2, 1), Place(9, 6, 2, 1), Place(9, 6, 2, 1), Place(9, 6)]
    ).placed()
    assert inner_ranges([placed], 4) == {(0, 2), (2, 2), (6, 2)}
    assert inner_ranges([placed, placed], 2) == {(2, 2), (6, 2)}
    assert inner_ranges([placed], 1) == {(2, 2)}
    assert inner_ranges([placed.take(np.array([0, 4]))], 1) == {(0, 2)}


def used_groups(rank: int) -> list[list[int]]:
    """World ranks of every group this rank uses while its groups are warmed up."""
    world = World(rank, 2, 4)
    used: list[list[int]] = []
    all_reduce = dist.all_reduce

    def noting(tensor, group):
        used.append(dist.get_process_group_ranks(group or dist.group.WORLD))
        return all_reduce(tensor, group=group)

    groups = create_groups(world, {(2, 2), (0, 2), (1, 2)}, 20.0, ordered=True)
    dist.all_reduce = noting
    warm_up(groups, torch.device("cpu"))
    assert groups.inner(1, 3) is None
    return used


@pytest.mark.dist
def test_every_group_is_used_once_in_one_order_before_the_first_step():
    used = run_ranks(used_groups, 8)
    everyone, way = list(range(8)), [[1, 5], [1, 5]]
    assert used[1] == [everyone, [0, 1], [0, 1, 2, 3], [1, 2], *way]
    assert used[7] == [everyone, [4, 5, 6, 7], [6, 7], [3, 7], [3, 7]]
