from dataclasses import replace
from pathlib import Path

import pytest

from hydraplan.errors import InputError, InvalidPlan
from hydraplan.executor.valid import lower_batch, read_valid_batch
from hydraplan.files.planfile import open_plan, write_plan
from hydraplan.model import Op
from tests.builders import Place
from tests.plans import batch_plan, batch_rows, plan_header, tiny_model


def batch_of(schedule, pipeline="by-hand"):
    made = batch_plan(0, batch_rows([Place(5)]), 2, len(schedule))
    return replace(made, schedule=schedule, pipeline=pipeline)


def test_stages_that_wait_for_each_other_are_refused():
    eager = (Op("F", 0), Op("BW", 0), Op("F", 1), Op("BW", 1))
    late = (Op("F", 0), Op("F", 1), Op("BW", 0), Op("BW", 1))
    header = plan_header(tiny_model(), 2, 1, 1)
    with pytest.raises(InvalidPlan, match=r"x\.plan, batch 0: no transport gets through"):
        lower_batch(Path("x.plan"), header, batch_of((eager, late)))
    assert len(lower_batch(Path("x.plan"), header, batch_of((late, late)))) == 2


def test_a_forward_that_runs_with_a_backward_is_refused():
    ops = (Op("F", 0), Op("F", 1, 0, True), Op("BW", 0), Op("BW", 1))
    header = plan_header(tiny_model(), 1, 1, 1)
    with pytest.raises(InputError, match="dualpipe-v runs forwards and backwards at the same") as e:
        lower_batch(Path("x.plan"), header, batch_of((ops,), "dualpipe-v"))
    assert "--simulate" in e.value.hint


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
