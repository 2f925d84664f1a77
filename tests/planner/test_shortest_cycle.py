"""The cycle over the fewest places, against every cycle of small graphs."""

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.planner.pipeline import shortest_cycle as module
from hydraplan.planner.pipeline.shortest_cycle import shortest_cycle

Graph = dict[int, dict[int, str]]


def graph_of(seed: int, size: int, edges: int) -> Graph:
    rng = random.Random(seed)
    graph: Graph = {node: {} for node in range(size)}
    for _ in range(edges):
        graph[rng.randrange(size)][rng.randrange(size)] = rng.choice("abc")
    return graph


def places(way: list[str]) -> int:
    return max(1, sum(a != b for a, b in zip(way, way[1:] + way[:1], strict=True)))


def fewest_places(graph: Graph) -> int:
    """By walking every simple cycle; 0 if there is none."""
    found: list[int] = []

    def walk(path: list[int], way: list[str]) -> None:
        for target, place in graph[path[-1]].items():
            if target == path[0]:
                found.append(places([*way, place]))
            elif target not in path and target > path[0]:
                walk([*path, target], [*way, place])

    for start in graph:
        walk([start], [])
    return min(found, default=0)


@given(st.integers(0, 1 << 30), st.integers(1, 6), st.integers(0, 14))
def test_it_is_a_cycle_over_as_few_places_as_any(seed: int, size: int, edges: int) -> None:
    graph = graph_of(seed, size, edges)
    cycle = shortest_cycle(graph)
    assert (places([place for _, place in cycle]) if cycle else 0) == fewest_places(graph)
    for (node, place), (following, _) in pairwise([*cycle, *cycle[:1]]):
        assert graph[node][following] == place


def test_a_long_way_in_one_place_is_shorter_than_a_short_one_over_two() -> None:
    graph = {0: {1: "a", 3: "b"}, 1: {2: "a"}, 2: {0: "a"}, 3: {0: "a"}}
    assert [node for node, _ in shortest_cycle(graph)] in ([0, 1, 2], [1, 2, 0], [2, 0, 1])


def test_a_graph_without_a_cycle_has_none() -> None:
    assert shortest_cycle({0: {1: "a", 2: "b"}, 1: {2: "a"}, 2: {}}) == []


def rungs(count: int, places: str) -> Graph:
    """So many cycles over all places, one leading to the next on each of them."""
    width = len(places)
    graph: Graph = {node: {} for node in range(count * width)}
    for rung in range(count):
        for i, place in enumerate(places):
            graph[rung * width + i][rung * width + (i + 1) % width] = place
            if rung + 1 < count:
                graph[rung * width + i][(rung + 1) * width + i] = place
    return graph


def test_many_crossed_pairs_are_not_all_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, around = [0], module._around

    def counted(*args: Any) -> Any:
        found, looked = around(*args)
        looks[0] += looked
        return found, looked

    monkeypatch.setattr(module, "_around", counted)
    assert len(shortest_cycle(rungs(2000, "ab"))) == 2
    assert looks[0] < 50_000
    monkeypatch.setattr(module, "MOST_LOOKS", 10_000)
    looks[0] = 0
    assert len(shortest_cycle(rungs(500, "abc"))) == 3
    assert looks[0] < 20_000
