"""Plans of every schedule: layers over chunks, the route in the header, figures, validation."""

from dataclasses import replace

import numpy as np
import pytest

from hydraplan.errors import InputError
from hydraplan.files.lengths import Lengths
from hydraplan.invariants import check_plan
from hydraplan.model import BatchPlan
from hydraplan.planheader import PlanHeader
from hydraplan.planner.figures import check_figures
from hydraplan.planner.open_request import fill_slots
from hydraplan.planner.pipeline.schedules import SCHEDULES, one_f_one_b
from hydraplan.planner.plan import plan, plan_batch, prepare
from hydraplan.route import route
from tests.planner.cases import long_tailed, options, profile

PLANNED = sorted(name for name, pipeline in SCHEDULES.items() if not pipeline.simulated_only)


def plan_with(
    pipeline: str, count: int = 200, seed: int = 3, **changes: object
) -> tuple[PlanHeader, BatchPlan]:
    asked = options(batch_sequences=count, pipeline=pipeline, **changes)
    lengths = Lengths("t", "sequences", long_tailed(count, seed, longest=30_000))
    header, batches = plan(lengths, profile(), asked, 1)
    return header, next(iter(batches))


@pytest.mark.parametrize("strategy", ["hydra", "memory-ffd"])
@pytest.mark.parametrize("pipeline", PLANNED)
def test_a_plan_of_every_schedule_is_valid_and_no_faster_than_the_bound(
    pipeline: str, strategy: str
) -> None:
    header, batch = plan_with(pipeline, pp=4, strategy=strategy)
    assert check_plan(header, batch) == []
    assert check_figures(header, batch) == []
    known = SCHEDULES[pipeline]
    assert batch.pipeline == pipeline
    assert header.route == known.route
    assert {len(row) for row in header.layers} == {known.chunks or 2}
    assert batch.schedule == known.make(4, batch.num_microbatches, known.chunks or 2)
    assert 0 < batch.figures["lower_bound_s"] <= batch.figures["iteration_s"]


@pytest.mark.parametrize("pipeline", ["interleaved", "zb-v"])
def test_no_plan_of_several_chunks_is_faster_than_the_bound(pipeline: str) -> None:
    """Few microbatches and long sequences, where the way in and back weighs most."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        ranks, cap = int(rng.choice([1, 2, 4])), int(rng.choice([257, 1001, 8193]))
        length = np.maximum(1, (cap * ranks * rng.random(9) ** 2).astype(np.int64))
        asked = options(
            pp=int(rng.integers(1, 5)), ranks=ranks, max_tokens_per_rank=cap, batch_sequences=9,
            pipeline=pipeline,
        )  # fmt: skip
        _, batches = prepare(Lengths("t", "sequences", length), profile(), asked, 1)
        figures = plan_batch(batches.cost, asked, 0, batches[0]).figures
        assert 0 < figures["lower_bound_s"] <= figures["iteration_s"] * (1 + 1e-12)


def test_the_v_gives_fewer_layers_to_the_stage_with_both_ends() -> None:
    header, _ = plan_with("zb-v", pp=4)
    assert header.layers == ((4, 2), (4, 4), (5, 4), (5, 4))
    assert header.cost_model().route.ends() == ([(0, 0)], [(0, 1)])
    one, _ = plan_with("1f1b", pp=4)
    assert one.layers == ((8,), (9,), (9,), (6,))


def test_as_many_chunks_as_asked_are_cut_and_too_many_are_refused() -> None:
    header, batch = plan_with("interleaved", pp=2, chunks=5)
    assert {len(row) for row in header.layers} == {5}
    assert {op.chunk for op in batch.schedule[0]} == set(range(5))
    with pytest.raises(InputError, match="32 layers cannot fill 8 stages x 5 chunks"):
        plan_with("interleaved", pp=8, chunks=5)
    with pytest.raises(InputError, match="1f1b has 1 chunk"):
        plan_with("1f1b", chunks=2)


@pytest.mark.parametrize("pipeline", ["dualpipe", "dualpipe-v"])
def test_a_schedule_that_is_simulated_only_is_refused(pipeline: str) -> None:
    with pytest.raises(InputError, match=f"schedule {pipeline} is simulated only") as refused:
        plan_with(pipeline)
    assert "hydraplan pipeline" in str(refused.value.hint)


def test_a_header_with_another_way_through_the_chunks_is_found_out() -> None:
    header, batch = plan_with("zb-v", pp=2)
    wrong = header.model_copy(update={"route": "loop"})
    assert any("those of zb-v have 2 on route v" in text for text in check_figures(wrong, batch))
    options_ = header.options.model_copy(update={"chunks": 3})
    broken = check_figures(header.model_copy(update={"options": options_}), batch)
    assert broken == ["batch 0: schedule zb-v has 2 chunks a stage, not 3"]
    with pytest.raises(ValueError, match="route v has two chunks a stage"):
        PlanHeader.model_validate(
            plan_with("1f1b", pp=2)[0].model_dump() | {"route": "v"}, strict=False
        )


def test_a_weight_gradient_before_its_input_gradient_is_a_broken_plan() -> None:
    header, batch = plan_with("zb-v", pp=2)
    first, second = batch.schedule
    at = next(i for i, op in enumerate(first) if op.kind == "B")
    swapped = (*first[:at], first[at + 1], first[at], *first[at + 2 :])
    assert {op.kind for op in swapped[at : at + 2]} == {"B", "W"}
    broken = check_plan(header, replace(batch, schedule=(swapped, second)))
    assert any(
        f"position {at}: W" in text
        and "runs after F of these; what may run there is B or BW" in text
        for text in broken
    )


def test_filling_costs_what_the_schedule_leaves() -> None:
    even = np.full((3, 4, 1), 1 / 3)

    def fill(name: str, chunks: int) -> float:
        pipeline = SCHEDULES[name]
        return fill_slots(
            even.repeat(chunks, axis=2) / chunks,
            lambda stages, count: pipeline.make(stages, count, chunks),
            route(pipeline.route, 4, chunks),
        )

    assert fill("1f1b", 1) == 3
    assert fill("gpipe", 1) == pytest.approx(3)
    assert fill("interleaved", 3) == pytest.approx(1)
    assert fill("zb-h1", 1) == pytest.approx(1)
    assert fill("zb-h2", 1) == pytest.approx(1)  # the last stage begins three forwards late
    assert fill("zb-v", 2) == pytest.approx(0.5)
    assert one_f_one_b(4, 8) == SCHEDULES["1f1b"].make(4, 8, 1)
