"""One schedule by itself gives what papers say of it, DualPipe's stages of two models included."""

import numpy as np
import pytest

from hydraplan.errors import Infeasible
from hydraplan.model import Op
from hydraplan.planner.pipeline.alone import StageTimes, run_alone, slot_times_alone
from hydraplan.planner.pipeline.memory import even_memory
from hydraplan.planner.pipeline.schedules import SCHEDULES


def figures(name, stages, count, times, chunks=None):
    pipeline = SCHEDULES[name]
    chunks = pipeline.chunks or chunks
    slots = slot_times_alone(times, pipeline.route, stages, chunks, count)
    schedule = pipeline.make(stages, count, chunks)
    return run_alone(slots, schedule, pipeline.route, even_memory(np.inf, count)).figures


def test_1f1b_has_the_closed_forms_of_its_span_idle_time_and_memory():
    assert figures("1f1b", 4, 8, StageTimes(1.0, 1.25, 0.75)) == {
        "bubble_rate": 9 / 33,
        "span": 33.0,
        "idle": 9.0,
        "makespan": 33.0,
        "makespan_idle_max": 9.0,
        "peak_memory": 4.0,
    }


def test_the_time_of_a_stage_is_shared_out_over_its_chunks_but_not_over_two_models():
    interleaved = figures("interleaved", 4, 8, StageTimes(2.0, 2.0, 2.0), 2)
    assert interleaved["idle"] == 9.0
    assert interleaved["span"] == 8 * 6 + 9.0
    dualpipe = figures("dualpipe", 4, 8, StageTimes())
    assert dualpipe["makespan"] - dualpipe["makespan_idle_max"] == 8 * 3.0
    assert dualpipe["peak_memory"] == 5.0


def test_what_adding_up_leaves_is_no_idle_time():
    zb_v = figures("zb-v", 4, 8, StageTimes(0.2, 0.2, 0.2))
    assert zb_v["idle"] == zb_v["bubble_rate"] == 0.0
    alone = figures("1f1b", 1, 7, StageTimes(0.1, 0.7, 0.3))
    assert alone["idle"] == alone["makespan_idle_max"] == 0.0


def test_an_order_that_waits_for_itself_is_refused():
    stuck = ((Op("F", 0), Op("BW", 0)), (Op("BW", 0), Op("F", 0)))
    slots = slot_times_alone(StageTimes(), "loop", 2, 1, 1)
    with pytest.raises(Infeasible, match="wait for each other in a circle, stage 0 cannot"):
        run_alone(slots, stuck, "loop", even_memory(1.0, 1))
