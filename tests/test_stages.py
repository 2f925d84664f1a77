from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.config import load_model
from hydraplan.errors import InputError
from hydraplan.stages import check_tensor_parallel, split_layers


@given(st.integers(1, 100), st.integers(1, 12), st.integers(1, 3))
def test_layers_are_split_evenly_and_none_is_lost(layers: int, stages: int, chunks: int) -> None:
    if layers < stages * chunks:
        with pytest.raises(InputError, match="cannot fill"):
            split_layers(layers, stages, chunks)
        return
    split = split_layers(layers, stages, chunks)
    flat = [count for stage in split for count in stage]
    assert sum(flat) == layers
    assert len(flat) == stages * chunks
    assert max(flat) - min(flat) <= 1


def test_extra_layers_spare_the_stages_with_embedding_and_loss() -> None:
    assert split_layers(6, 4) == [[1], [2], [2], [1]]
    assert split_layers(34, 8) == [[4], [4], [4], [5], [5], [4], [4], [4]]


def test_a_tensor_parallel_size_that_cuts_heads_is_refused() -> None:
    with pytest.raises(InputError, match="tp 3 does not divide num_heads 32"):
        check_tensor_parallel(load_model("llama-8b"), 3, 8)
    with pytest.raises(InputError, match="tp 16 exceeds the 8 devices of a node"):
        check_tensor_parallel(load_model("llama-8b"), 16, 8)


@given(st.integers(1, 4), st.integers(0, 8), st.lists(st.floats(0, 4), min_size=4, max_size=4))
def test_no_other_split_has_a_lighter_heaviest_part(
    stages: int, more: int, extra: list[float]
) -> None:
    layers, held = stages + more, extra[:stages]
    found = split_layers(layers, stages, 1, held)
    assert sum(map(sum, found)) == layers
    heaviest = max(row[0] + e for row, e in zip(found, held, strict=True))
    every = (c for c in product(range(1, more + 2), repeat=stages) if sum(c) == layers)
    best = min(max(n + e for n, e in zip(c, held, strict=True)) for c in every)
    assert heaviest == best


def test_the_stage_with_the_loss_gets_fewer_layers() -> None:
    assert split_layers(32, 8, 1, [0, 0, 0, 0, 0, 0, 0, 2.2]) == [
        [4], [4], [4], [5], [5], [4], [4], [2],
    ]  # fmt: skip


def test_both_ends_of_a_v_lie_on_the_first_stage() -> None:
    """Parts in the order of the model: down in chunk 0, up in chunk 1, the loss at the end."""
    assert split_layers(10, 2, 2, [0, 0, 0, 2.5], "v") == [[3, 1], [3, 3]]
    assert split_layers(10, 2, 2, [0, 0, 0, 2.5]) == [[3, 3], [3, 1]]


def test_among_equal_parts_the_lightest_stage_gets_the_next_layer() -> None:
    assert split_layers(10, 4, 2, None, "v") == [[1, 1], [1, 1], [2, 1], [2, 1]]
    assert split_layers(12, 4, 2) == [[1, 2], [1, 2], [2, 1], [2, 1]]
