import re
from dataclasses import replace

import numpy as np
import pytest

from hydraplan.model import IntArray
from hydraplan.planner.placement.cost_table import cost_table
from hydraplan.planner.placement.window import MOST, microbatch_window
from hydraplan.planner.placement.window_advice import window_advice
from tests.planner.cases import cost_model, long_tailed


def advice(length: IntArray, ranks: int, cap: int, tp: int = 1) -> str:
    cost = cost_model(ranks, pp=2, tp=tp)
    table = cost_table(cost, length, cap)
    window = microbatch_window(table, length, ranks, cap)
    return window_advice(cost, table, length, cap, window)


def is_open(length: IntArray, ranks: int, cap: int, tp: int = 1) -> bool:
    return advice(length, ranks, cap, tp) == ""


@pytest.mark.parametrize("seed", range(8))
def test_what_it_says_opens_the_window(seed: int) -> None:
    length = np.append(long_tailed(200, seed, longest=9000), [60_000, 50_000])
    ranks, cap = 16, 5000
    text = advice(length, ranks, cap)
    assert "asks for at least" in text
    found = re.search(r"a cap of (\d+) tokens", text)
    assert found
    enough = int(found[1])
    assert enough > cap
    assert is_open(length, ranks, enough)
    asked = r"--tp (\d+) on the same devices \(--ranks (\d+) --max-tokens-per-rank (\d+)\)"
    for tp, fewer, larger in re.findall(asked, text):
        assert int(tp) * int(fewer) == ranks
        assert is_open(length, int(fewer), int(larger), int(tp))


def test_an_open_window_needs_no_advice() -> None:
    assert is_open(np.full(64, 3000), 4, 8192)


def test_sequences_of_the_length_it_names_leave_the_window_open() -> None:
    length = np.append(long_tailed(100, 1, longest=4000), [60_000, 30_000])
    text = advice(length, 8, 8000)
    found = re.search(r"no sequence costlier than one of (\d+) tokens", text)
    assert found
    cost = cost_model(8, pp=2)
    table = cost_table(cost, length, 8000)
    least_s = table.load_s.min(axis=1)[table.bucket]
    allowed_s = float(least_s[length == int(found[1])][0])
    window = microbatch_window(table, length, 8, 8000)
    lighter = replace(table, floor_s=allowed_s)
    assert window.is_empty
    assert not microbatch_window(lighter, length, 8, 8000).is_empty
    next_one = replace(table, floor_s=float(least_s[least_s > allowed_s].min()))
    assert microbatch_window(next_one, length, 8, 8000).is_empty


def test_where_nothing_opens_the_window_it_says_so_and_why() -> None:
    text = advice(np.array([200, 300]), 8, 4096, tp=8)
    assert re.fullmatch(
        r"the longest sequence, on as many ranks as lighten it, loads each of them \d+\.\d+ times"
        r" an even share of the batch at its least cost, so the window holds no number of"
        r" microbatches; nothing would open the window: no cap up to \d+ tokens, no larger --tp on"
        r" these devices, no cutting, since even the shortest sequence \(200 tokens\) is too"
        r" costly",
        text,
    )


@pytest.mark.parametrize("seed", range(20))
def test_advice_never_ends_without_saying_anything(seed: int) -> None:
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 30_000, rng.integers(1, 12))
    text = advice(length, 16, 4096)
    assert not text.endswith(": ")
    assert "at most 0" not in text


def test_costs_of_astronomic_seconds_end_in_words() -> None:
    length = np.append(np.full(64, 600), 9000)
    nominal = cost_model(4, pp=2)
    slow = nominal.fit.attention_forward.model_copy(update={"flops_per_s": 1e-6})
    fit = nominal.fit.model_copy(update={"attention_forward": slow, "attention_backward": slow})
    cost = replace(nominal, fit=fit)
    table = cost_table(cost, length, 4096)
    window = microbatch_window(table, length, 4, 4096)
    assert window.low == MOST  # the load of short tokens asks for 1e20 times the fewest
    assert "no cap up to 47400 tokens" in window_advice(cost, table, length, 4096, window)
