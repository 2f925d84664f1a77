import numpy as np
import pytest

from hydraplan.activations import Shares
from hydraplan.errors import Infeasible
from hydraplan.metrics import peak_live_tokens
from hydraplan.model import Op
from hydraplan.planner.pipeline.memory import Memory, even_memory
from hydraplan.planner.pipeline.schedules import SCHEDULES


def test_peaks_are_those_of_forwards_less_what_gradients_freed() -> None:
    memory = Memory(10.0, np.array([4.0, 6.0]), 0.25)
    ops = (Op("F", 0), Op("F", 1), Op("B", 0), Op("W", 0), Op("BW", 1))
    assert [memory.change(op, 1) for op in ops] == [4, 6, -1, -3, -6]
    assert memory.change(Op("F", 1, 1), 2) == 3
    assert memory.peak(ops, 1) == 10
    assert memory.peak(ops, 2) == 5
    assert memory.peak((), 1) == 0


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"dualpipe"}))
def test_peaks_agree_with_the_figure(name: str) -> None:
    chunks = SCHEDULES[name].chunks or 2
    schedule, rows = SCHEDULES[name].make(3, 7, chunks), np.arange(3, 10)[None]
    memory = Memory(np.inf, rows[0].astype(float), 0.3)
    peak = max(memory.peak(ops, chunks) for ops in schedule)
    assert peak == pytest.approx(peak_live_tokens(schedule, rows, Shares(1.0, 0.7)), rel=1e-12)


def test_what_fits_and_what_does_not() -> None:
    memory = Memory(7.0, np.array([3.0, 4.0, 1.0, 2.0]))
    assert memory.whole() == 2
    assert memory.fits(7.0)
    assert not memory.fits(7.1)
    memory.check()
    assert even_memory(2.5, 9).whole() == 2
    with pytest.raises(Infeasible, match="microbatch 2 alone holds activations of 8, a stage"):
        Memory(7.0, np.array([3.0, 4.0, 8.0])).check()
