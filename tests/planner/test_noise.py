import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.planner.pipeline.noise import (
    SOURCES,
    Draws,
    Noise,
    Shape,
    draw,
    parse_noise,
)

EVERYTHING = (
    "jitter=0.3,straggler=1.4,moving=1.4,transient=2,heavytail=0.3,link=0.2,preempt=0.3,window=0.5"
)
SHAPE = Shape(stages=3, chunks=2, microbatches=5, lanes=4, node_ranks=2)
NOMINAL_S = 10.0


def drawn(noise: Noise, trials: range = range(3), step: int = 0, seed: int = 7) -> Draws:
    return draw(noise, SHAPE, NOMINAL_S, trials, seed, step)


def spells_of(draws: Draws, source: str, trial: int = 0) -> list[tuple[int, int, float, float]]:
    """(stage, lane, begin, end) of the spells of a source in a trial."""
    spells, width = draws.spells, draws.shape.lanes * draws.trials
    found = []
    for i, rank in enumerate(draws.spell_rank().tolist()):
        stage, lane = divmod(rank, width)
        if spells.source[i] == SOURCES.index(source) and lane // draws.shape.lanes == trial:
            lane %= draws.shape.lanes
            found.append((stage, lane, float(spells.begin_s[i]), float(spells.end_s[i])))
    return found


def same(one: Draws, other: Draws) -> bool:
    """Whether both hold the same numbers."""
    pairs = [(one.message, other.message), *zip(one.spells, other.spells, strict=True)]
    pairs += [(one.op.get(name), other.op.get(name)) for name in SOURCES]
    pairs.append((one.sync, other.sync))
    return all((a is None) == (b is None) and np.array_equal(a, b) for a, b in pairs)  # type: ignore[arg-type]


def test_a_list_is_read_and_written_the_same() -> None:
    noise = parse_noise(EVERYTHING)
    assert (noise.jitter, noise.preempt, noise.window) == (0.3, 0.3, 0.5)
    assert noise.active == SOURCES
    assert str(noise) == EVERYTHING
    assert parse_noise(str(noise)) == noise
    assert parse_noise(" jitter = 0.3 , window=0.5 ") == Noise(jitter=0.3, window=0.5)


def test_none_and_values_that_change_nothing_are_no_noise() -> None:
    assert parse_noise("none") == Noise() == parse_noise("jitter=0,straggler=1,window=1")
    assert str(Noise()) == "none"
    assert Noise().active == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no source of noise"),
        ("none,jitter=", "none stands among sources"),
        ("jitter=", "jitter has no value"),
        ("jitter", "jitter has no value"),
        ("jiter=0.3", "'jiter' is no source of noise"),
        ("jitter=0.3,", "'' is no source of noise"),
        ("jitter=x", "jitter has 'x', no number"),
        ("straggler=1_4", "straggler has '1_4', no number"),
        ("straggler=\u0662", "no number"),
        ("jitter=0.1,jitter=0.2", "names jitter twice"),
        ("jitter=-0.1", "noise jitter=-0.1 is not from 0 to 3"),
        ("jitter=nan", "noise jitter=nan is not from 0 to 3"),
        ("straggler=0.9", "noise straggler=0.9 is not from 1 to 100"),
        ("transient=inf", "noise transient=inf is not from 1 to 100"),
        ("preempt=1.5", "noise preempt=1.5 is not from 0 to 1"),
        ("window=0", "noise window=0 is not from 0.01 to 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_value_and_limit(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("'", ".")) as caught:
        parse_noise(text)
    assert caught.value.hint


def test_the_hint_on_a_value_tells_its_limits() -> None:
    with pytest.raises(InputError) as caught:
        parse_noise("straggler=")
    assert caught.value.hint == "straggler=NUMBER, from 1 to 100"


@pytest.mark.parametrize("source", SOURCES)
def test_leaving_a_source_out_leaves_every_other_draw_as_it_was(source: str) -> None:
    noise = parse_noise(EVERYTHING)
    assert same(drawn(noise).without(source), drawn(noise.without(source)))
    assert not same(drawn(noise).without(source), drawn(noise))


def test_a_trial_draws_the_same_whoever_stands_beside_it() -> None:
    noise = parse_noise(EVERYTHING)
    many, one = drawn(noise, range(5)), drawn(noise, range(3, 4))
    lanes = slice(3 * SHAPE.lanes, 4 * SHAPE.lanes)
    for name, factor in one.op.items():
        assert (factor == many.op[name][..., lanes]).all()
    assert one.message is not None
    assert many.message is not None
    assert (one.message == many.message[..., lanes]).all()
    assert (one.sync[:, 0] == many.sync[:, 3]).all()
    for source in SOURCES:
        assert spells_of(one, source) == spells_of(many, source, 3)


def test_seed_trial_and_step_give_other_draws_but_a_straggler_stays() -> None:
    noise = Noise(jitter=0.3, straggler=2.0, moving=2.0)
    first = drawn(noise)
    assert same(first, drawn(noise))
    later, other = drawn(noise, step=1), drawn(noise, seed=8)
    for changed in (later, other):
        assert not np.isin(changed.op["jitter"], first.op["jitter"]).any()
    assert [spells_of(first, "straggler", t) for t in range(3)] == [
        spells_of(later, "straggler", t) for t in range(3)
    ]
    assert spells_of(first, "moving") != spells_of(later, "moving")
    found = {tuple(spells_of(drawn(noise, range(40)), "straggler", t)) for t in range(40)}
    assert len(found) > 5


@pytest.mark.parametrize("source", ["jitter", "heavytail", "link"])
@pytest.mark.parametrize("spread", [0.1, 0.5])
def test_factors_have_mean_one_and_the_spread_that_was_asked_for(
    source: str, spread: float
) -> None:
    shape = Shape(8, 2, 32, 64)
    draws = draw(Noise(**{source: spread}), shape, NOMINAL_S, range(4), 0)
    factor = draws.message if source == "link" else draws.op[source]
    assert factor is not None
    error = spread / math.sqrt(factor.size)
    assert abs(factor.mean() - 1) < 5 * error
    assert factor.std() == pytest.approx(spread, rel=0.05)
    assert factor.min() > 0


def test_a_heavy_tail_is_heavier_than_jitter_of_the_same_spread() -> None:
    shape = Shape(8, 2, 32, 64)
    draws = draw(Noise(jitter=0.5, heavytail=0.5), shape, NOMINAL_S, range(4), 0)
    worst = {name: factor.max() for name, factor in draws.op.items()}
    assert worst["heavytail"] > 2 * worst["jitter"]
    index = 1 + math.sqrt(5)  # of spread 0.5
    tail = draws.op["heavytail"] / (1 - 1 / index)
    for factor in (1.5, 2.0, 3.0):
        assert (tail > factor).mean() == pytest.approx(factor**-index, rel=0.1)


def test_the_straggler_is_one_rank_for_ever() -> None:
    ((_, _, begin_s, end_s),) = spells_of(drawn(Noise(straggler=4.0)), "straggler")
    assert (begin_s, end_s) == (0, math.inf)
    assert (drawn(Noise(straggler=4.0)).spells.speed == 0.25).all()


def test_the_moving_straggler_is_somewhere_at_any_time() -> None:
    found = sorted(spells_of(drawn(Noise(moving=2.0)), "moving"), key=lambda spell: spell[2])
    assert [begin_s for _, _, begin_s, _ in found] == [i * 1.25 for i in range(8)]
    assert [end_s for _, _, _, end_s in found] == [*(i * 1.25 for i in range(1, 8)), math.inf]
    assert len({(stage, lane) for stage, lane, _, _ in found}) > 3


def test_an_eighth_of_the_ranks_has_a_short_spell() -> None:
    draws = draw(Noise(transient=2.0), Shape(8, 1, 1, 128), NOMINAL_S, range(8), 0)
    spells = draws.spells
    assert len(spells.speed) == pytest.approx(8 * 128 * 8 / 8, rel=0.1)
    assert (spells.end_s - spells.begin_s).mean() == pytest.approx(1.0, rel=0.1)
    assert spells.begin_s.min() >= 0
    assert spells.begin_s.max() < NOMINAL_S


def test_a_node_is_preempted_as_a_whole_and_more_often_means_more_of_them() -> None:
    few, many = drawn(Noise(preempt=0.3), range(20)), drawn(Noise(preempt=0.7), range(20))
    total = 0
    for trial in range(20):
        hit = spells_of(few, "preempt", trial)
        assert set(hit) <= set(spells_of(many, "preempt", trial))
        for stage, lane, begin_s, end_s in hit:
            assert (stage, lane ^ 1, begin_s, end_s) in hit
            assert end_s == begin_s + NOMINAL_S
        total += len(hit)
    assert total / (20 * 12) == pytest.approx(0.3, abs=0.1)
    assert (few.spells.speed == 0).all()


@settings(max_examples=20)
@given(st.integers(0, 2**63 - 1))
def test_the_window_holds_one_stage_for_a_quarter_of_the_iteration(seed: int) -> None:
    found = spells_of(drawn(Noise(window=0.5), range(1), seed=seed), "window")
    assert len({stage for stage, *_ in found}) == 1
    assert sorted(lane for _, lane, *_ in found) == [0, 1, 2, 3]
    assert len({(begin_s, end_s) for *_, begin_s, end_s in found}) == 1
    assert 0 <= found[0][2] < 7.5
    assert found[0][3] - found[0][2] == pytest.approx(2.5)
