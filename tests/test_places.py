"""Places: a batch at others and back, and the order that follows from them."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.model import PLACE_COLUMNS
from hydraplan.places import Places, places_from, places_of, with_places
from tests.builders import Place
from tests.plans import batch_rows

LANES = 4


@st.composite
def placed(draw, count):
    """`count` places in two microbatches on four lanes."""
    found = []
    for _ in range(count):
        u, r = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
        first = draw(st.integers(0, LANES // (u * r) - 1)) * u * r
        found.append(Place(draw(st.integers(1, 99)), first, u, r, draw(st.integers(0, 1))))
    return [found[0]._replace(microbatch=0), *found[1:]]


def columns(sequences):
    return {name: getattr(sequences, name).tolist() for name in PLACE_COLUMNS[:-1]}


@given(st.integers(2, 8).flatmap(lambda n: st.tuples(placed(n), placed(n))))
def test_a_batch_at_the_places_of_another_is_laid_out_as_that_one(both):
    one, other = (batch_rows([Place(0), *places]) for places in both)
    other.length_tokens[:] = one.length_tokens
    moved = with_places(one, places_of(other))
    assert places_of(moved) == places_of(other)
    assert columns(with_places(moved, places_of(one))) == columns(one)
    assert moved.sequence_id.tolist() == one.sequence_id.tolist()
    assert (moved.degree[0], moved.microbatch[0]) == (one.degree[0], one.microbatch[0])
    rows = moved.placed()
    for m in set(rows.microbatch.tolist()):
        here = rows.take(np.flatnonzero(rows.microbatch == m))
        keys = list(zip(-here.degree, here.sequence_id, strict=True))
        assert keys == sorted(keys)
        assert here.order.tolist() == list(range(len(here)))


def test_rows_without_a_place_and_in_another_order_are_no_matter():
    """Workers under torchrun hold only rows on ranks, in the order of execution."""
    rows = batch_rows([Place(9, 0, 1, 1, 1), Place(0), Place(7, 1, 1, 1, 0)])
    places = Places((0, 1), (1, 0), (1, 1), (1, 1))
    whole, held = with_places(rows, places), with_places(rows.placed(), places)
    assert held.sequence_id.tolist() == [2, 0]
    assert held.microbatch.tolist() == [1, 0]
    assert whole.microbatch.tolist() == [0, -1, 1]


def test_places_are_read_back_as_they_were_told():
    places = places_of(batch_rows([Place(9, 2, 2, 1, 0), Place(7, 0, 1, 2, 1)]))
    assert places == Places((0, 1), (2, 0), (2, 1), (1, 2))
    assert places_from(json.loads(json.dumps(places.to_json()))) == places


def test_places_of_another_number_of_sequences_are_refused():
    rows = batch_rows([Place(9), Place(0), Place(7)])
    with pytest.raises(InputError, match="1 places for 2 sequences on ranks"):
        with_places(rows, Places((0,), (0,), (1,), (1,)))
    with pytest.raises(InputError, match="2147483648 microbatches for 2 sequences"):
        with_places(rows, Places((0, 2**31 - 1), (0, 0), (1, 1), (1, 1)))
