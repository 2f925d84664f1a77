import numpy as np
import pytest

from hydraplan.planner.figures import batch_figures
from hydraplan.planner.placement.strategies import STRATEGIES
from tests.planner.cases import long_tailed, options, request_for


@pytest.mark.parametrize("slow_lanes", [[5], [0, 9, 17], [31]])
def test_knowing_slow_ranks_beats_not_knowing_them(slow_lanes: list[int]) -> None:
    """The same batch planned with and without the speeds, both run on the slow pool."""
    length = long_tailed(400, 7, longest=8000)
    speed = np.ones(32)
    speed[slow_lanes] = 0.7
    slow = request_for(length, ranks=32, pp=2, rank_speed=tuple(speed.tolist()))
    blind = request_for(length, ranks=32, pp=2)
    aware = STRATEGIES["hydra"].place(slow)
    unaware = STRATEGIES["hydra"].place(blind)
    schedule = slow.schedule(2, unaware.num_microbatches)
    figures, _ = batch_figures(
        slow.cost, unaware.sequences, unaware.num_microbatches, schedule, options(), float("nan")
    )
    assert aware.iteration_s < 0.97 * figures["iteration_s"]


def test_slow_lanes_carry_less() -> None:
    length = long_tailed(400, 8, longest=4000)
    speed = np.ones(16)
    speed[3] = 0.5
    request = request_for(length, ranks=16, pp=1, rank_speed=tuple(speed.tolist()))
    found = STRATEGIES["hydra"].place(request)
    s = found.sequences
    work = np.zeros(16)
    for first, degree, load in zip(s.first_rank, s.degree, s.predicted_s, strict=True):
        work[first : first + degree] += load
    assert work[3] < 0.65 * np.delete(work, 3).mean()


def test_all_equal_speeds_change_nothing() -> None:
    length = long_tailed(100, 9)
    plain = STRATEGIES["hydra"].place(request_for(length, ranks=8, pp=2))
    same = STRATEGIES["hydra"].place(request_for(length, ranks=8, pp=2, rank_speed=(1.0,) * 8))
    assert plain.iteration_s == same.iteration_s
    assert plain.sequences.first_rank.tolist() == same.sequences.first_rank.tolist()


@pytest.mark.parametrize("speed", [0.01, 0.5])
def test_a_pool_that_is_slow_throughout_is_planned_as_a_nominal_one(speed: float) -> None:
    length = long_tailed(256, 1)
    plain = request_for(length, ranks=16, pp=4, max_tokens_per_rank=16384)
    slow = request_for(length, ranks=16, pp=4, max_tokens_per_rank=16384, rank_speed=(speed,) * 16)
    assert slow.window == plain.window
    one, other = (STRATEGIES["hydra"].place(request) for request in (plain, slow))
    assert other.num_microbatches == one.num_microbatches
    assert other.slot_imbalance == pytest.approx(one.slot_imbalance, abs=0.02)
    assert other.search.load_target_s == pytest.approx(one.search.load_target_s / speed)
