import numpy as np
import pytest

from hydraplan.config import load_model
from hydraplan.flops import batch_flops


def test_flops_of_llama_3_8b_are_six_a_weight_and_token_and_the_exact_pairs() -> None:
    model = load_model("llama-8b")
    weights = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128_256
    found = batch_flops(model, np.array([1, 4]))
    assert found.linear == 6.0 * weights * 5
    assert found.attention == 12.0 * (1 + 10) * 4096 * 32
    assert found.total == found.linear + found.attention


def test_packing_does_not_change_the_work_but_length_does() -> None:
    model = load_model("tiny")
    short, long = batch_flops(model, np.full(8, 1000)), batch_flops(model, np.array([8000]))
    assert short.linear == long.linear
    assert long.attention / short.attention == pytest.approx(8, rel=1e-3)
