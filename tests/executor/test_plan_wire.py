from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.errors import RunFailed
from hydraplan.executor.change import checked
from hydraplan.executor.plan_wire import decode_batch, encode_batch, from_bytes, to_bytes
from hydraplan.executor.same_step import batch_hash
from hydraplan.files.decisionsfile import Change
from hydraplan.places import places_of
from hydraplan.planner.pipeline.schedules import SCHEDULES
from tests.builders import Place
from tests.plans import batch_plan, batch_rows, plan_header, tiny_model


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1))
def test_numbers_come_back(values):
    given = np.array(values, np.int64)
    raw = to_bytes(given)
    assert from_bytes(raw).tolist() == values
    assert len(raw) == sum(max(1, -(-value.bit_length() // 7)) for value in values)


@st.composite
def batches(draw):
    """Rows with and without a place, on a pool of 16 lanes, several microbatches and chunks."""
    places = draw(
        st.lists(
            st.builds(
                Place,
                *(st.integers(0, 300), st.integers(0, 15), st.sampled_from([1, 2, 4, 3])),
                *(st.integers(1, 5), st.integers(0, 3)),
            ),
            min_size=1,
            max_size=12,
        ).filter(lambda found: any(place.length for place in found))
    )
    name = draw(st.sampled_from(["1f1b", "zb-v", "interleaved"]))
    make = partial(SCHEDULES[name].make, num_chunks=SCHEDULES[name].chunks or 2)
    rows = batch_rows(places, draw(st.integers(0, 2**40)))
    return replace(batch_plan(draw(st.integers(0, 999)), rows, 4, 3), schedule=make(3, 4))


@given(batches())
def test_workers_get_all_that_they_need_of_a_batch_and_only_rows_on_ranks(batch):
    found, placed = decode_batch(encode_batch(batch)), batch.sequences.placed()
    for name in (*found.sequences.__dataclass_fields__,):
        wanted = getattr(placed, name)
        assert np.array_equal(getattr(found.sequences, name), wanted), name
    assert found.schedule == batch.schedule
    assert (found.batch, found.num_microbatches) == (batch.batch, batch.num_microbatches)
    assert batch_hash(found) == batch_hash(batch)


def test_a_large_batch_takes_less_than_16_bytes_a_sequence():
    """2,048 sequences on 8,192 lanes, shuffled ids, up to 16M tokens each, degrees up to 64."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 2**24, 2048).tolist()
    u, r = (rng.choice([1, 2, 4, 8], 2048) for _ in range(2))
    first = rng.integers(0, 128, 2048) * 64
    places = list(map(Place, lengths, first, u, r, rng.integers(0, 64, 2048).tolist()))
    batch = batch_plan(7, batch_rows(places, 10**9), 64, 8)
    alone = len(encode_batch(replace(batch, schedule=((),) * 8)))
    assert 8 * 2048 < alone < 12 * 2048
    assert len(encode_batch(batch)) - alone <= 3 * sum(map(len, batch.schedule)) + 8


WHOLE = encode_batch(batch_plan(0, batch_rows([Place(9), Place(300, 1)]), 1, 2))


@pytest.mark.parametrize(
    "raw", [b"", WHOLE[:-1], WHOLE + b"\0", WHOLE[:-1] + b"\xff", b"\xff" * 10 + b"\1"]
)
def test_what_is_no_batch_is_refused(raw):
    with pytest.raises(RunFailed, match="what rank 0 sent is not a batch of a plan"):
        decode_batch(raw)


def test_places_that_suit_rank_0_suit_workers_that_know_no_rows_without_a_place():
    """Rows 1 to 4 of 6 are empty, and workers hold the last first, since it runs first."""
    places = [Place(64, 0, 1, 1, 1), *[Place(0)] * 4, Place(64, 1, 1, 1, 0)]
    batch = batch_plan(0, batch_rows(places), 2, 1)
    header = plan_header(tiny_model(), 1, 2, 1)
    promised = (*header.invariants, "reorder")
    header = header.model_copy(update={"invariants": promised})
    found = decode_batch(encode_batch(batch))
    change = Change(places=places_of(found.sequences))
    assert checked(header, found, change, "rank 0").batch.num_microbatches == 2
