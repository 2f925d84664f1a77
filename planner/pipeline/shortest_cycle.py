"""The cycle of a graph that is told in the fewest sentences, or that there is none.

Every edge belongs to a place. Edges in a row that belong to one place are told at once, so the
shortest cycle is the one that changes place least often. What cannot lie on a cycle is peeled off
from both sides, which proves most graphs free of cycles in one pass; from what is left a
0-1 breadth-first search starts at every node.
"""

from collections import deque
from collections.abc import Hashable, Mapping
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)
Place = TypeVar("Place", bound=Hashable)


def shortest_cycle(after: Mapping[Node, Mapping[Node, Place]]) -> list[tuple[Node, Place]]:
    """Nodes of the cycle with the fewest places, each with the place of the edge to the next.

    `after[a][b]` is the place of the edge from a to b; every node is a key. Empty without a cycle.
    """
    core = _turned(_peeled(_turned(_peeled(after))))
    best: list[tuple[Node, Place]] = []
    fewest = len(core) + 1
    for start in list(core):
        found = _around(core, start, fewest)
        if found:
            best, fewest = found, _num_places(found)
    return best


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
) -> list[tuple[Node, Place]]:
    """The way from a node back to it over fewer places than `limit`; empty if there is none."""
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
            return way[::-1]
        for target, at in after[node].items():
            total = cost[state] + (at != place)
            following = (target, at)
            if total < limit and total < cost.get(following, limit):
                cost[following] = total
                came_from[following] = state
                (queue.appendleft if at == place else queue.append)(following)
    return []


def _num_places(cycle: list[tuple[Node, Place]]) -> int:
    """How often the place changes, once round; 1 if it never does."""
    places = [place for _, place in cycle]
    return max(1, sum(a != b for a, b in zip(places, places[1:] + places[:1], strict=True)))
