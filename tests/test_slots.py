import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import InputError, many
from hydraplan.layout import rank_positions
from hydraplan.model import Sequences
from hydraplan.slots import check_size, most_microbatches, padding_tokens, slot_times
from tests.builders import Place, placed_sequences
from tests.planner.cases import cost_model

RANKS, MICROBATCHES = 8, 3


@st.composite
def placements(draw: st.DrawFn) -> Sequences:
    places = []
    for _ in range(draw(st.integers(1, 12))):
        level = draw(st.integers(0, 3))
        u = 1 << draw(st.integers(0, level))
        first = draw(st.integers(0, (RANKS >> level) - 1)) << level
        places.append(
            Place(draw(st.integers(1, 3000)), first, u, (1 << level) // u,
                  draw(st.integers(0, MICROBATCHES - 1)))
        )  # fmt: skip
    return placed_sequences(places)


@settings(deadline=None)
@given(placements())
def test_slots_hold_exactly_the_rows_and_costs_of_their_sequences(placed: Sequences) -> None:
    cost = cost_model(RANKS, pp=2)
    slots = slot_times(cost, placed, MICROBATCHES)
    rows = np.zeros((RANKS, MICROBATCHES), np.int64)
    attention = np.zeros((2, RANKS, MICROBATCHES))
    exchanges: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(placed)):
        key = placed.microbatch[i], placed.first_rank[i], placed.ulysses_size[i]
        exchanges.setdefault((*map(int, key), int(placed.ring_size[i])), []).append(i)
    for (m, first, u, r), members in exchanges.items():
        some = placed.take(np.array(members))
        together = np.zeros(len(some), np.int64)
        seconds = cost.attention_s(some.length_tokens, some.ulysses_size, some.ring_size, together)
        attention[:, first : first + u * r, m] += seconds
    for i in range(len(placed)):
        for member in range(int(placed.degree[i])):
            slot = placed.first_rank[i] + member, placed.microbatch[i]
            rows[slot] += len(
                rank_positions(
                    int(placed.length_tokens[i]), int(placed.ulysses_size[i]),
                    int(placed.ring_size[i]), member,
                )
            )  # fmt: skip
    assert (slots.rows == rows).all()
    assert rows.sum() == placed.length_tokens.sum()
    for stage in range(2):
        layers = cost.layers[stage][0]
        for op in range(3):
            own = cost.call_s[op, stage, 0] + cost.row_s[op, stage, 0] * rows
            if op < 2:
                own = own + layers * attention[op]
            np.testing.assert_allclose(slots.op_s[op, stage, 0], own, rtol=1e-12)


@settings(deadline=None)
@given(placements())
def test_lanes_are_connected_exactly_through_shared_groups(placed: Sequences) -> None:
    slots = slot_times(cost_model(RANKS), placed, MICROBATCHES)
    for m in range(MICROBATCHES):
        friends = {lane: {lane} for lane in range(RANKS)}
        for i in np.flatnonzero(placed.microbatch == m):
            members = range(placed.first_rank[i], placed.first_rank[i] + placed.degree[i])
            joined = set().union(*(friends[x] for x in members))
            for lane in joined:
                friends[lane] = joined
        assert slots.component[:, m].tolist() == [min(friends[lane]) for lane in range(RANKS)]


def test_an_empty_slot_costs_only_its_calls() -> None:
    cost = cost_model(RANKS)
    slots = slot_times(cost, placed_sequences([Place(100)]), 2)
    assert (slots.rows[:, 1] == 0).all()
    np.testing.assert_allclose(slots.load_s[:, 1], cost.call_s.sum())


def test_rows_are_padded_for_sequence_parallelism() -> None:
    cost = cost_model(RANKS, tp=8)
    placed = placed_sequences([Place(100, 0), Place(64, 1)])
    slots = slot_times(cost, placed, 1)
    assert padding_tokens(slots.rows, 8)[:3, 0].tolist() == [4, 0, 0]
    assert slots.rows[0, 0] == 100
    weight = slots.op_s[2, 0, 0, :, 0]
    assert weight[0] == cost.call_s[2, 0, 0] + cost.row_s[2, 0, 0] * 104


@pytest.mark.parametrize(
    ("stages", "ranks", "most"),
    [(1, 1, 65_536), (4, 8, 16_384), (1, 512, 32_768), (8, 65_536, 32), (65_537, 1, 0)],
)
def test_the_largest_batch_is_planned_and_one_microbatch_more_is_refused(stages, ranks, most):
    assert most_microbatches(stages, ranks) == most
    check_size(stages, ranks, most)
    with pytest.raises(
        InputError, match=rf"^{many(most + 1, 'microbatch')} on {many(stages, 'stage')}"
    ):
        check_size(stages, ranks, most + 1)
