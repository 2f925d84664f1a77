"""The cycle of a graph that is told in the fewest sentences, or that there is none.

Every edge belongs to a place. Edges in a row that belong to one place are told at once, so the
shortest cycle is the one that changes place least often. What cannot lie on a cycle is peeled off
from both sides, which proves most graphs free of cycles in one pass; from what is left a
0-1 breadth-first search starts at every node, until no cycle can change place less often. Of a
graph of very many nodes the shortest is taken that `MOST_LOOKS` looks have found.
"""

from collections import deque
from collections.abc import Hashable, Mapping
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)
Place = TypeVar("Place", bound=Hashable)


MOST_LOOKS = 1 << 20
"""Nodes that searches look at before they are content with a cycle; some seconds."""


def shortest_cycle(after: Mapping[Node, Mapping[Node, Place]]) -> list[tuple[Node, Place]]:
    """Nodes of the cycle with the fewest places, each with the place of the edge to the next.

    `after[a][b]` is the place of the edge from a to b; every node is a key. Empty without a cycle.
    """
    core = _core(after)
    by_place: dict[Place, dict[Node, dict[Node, Place]]] = {}
    for node, targets in core.items():
        for target, place in targets.items():
            here = by_place.setdefault(place, {})
            here.setdefault(target, {})
            here.setdefault(node, {})[target] = place
    for within in by_place.values():
        if one := _fewest(_core(within), 1):
            return one
    return _fewest(core, 2)


def _fewest(core: Mapping[Node, Mapping[Node, Place]], least: int) -> list[tuple[Node, Place]]:
    """The cycle with the fewest places, of which none has fewer than `least`."""
    best: list[tuple[Node, Place]] = []
    fewest, looks = len(core) + 1, 0
    for start in core:
        found, looked = _around(core, start, fewest)
        looks += looked
        if found:
            best, fewest = found, _num_places(found)
        if best and (fewest == least or looks > MOST_LOOKS):
            break
    return best


def _core(after: Mapping[Node, Mapping[Node, Place]]) -> dict[Node, dict[Node, Place]]:
    """What may lie on a cycle: something that is left leads there, and it leads to such."""
    return _turned(_peeled(_turned(_peeled(after))))


def _peeled(after: Mapping[Node, Mapping[Node, Place]]) -> dict[Node, dict[Node, Place]]:
    """Without the nodes that nothing left leads to."""
    ahead = dict.fromkeys(after, 0)
    for targets in after.values():
        for target in targets:
            ahead[target] += 1
    free = [node for node, count in ahead.items() if count == 0]
    while free:
        node = free.pop()
        for target in after[node]:
            ahead[target] -= 1
            if ahead[target] == 0:
                free.append(target)
    kept = {node for node, count in ahead.items() if count > 0}
    return {a: {b: p for b, p in after[a].items() if b in kept} for a in after if a in kept}


def _turned(after: Mapping[Node, Mapping[Node, Place]]) -> dict[Node, dict[Node, Place]]:
    """Every edge the other way round."""
    result: dict[Node, dict[Node, Place]] = {node: {} for node in after}
    for a, targets in after.items():
        for b, place in targets.items():
            result[b][a] = place
    return result


def _around(
    after: Mapping[Node, Mapping[Node, Place]], start: Node, limit: int
) -> tuple[list[tuple[Node, Place]], int]:
    """The way from a node back to it over fewer places than `limit`, empty if there is none.

    And how many nodes it has looked at.
    """
    came_from: dict[tuple[Node, Place | None], tuple[Node, Place | None]] = {}
    cost: dict[tuple[Node, Place | None], int] = {(start, None): 0}
    queue = deque(cost)
    settled = set()
    while queue:
        state = queue.popleft()
        if state in settled:
            continue
        settled.add(state)
        node, place = state
        if node == start and place is not None:
            way: list[tuple[Node, Place]] = []
            while state in came_from:
                back = came_from[state]
                assert state[1] is not None
                way.append((back[0], state[1]))
                state = back
            return way[::-1], len(settled)
        for target, at in after[node].items():
            total = cost[state] + (at != place)
            following = (target, at)
            if total < limit and total < cost.get(following, limit):
                cost[following] = total
                came_from[following] = state
                (queue.appendleft if at == place else queue.append)(following)
    return [], len(settled)


def _num_places(cycle: list[tuple[Node, Place]]) -> int:
    """How often the place changes, once round; 1 if it never does."""
    places = [place for _, place in cycle]
    return max(1, sum(a != b for a, b in zip(places, places[1:] + places[:1], strict=True)))
