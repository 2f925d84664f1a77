"""Named mixes: the same text gives the same rows, and they are distributed as the source says."""

import numpy as np
import pytest

from hydraplan.errors import InputError
from hydraplan.files.lengths_sources import read_sources
from hydraplan.files.lengths_synthetic import MIXES, draw


@pytest.mark.parametrize("text", ["wikipedia", "chat-long", "lognormal(median=2000,sigma=1.4)"])
def test_a_mix_is_the_same_for_a_seed_and_another_for_another(text):
    name, found, source = draw(f"synthetic:{text}")
    assert draw(name) == (name, pytest.approx(found), source)
    other = draw(name.replace("seed=0", "seed=1"))[1]
    assert len(other) == len(found) == 10_000
    assert not np.array_equal(other, found)
    assert min(found.min(), other.min()) >= 1


def test_the_wikipedia_mix_has_the_percentiles_of_the_sample():
    found = draw("synthetic:wikipedia(rows=400000)")[1]
    right = [39, 67, 145, 343, 854, 2088, 3684, 10665]
    assert np.percentile(found, [1, 5, 25, 50, 75, 90, 95, 99]) == pytest.approx(right, rel=0.03)
    assert found.max() <= 182_012
    assert found.mean() == pytest.approx(99_334_703 / 100_000, rel=0.03)


def test_the_lognormal_mix_has_its_median_and_spread_and_is_cut():
    found = draw("synthetic:lognormal(median=2000,sigma=1.4,max=262144,rows=400000,seed=3)")[1]
    low, median, high = np.percentile(found, [15.866, 50, 84.134])
    assert median == pytest.approx(2000, rel=0.02)
    assert np.log(high / low) / 2 == pytest.approx(1.4, rel=0.02)
    cut = draw("synthetic:lognormal(median=2000,sigma=1.4,max=3000)")[1]
    assert cut.max() == 3000
    assert (cut == 3000).mean() == pytest.approx(0.386, abs=0.02)
    assert set(draw("synthetic:lognormal(median=7.4,sigma=0)")[1]) == {7}


def test_the_chat_mix_has_the_means_of_its_two_parts():
    found = draw("synthetic:chat-long(rows=4000000,max=1000000000)")[1]
    assert found.mean() == pytest.approx(0.9989 * 1000 + 0.0011 * 37_000, rel=0.01)
    assert draw("synthetic:chat-long(rows=100000)")[1].max() <= 262_144


def test_a_mix_is_a_source_like_any_other(tmp_path):
    (tmp_path / "a.txt").write_text("5\n")
    mix = "synthetic:wikipedia(rows=3)"
    found = read_sources([mix])
    assert found.name == "synthetic:wikipedia(rows=3,seed=0)"
    assert found.source == MIXES["wikipedia"].source
    both = read_sources([str(tmp_path / "a.txt"), mix])
    assert both.length_tokens.tolist() == [5, *found.length_tokens.tolist()]
    assert both.source == found.source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("synthetic:", "is not spelt synthetic:NAME"),
        ("synthetic:wikipedia(", "is not spelt synthetic:NAME"),
        ("synthetic:wikipedia(rows=1)x", "is not spelt synthetic:NAME"),
        ("synthetic:github", "unknown mix synthetic:github"),
        ("synthetic:wikipedia(median=3)", "takes no median"),
        ("synthetic:wikipedia(rows=1,rows=2)", "has rows twice"),
        ("synthetic:wikipedia(rows=0)", "rows 0 is out of range, 1 to 10000000"),
        ("synthetic:wikipedia(rows=1.5)", "rows 1.5 is not a whole number"),
        ("synthetic:wikipedia(rows)", "rows  is not a whole number"),
        ("synthetic:wikipedia(seed=-1)", "seed -1 is not a whole number"),
        ("synthetic:lognormal", "needs median"),
        ("synthetic:lognormal(median=nan,sigma=1)", "median nan is not a number"),
        ("synthetic:lognormal(median=5,sigma=1e9)", "sigma 1e9 is not a number"),
        ("synthetic:lognormal(median=5,sigma=11)", "sigma 11 is out of range, 0 to 10"),
    ],
)
def test_what_no_mix_takes_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        read_sources([text])


def test_a_mix_has_neither_documents_nor_texts(tmp_path):
    with pytest.raises(InputError, match="knows no documents"):
        read_sources(["synthetic:wikipedia"], "documents")
    with pytest.raises(InputError, match="--tokenizer is for texts"):
        read_sources(["synthetic:wikipedia"], tokenizer=tmp_path)
