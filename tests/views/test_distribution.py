"""Figures of a length distribution, against known files and beyond 32 bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.views.distribution import summarize

K = 1024


def test_tail_shares_of_a_small_file_are_right():
    found = summarize(np.array([0, 8 * K, 8 * K + 1, 300 * K], np.int64))
    assert (found.num_sequences, found.num_tokens, found.num_empty) == (4, 316 * K + 1, 1)
    assert [t.num_sequences for t in found.tail] == [2, 1, 1, 1]
    assert found.tail[0].sequences_share == 0.5
    assert found.tail[3].tokens_share == pytest.approx(300 / 316, rel=1e-5)
    assert found.tail[1].squares_share == pytest.approx(90000 / 90128, rel=1e-5)
    assert found.percentiles["max"] == 300 * K
    assert found.percentiles["p50"] == 8 * K


def test_sums_pass_32_and_64_bits_without_loss():
    million = np.full(20_000, 10**6, np.int64)
    assert summarize(million).num_tokens == 20_000_000_000
    assert summarize(million).tail[3].squares_share == 1.0
    huge = summarize(np.array([2**40, 2**41], np.int64))
    assert huge.tail[0].squares_share == 1.0


def test_all_zero_lengths_have_shares_of_zero():
    found = summarize(np.zeros(3, np.int64))
    assert (found.num_empty, found.num_tokens, found.tail[0].tokens_share) == (3, 0, 0.0)


@given(st.lists(st.integers(0, 400 * K), min_size=1, max_size=60))
def test_percentiles_are_rows_of_the_file_and_equal_numpy_lower(rows):
    array = np.array(rows, np.int64)
    found = summarize(array).percentiles
    for name, value in found.items():
        q = 100.0 if name == "max" else float(name[1:])
        assert value in rows
        assert value == np.percentile(array, q, method="lower")
