import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.kernels.ring import MAX_RING_SIZE, TAG_LIMIT, check_ring, tag

messages = st.tuples(st.integers(0, 3), st.integers(0, 255), st.integers(0, MAX_RING_SIZE - 1))


@given(messages, messages)
def test_different_messages_have_different_tags(one, other):
    assert (tag(*one) == tag(*other)) == (one == other)


@given(st.integers(0, 3), st.integers(0, 10**9), st.integers(0, MAX_RING_SIZE - 1))
def test_tags_stay_below_those_of_the_pipeline(carries, order, hop):
    assert 0 <= tag(carries, order, hop) < TAG_LIMIT == 2**20


def test_a_ring_too_long_for_its_tags_is_refused():
    check_ring(MAX_RING_SIZE)
    with pytest.raises(InputError, match="ring_size 2048 exceeds 1024"):
        check_ring(2 * MAX_RING_SIZE)
