"""Who gives what to whom, what it buys, and that it buys what theory says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.planner.policy.expected_max import (
    expected_max,
    expected_max_of_two,
    paired_expected_max,
    paired_max_of_two,
)
from hydraplan.planner.policy.messages import Sent, head_messages, row_messages
from hydraplan.planner.policy.pairing import Pool, pair_up
from tests.planner.event_run import pair_ends


def pool(
    ranks,
    units=32,
    group=1,
    before=0.0,
    movable=1.0,
    after=0.0,
    unit_s=0.0,
    latency_s=0.0,
    **others,
):
    """Equal ranks; messages of `unit_s` a unit and way."""
    even = np.ones(ranks)
    sent = Sent(unit_s * even, 0.0 * even, latency_s)
    parts = (before * even, movable * even, after * even)
    return Pool(*parts, np.full(ranks, units), group, sent, sent, **others)


def factors(ranks, sigma, trials, seed):
    """Log-normal factors of mean 1, every draw with its mirror image."""
    z = np.random.default_rng(seed).normal(size=(trials // 2, ranks))
    return np.exp(sigma * np.concatenate([z, -z]) - sigma**2 / 2)


def paired_mean(ranks, sigma, movable, trials):
    """Mean end of a pool that `pair_up` paired; that of the unpaired one is the control variate."""
    draws = factors(ranks, sigma, trials, seed=4)
    work = pool(ranks, units=4096, before=1 - movable, movable=movable)
    after = np.array([pair_up(work, draw, margin=0.0).after_s.max() for draw in draws])
    before = draws.max(axis=1)
    slope = np.cov(after, before)[0, 1] / before.var()
    return after.mean() - slope * (before.mean() - expected_max(ranks, sigma))


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.2, 0.4])
def test_two_ranks_end_as_the_closed_forms_say(sigma):
    draws = factors(2, sigma, 400_000, seed=1)
    assert draws.max(axis=1).mean() == pytest.approx(expected_max_of_two(sigma), abs=0.002)
    after_s = paired_mean(2, sigma, 1.0, 4_000)
    assert after_s == pytest.approx(paired_max_of_two(sigma), abs=0.002)


def test_closed_forms_have_their_known_values():
    assert expected_max_of_two(0.2) == pytest.approx(1.11246, abs=5e-6)
    assert paired_max_of_two(0.2) == pytest.approx(0.98039, abs=5e-6)


@pytest.mark.parametrize("sigma", [0.05, 0.2, 0.4])
def test_quadrature_agrees_with_the_closed_forms(sigma):
    assert expected_max(2, sigma) == pytest.approx(expected_max_of_two(sigma), abs=1e-6)
    assert paired_expected_max(2, sigma) == pytest.approx(paired_max_of_two(sigma), abs=2e-4)
    assert expected_max(1, sigma) == pytest.approx(1.0, abs=1e-6)
    assert paired_expected_max(1, sigma) == pytest.approx(1.0, abs=2e-4)


@pytest.mark.parametrize(
    ("ranks", "sigma", "movable", "trials"),
    [(8, 0.1, 1.0, 1_000), (8, 0.4, 1.0, 2_000), (8, 0.4, 0.25, 2_000), (7, 0.2, 1.0, 1_000),
     (64, 0.2, 1.0, 200), (64, 0.4, 0.5, 200)],
)  # fmt: skip
def test_more_ranks_end_as_quadrature_says(ranks, sigma, movable, trials):
    many = factors(ranks, sigma, 100_000, seed=2)
    assert many.max(axis=1).mean() == pytest.approx(expected_max(ranks, sigma), rel=0.005)
    after = paired_mean(ranks, sigma, movable, trials)
    assert after == pytest.approx(paired_expected_max(ranks, sigma, movable), rel=0.005)


def test_the_ends_of_the_pool_pair_first_and_the_first_pair_without_gain_is_the_last_tried():
    """By hand, 32 units of 1/32 s: 2.0 and 1.0 share at 21.33 units, 1.5 and 1.2 at 17.8."""
    found = pair_up(pool(6), np.array([1.0, 1.3, 2.0, 1.5, 1.2, 1.3]), margin=0.05)
    assert [(move.giver, move.taker, move.units) for move in found.moves] == [(2, 0, 10), (3, 4, 3)]
    assert found.before_s.tolist() == [1.0, 1.3, 2.0, 1.5, 1.2, 1.3]
    assert found.after_s == pytest.approx([1.3125, 1.3, 1.375, 1.359375, 1.3125, 1.3])


@pytest.mark.parametrize("gives", [0, 1])
def test_no_pair_is_tried_after_one_without_gain(gives):
    """The slowest may give nothing, or less than the margin asks; the next pair would gain."""
    slow, most = np.array([2.0, 1.8, 1.0, 1.0]), np.array([gives, 32, 32, 32])
    assert pair_up(pool(4, most_units=most), slow).moves == ()
    assert len(pair_up(pool(4), slow).moves) == 2


def test_equal_ranks_exchange_nothing():
    found = pair_up(pool(4), np.ones(4), margin=0.0)
    assert found.moves == ()
    assert (found.after_s == 1).all()


def test_whole_groups_go_first_and_heads_only_where_no_group_can():
    slow = np.array([1.5, 1.0])
    assert pair_up(pool(2, 32, group=4), slow).moves[0].units == 4
    assert pair_up(pool(2, 32, group=16), slow).moves[0].units == 6
    assert pair_up(pool(2, 32, group=16, whole_groups=True), slow).moves == ()


def test_the_taker_takes_no_more_than_it_may():
    most = np.array([3, 32])
    assert pair_up(pool(2, most_units=most), np.array([2.0, 1.0])).moves[0].units == 3
    assert pair_up(pool(2, most_units=np.array([0, 32])), np.array([2.0, 1.0])).moves == ()


def test_a_transfer_that_cannot_hide_stays_away():
    slow = np.array([1.5, 1.0])
    assert pair_up(pool(2, latency_s=0.2), slow, margin=0.0).moves[0].units == 3
    assert pair_up(pool(2, latency_s=0.5), slow, margin=0.0).moves == ()


def test_a_gain_within_the_margin_is_left():
    slow = np.array([1.1, 1.0])
    assert pair_up(pool(2), slow, margin=0.0).moves[0].gain == pytest.approx(1 / 32)
    assert pair_up(pool(2), slow, margin=0.04).moves == ()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_pair_moves_the_best_hidden_number_and_ends_as_its_events_do(data):
    # sums of binary fractions are exact, so a limit met exactly is no matter of rounding
    draw, eighth = data.draw, st.integers(0, 32).map(lambda n: n / 8)
    both = st.lists(eighth, min_size=2, max_size=2).map(np.array)
    units, group = draw(st.sampled_from([(8, 1), (8, 2), (16, 4)]))
    layers = draw(st.integers(1, 3))
    sent = [Sent(draw(both) / 16, draw(both) / 16, draw(eighth) / 8) for _ in range(2)]
    work = Pool(draw(both), draw(both), draw(both), np.full(2, units), group, *sent)
    slower = st.sampled_from([1.0, 1.25, 1.5, 2.0])
    factor = np.array(draw(st.lists(slower, min_size=2, max_size=2)))
    found = pair_up(work, factor, layers, margin=0.0)
    slow = int(np.argmax(found.before_s))
    fast = 1 - slow

    def ends(n):
        parts = np.array([work.before_s, work.movable_s, work.after_s]) * factor
        groups = -(-n // group)
        foreign_s = work.movable_s[slow] * factor[fast] * n / units
        trip = [sent[0].seconds(slow, n, groups), foreign_s, sent[1].seconds(slow, n, groups)]
        kept_s = parts[1, slow] * (units - n) / units
        alone_s = layers * (parts[0, slow] + kept_s + parts[2, slow])
        giver_s, taker_s = pair_ends(parts[:, slow], parts[:, fast], kept_s, trip, layers)
        return giver_s, taker_s, giver_s <= alone_s + 1e-9

    def best(numbers):
        tried = [max(ends(n)[:2]) for n in numbers if ends(n)[2]]
        return min(tried, default=np.inf)

    before_s = float(found.before_s.max())
    wanted = best(range(group, units + 1, group))
    if wanted >= before_s - 1e-9:
        wanted = best(range(1, group))
    assert found.after_s.max() == pytest.approx(min(wanted, before_s))
    assert len(found.moves) == (wanted < before_s - 1e-9)
    for move in found.moves:
        assert (move.giver, move.taker) == (slow, fast)
        assert [found.after_s[slow], found.after_s[fast]] == pytest.approx(ends(move.units)[:2])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.5, 3), min_size=1, max_size=12), st.floats(0, 0.02), st.integers(1, 4))
def test_no_rank_moves_twice_and_no_pair_ends_later(slow, unit_s, layers):
    work = pool(len(slow), 32, 4, before=0.3, movable=1.0, after=0.5, unit_s=unit_s)
    found = pair_up(work, np.array(slow), layers)
    named = [rank for move in found.moves for rank in (move.giver, move.taker)]
    assert len(named) == len(set(named))
    for move in found.moves:
        end_s = max(found.after_s[move.giver], found.after_s[move.taker])
        assert end_s < 0.95 * found.before_s[move.giver]
    still = [rank for rank in range(len(slow)) if rank not in named]
    assert (found.after_s[still] == found.before_s[still]).all()


def test_messages_are_what_heads_and_rows_send():
    """4,096 rows of 128 values of 2 bytes over 1 GB/s: 1.048576 ms a head and way."""
    out, back = head_messages(np.array([4096]), 128, 2, 1e9, 1e-5, is_backward=False)
    assert out.seconds(0, 4, 1) == pytest.approx(1e-5 + 6 * 1.048576e-3)
    assert back.seconds(0, 4, 1) == pytest.approx(1e-5 + 4 * 1.048576e-3)
    assert head_messages(np.array([4096]), 128, 2, 1e9, 1e-5, is_backward=True)[0] == back
    out, back = row_messages(3, 5120, 2, 1e9, 1e-5)
    assert out.seconds(2, 16, 1) == back.seconds(2, 16, 1) == pytest.approx(1e-5 + 16 * 1.024e-5)


def test_impossible_pools_and_factors_are_refused():
    with pytest.raises(InputError, match="not negative"):
        pool(2, movable=-1.0)
    with pytest.raises(InputError, match="one number a rank"):
        pool(2, most_units=np.array([1]))
    with pytest.raises(InputError, match="at least 1 unit"):
        pool(2, group=0)
    with pytest.raises(InputError, match="device factor"):
        pair_up(pool(2), np.array([1.0, 0.0]))
    with pytest.raises(InputError, match="margin"):
        pair_up(pool(2), np.ones(2), margin=1.0)
    with pytest.raises(InputError, match="carries nothing"):
        row_messages(1, 8, 2, 0.0, 0.0)
    with pytest.raises(InputError, match="at least 1"):
        expected_max(0, 0.1)
    with pytest.raises(InputError, match="movable share"):
        paired_expected_max(2, 0.1, 0.0)
