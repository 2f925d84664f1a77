from dataclasses import replace
from pathlib import Path

import pytest

from hydraplan.errors import InputError, InvalidPlan
from hydraplan.executor.valid import check_runnable, read_valid_batch, stuck_stage
from hydraplan.files.planfile import open_plan, write_plan
from hydraplan.model import Op
from hydraplan.planner.pipeline.schedules import one_f_one_b
from tests.builders import Place
from tests.plans import batch_plan, batch_rows, plan_header, tiny_model


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("microbatches", [1, 2, 7])
def test_1f1b_always_finishes(stages, microbatches):
    assert stuck_stage(one_f_one_b(stages, microbatches)) is None


def test_stages_that_wait_for_each_other_are_found():
    eager = (Op("F", 0), Op("BW", 0), Op("F", 1), Op("BW", 1))
    late = (Op("F", 0), Op("F", 1), Op("BW", 0), Op("BW", 1))
    assert stuck_stage((eager, late)) == 0
    assert stuck_stage((late, late)) is None


def test_ops_that_real_execution_does_not_do_are_refused():
    batch = batch_plan(0, batch_rows([Place(5)]), 1, 1)
    for ops in ((Op("F", 0), Op("B", 0), Op("W", 0)), (Op("F", 0, 1), Op("BW", 0, 1))):
        with pytest.raises(InputError, match="real execution runs F and BW of one chunk"):
            check_runnable(Path("x.plan"), replace(batch, schedule=(ops,)))


def test_a_broken_plan_is_refused_with_its_broken_row(tmp_path):
    rows = batch_rows([Place(5), Place(6, 3)])
    path = tmp_path / "x.plan"
    write_plan(path, plan_header(tiny_model(), 1, 2, 1), [batch_plan(0, rows, 1, 1)])
    with pytest.raises(InvalidPlan, match=r"sequence 1: ranks 3\.\.3 leave the pool 0\.\.1"):
        read_valid_batch(open_plan(path), 0)


def test_a_plan_that_promises_too_little_is_refused(tmp_path):
    header = plan_header(tiny_model(), 1, 1, 1)
    path = tmp_path / "x.plan"
    write_plan(
        path,
        header.model_copy(update={"invariants": ("accounted", "degree")}),
        [batch_plan(0, batch_rows([Place(5)]), 1, 1)],
    )
    with pytest.raises(InvalidPlan, match="does not promise inside, schedule"):
        read_valid_batch(open_plan(path), 0)
