import pytest

from hydraplan.topology import World, node_ranks, stays_inside


@pytest.mark.parametrize(
    ("ranks", "pp", "tp", "node", "wanted"),
    [
        (64, 4, 1, 8, 8),
        (12, 1, 1, 8, 8),
        (12, 4, 1, 8, 4),  # stage 1 starts at device 12, a block of 8 would straddle nodes
        (12, 4, 1, 72, 8),
        (6, 2, 1, 8, 2),
        (6, 2, 1, 12, 4),  # ranks 4 and 5 belong to no block of 4
        (64, 4, 1, 6, 2),
        (4, 1, 1, 6, 4),  # too small a pool to reach the next node
        (64, 4, 2, 8, 4),
        (64, 4, 8, 8, 1),
        (3, 2, 1, 8, 2),
        (3, 6, 1, 8, 1),  # stage 5 starts at device 15, the last of its node
        (96, 8, 1, 72, 8),
        (352, 8, 4, 8, 2),
        (352, 8, 1, 4, 4),
    ],
)
def test_node_blocks_are_as_large_as_pool_and_node_allow(
    ranks: int, pp: int, tp: int, node: int, wanted: int
) -> None:
    assert node_ranks(World(tp, pp, ranks), node) == wanted


@pytest.mark.parametrize("ranks", [1, 2, 5, 6, 12, 24, 352])
@pytest.mark.parametrize("devices", [4, 6, 8, 72])
def test_a_degree_stays_inside_exactly_if_every_device_of_every_group_does(
    ranks: int, devices: int
) -> None:
    for pp, tp in ((1, 1), (3, 1), (8, 2)):
        for degree in range(1, ranks + 1):
            starts = [
                (stage * ranks + first) * tp
                for stage in range(pp)
                for first in range(0, ranks - degree + 1, degree)
            ]
            wanted = all(s // devices == (s + degree * tp - 1) // devices for s in starts)
            assert stays_inside(World(tp, pp, ranks), degree, devices) == wanted
