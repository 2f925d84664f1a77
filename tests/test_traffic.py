import numpy as np
import pytest

from hydraplan.traffic import boundary_s, grad_sync_s, sent_bytes
from tests.builders import Place, placed_sequences
from tests.planner.cases import cost_model, with_pods


@pytest.mark.parametrize(("u", "r"), [(1, 2), (2, 1), (2, 2), (8, 2), (4, 4), (16, 1)])
def test_bytes_sent_follow_the_closed_form(u: int, r: int) -> None:
    cost = cost_model(ranks=16)
    length, heads, kv, dim, b, accumulator = 4096, 32, max(8, u), 128, 2, 4
    placed = placed_sequences([Place(length, 0, u, r)])
    t = length / (u * r)
    inner = b * t * dim * (u - 1) / u * (2 * heads + 2 * kv)
    forward = inner + b * 2 * t * dim * kv * (r - 1)
    backward = inner + 2 * t * dim * kv * (b * (r - 1) + (accumulator * r if r > 1 else 0))
    assert sent_bytes(cost, placed)[0] == pytest.approx(32 * u * r * (forward + backward))


def test_gradient_sync_is_a_ring_all_reduce_of_the_stage() -> None:
    cost = cost_model(ranks=128, pp=4)
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    moved = 2 * 127 / 128 * 8 * layer * 4
    assert grad_sync_s(cost)[1] == pytest.approx(moved / 45e9 + 254 * 25e-6)
    assert grad_sync_s(cost)[0] == grad_sync_s(cost)[3] > grad_sync_s(cost)[1]
    assert grad_sync_s(cost_model(ranks=1, pp=2)).tolist() == [0, 0]


def test_gradients_and_activations_pay_the_tier_that_holds_them_all() -> None:
    rows = np.array([1000.0])
    for ranks, pp, rate, latency_s in (
        (4, 2, 300e9, 15e-6),
        (8, 4, 45e9, 25e-6),
        (32, 2, 5e9, 50e-6),
    ):
        wanted = latency_s + 1000 * 4096 * 2 / rate
        assert boundary_s(with_pods(ranks, pp), rows)[0] == pytest.approx(wanted)
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    for ranks, rate, latency_s in ((8, 300e9, 15e-6), (32, 45e9, 25e-6), (64, 5e9, 50e-6)):
        moved = 2 * (ranks - 1) / ranks * 8 * layer * 4
        wanted = moved / rate + 2 * (ranks - 1) * latency_s
        assert grad_sync_s(with_pods(ranks, 4))[1] == pytest.approx(wanted)
