"""Which link connects whom: nodes, pods and what lies beyond, device by device.

Devices are numbered through ranks, lanes and stages: device = (stage * ranks + lane) * tp + i.
Nodes and pods are runs of devices from 0 on. Groups are aligned: a group of degree d starts at
a multiple of d inside its pool, which need not be a multiple of anything, so whether groups of
a degree stay inside a node is asked of every one of them.

Source: our choice.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hydraplan.costfit import CostFit, LinkFit


class World(NamedTuple):
    """How many devices make a rank, stages the model, ranks the pool of a stage."""

    tp: int
    pp: int
    ranks: int


@lru_cache(maxsize=1024)
def stays_inside(world: World, degree: int, devices: int) -> bool:
    """Whether no group of `degree` ranks, of any stage, lies in two runs of `devices` devices."""
    size = degree * world.tp
    pools = np.arange(world.pp, dtype=np.int64) * world.ranks * world.tp
    groups = np.arange(world.ranks // degree, dtype=np.int64) * size
    first = np.add.outer(np.unique(pools % devices), np.unique(groups % devices)) % devices
    return bool((first + size <= devices).all())


def node_ranks(world: World, devices_per_node: int) -> int:
    """Largest power of two of ranks whose groups, and those of its halves, stay in a node."""
    degree = 1
    while 2 * degree <= world.ranks and stays_inside(world, 2 * degree, devices_per_node):
        degree *= 2
    return degree


def group_link(fit: CostFit, world: World, degree: int) -> LinkFit:
    """Point-to-point link of the groups of a degree: they hop together, the slowest counts."""
    return _link(fit, lambda devices: stays_inside(world, degree, devices))


def stage_link(fit: CostFit, world: World) -> LinkFit:
    """Point-to-point link between stages; the slowest of all lanes and stages counts."""
    return _link(fit, lambda devices: world.tp * world.pp * world.ranks <= devices)


def rank_link(fit: CostFit, world: World) -> LinkFit:
    """All-to-all link between the devices of a rank: the fabric's if some rank is on two nodes."""
    inside = stays_inside(world, 1, fit.devices_per_node)
    return fit.node_all_to_all if inside else fit.fabric_all_to_all


def _link(fit: CostFit, fits_in: Callable[[int], bool]) -> LinkFit:
    """Link of those that `fits_in` a node, or a pod, of so many devices."""
    if fits_in(fit.devices_per_node):
        return fit.node_p2p
    if fit.pod_p2p is None or fit.devices_per_pod is None or fits_in(fit.devices_per_pod):
        return fit.fabric_p2p
    return fit.pod_p2p
