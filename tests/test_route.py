import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.route import NOWHERE, RouteName, route


@given(st.integers(1, 9), st.integers(1, 4), st.sampled_from(["loop", "v", "both"]))
def test_every_chunk_is_visited_once_and_the_way_back_is_the_way(
    stages: int, chunks: int, name: RouteName
) -> None:
    chunks = chunks if name == "loop" else 2
    way = route(name, stages, chunks)
    seen = []
    for stage, chunk in way.ends()[0]:
        node = stage * chunks + chunk
        while node != NOWHERE:
            seen.append(node)
            after = int(way.after[node // chunks, node % chunks])
            if after != NOWHERE:
                assert way.before[after // chunks, after % chunks] == node
            node = after
    assert sorted(seen) == list(range(stages * chunks))
    assert len(way.ends()[1]) == len(way.ends()[0]) == (2 if name == "both" else 1)


@pytest.mark.parametrize(
    ("name", "begins", "ends"),
    [
        ("loop", [(0, 0)], [(3, 1)]),
        ("v", [(0, 0)], [(0, 1)]),
        ("both", [(0, 0), (3, 1)], [(0, 1), (3, 0)]),
    ],
)
def test_where_the_ways_begin_and_end(name: RouteName, begins: list, ends: list) -> None:  # type: ignore[type-arg]
    assert route(name, 4, 2).ends() == (begins, ends)


def test_the_chunks_in_the_order_of_the_model() -> None:
    assert route("loop", 2, 2).nodes() == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert route("v", 2, 2).nodes() == [(0, 0), (1, 0), (1, 1), (0, 1)]
    assert route("both", 2, 2).nodes() == [(0, 0), (1, 0), (1, 1), (0, 1)]
