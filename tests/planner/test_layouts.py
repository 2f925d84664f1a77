import numpy as np
import pytest

from hydraplan.errors import InputError
from hydraplan.files.lengths import Lengths
from hydraplan.invariants import check_plan
from hydraplan.planner.figures import check_figures
from hydraplan.planner.layouts import on_layouts
from hydraplan.planner.pipeline.schedules import Layout, layouts_of
from hydraplan.planner.plan import plan, plan_batch, prepare
from tests.planner.cases import long_tailed, options, profile


@pytest.mark.slow
def test_auto_takes_the_layout_that_ends_first_and_keeps_it_for_every_batch() -> None:
    length = Lengths("t", "sequences", long_tailed(48, 3, longest=30_000))
    asked = options(batch_sequences=24, pp=2, pipeline="auto")
    header, made = plan(length, profile(), asked, None)
    first, second = made
    times_s = {}
    for layout in layouts_of("auto", None):
        one = asked.model_copy(update={"chunks": layout.chunks})
        for other, batches in on_layouts(length, profile(), one, None):
            if Layout(other.route, len(other.layers[0])) == layout:
                found = plan_batch(batches.cost, one, 0, batches[0])
                times_s[layout] = found.figures["iteration_s"]
    assert len(times_s) == 3
    assert first.figures["iteration_s"] == min(times_s.values())
    assert Layout(header.route, len(header.layers[0])) == min(times_s, key=lambda x: times_s[x])
    for batch in (first, second):
        assert check_plan(header, batch) == []
        assert check_figures(header, batch) == []


@pytest.mark.slow
def test_no_static_schedule_on_any_layout_beats_auto() -> None:
    length = Lengths("t", "sequences", long_tailed(60, 0, longest=30_000))
    taken_s = {}
    for pipeline in ("auto", "zb-v", "interleaved", "zb-h1", "1f1b"):
        asked = options(batch_sequences=60, pp=4, pipeline=pipeline, live_microbatches=5)
        _, batches = prepare(length, profile(), asked, 1)
        made = plan_batch(batches.cost, asked, 0, batches[0])
        taken_s[pipeline] = made.figures["iteration_s"]
    assert taken_s["auto"] <= min(taken_s.values())
    assert len(set(taken_s.values())) >= 4


def test_a_layout_needs_layers_for_every_chunk_and_stages_to_gain_from() -> None:
    length = Lengths("t", "sequences", long_tailed(60, 1, longest=10_000))
    for pp, layouts in ((1, 1), (16, 3), (17, 1), (32, 1)):
        asked = options(batch_sequences=60, pp=pp, pipeline="auto", layers="even")
        assert len(on_layouts(length, profile(), asked, 1)) == layouts
    asked = options(batch_sequences=60, pp=17, pipeline="auto", chunks=2)
    with pytest.raises(InputError, match="32 layers cannot fill 17 stages x 2 chunks"):
        on_layouts(length, profile(), asked, 1)


@pytest.mark.slow
def test_of_layouts_that_end_alike_auto_takes_the_one_that_holds_least() -> None:
    """Stages of 5 and 3 layers, or of 2 + 3 and 2 + 1: the same times, added up otherwise."""
    eight = profile("tiny")
    model = eight.header.model.model_copy(update={"num_layers": 8})
    eight = eight._replace(header=eight.header.model_copy(update={"model": model}))
    length = Lengths("t", "sequences", np.array([900, 120, 30, 444, 1000, 17]))
    asked = options(ranks=2, max_tokens_per_rank=600, batch_sequences=6, pipeline="auto")
    found = []
    for _, batches in on_layouts(length, eight, asked, 1):
        figures = plan_batch(batches.cost, asked, 0, batches[0]).figures
        found.append((figures["iteration_s"], figures["peak_live_tokens"]))
    (one_s, one_held), (v_s, _), (loop_s, loop_held) = found
    assert one_s == pytest.approx(loop_s, rel=1e-12)
    assert v_s > one_s
    assert one_held < loop_held
    header, _ = prepare(length, eight, asked, 1)
    assert (header.route, header.layers) == ("loop", ((5,), (3,)))
