"""What a plan's footer says of its request: checked, and read back."""

import json

import pytest
from pydantic import ValidationError

from hydraplan.config import validation_text
from hydraplan.planheader import PlanHeader, PlanOptions, reorder_window
from tests.planner.cases import options
from tests.plans import plan_header, tiny_model

CHANGED = {
    "ranks": 6,
    "min_degree": 6,
    "microbatch_multiple": 4,
    "max_groups": 3,
    "reorder": "window:64",
    "engine": "ring",
    "recompute": "full",
    "memory_gib": 74.5,
    "cap_is_derived": True,
    "rank_speed": (1.0, 0.1 + 0.2, 1.0, 1e-3, 1000.0, 1 / 3),
}


def test_options_come_back_from_a_footer_to_the_last_bit() -> None:
    changed = options(**CHANGED)
    assert changed != options()
    assert PlanOptions.model_validate_json(changed.model_dump_json()) == changed


def test_a_footer_without_the_younger_options_reads_with_their_defaults() -> None:
    header = plan_header(tiny_model(), 2, 4, 1)
    older = json.loads(header.model_dump_json())
    for name in CHANGED.keys() - {"ranks"}:
        del older["options"][name]
    assert PlanHeader.model_validate_json(json.dumps(older)) == header


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"min_degree": 3}, "min_degree: neither a power of two up to ranks 8 nor 8 (value 3)"),
        ({"min_degree": 16}, "min_degree: neither a power of two up to ranks 8 nor 8 (value 16)"),
        ({"ranks": 6, "min_degree": 8}, "min_degree: neither a power of two up to ranks 6 nor 6"),
        ({"min_degree": 0}, "min_degree: must be at least 1 (value 0)"),
        (
            {"microbatches": 6, "microbatch_multiple": 4},
            "microbatch_multiple: does not divide microbatches 6 (value 4)",
        ),
        ({"memory_gib": 0.0}, "memory_gib: must be at least 1e-06 (value 0.0)"),
        ({"max_groups": 0}, "max_groups: must be at least 1 (value 0)"),
        ({"engine": "tree"}, "engine: must be 'nested' or 'ring' (value 'tree')"),
        ({"rank_speed": (1.0, 0.5)}, "rank_speed: 2 factors for 8 ranks"),
        (
            {"rank_speed": (0.0,) * 8},
            "rank_speed.0: must be at least 0.001 (value",
        ),
        ({"rank_speed": (float("nan"),) * 8}, "rank_speed.0: must be a finite number (value nan)"),
        ({"rank_speed": (1001.0,) * 8}, "rank_speed.0: must be at most 1000 (value 1001.0)"),
    ],
)
def test_an_option_that_cannot_be_is_named_with_its_value_and_limit(
    changes: dict[str, object], said: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        options(**changes)
    assert validation_text(refused.value).startswith(said)


def test_legal_lowest_degrees_are_powers_of_two_and_the_pool() -> None:
    assert [options(ranks=6, min_degree=d).min_degree for d in (1, 2, 4, 6)] == [1, 2, 4, 6]


def test_the_cost_model_of_a_plan_has_its_engine_and_speeds() -> None:
    header = plan_header(tiny_model(), 1, 2, 1)
    asked = header.options.model_copy(update={"engine": "ring", "rank_speed": (1.0, 0.5)})
    cost = header.model_copy(update={"options": asked}).cost_model()
    assert cost.shapes(2) == [(1, 2)]
    assert cost.slow.tolist() == [1, 2]


def test_speeds_that_are_all_nominal_are_none() -> None:
    assert options(rank_speed=(1.0,) * 8).rank_speed is None
    assert options(rank_speed=(0.5,) * 8).rank_speed == (0.5,) * 8


@pytest.mark.parametrize(
    ("reorder", "window"), [("batch", None), ("none", 1), ("window:1", 1), ("window:640", 640)]
)
def test_reorder_says_inside_how_many_rows_a_row_may_move(reorder: str, window: int) -> None:
    assert options(reorder=reorder).reorder == reorder
    assert reorder_window(reorder) == window


@pytest.mark.parametrize(
    "reorder",
    ["", "all", "window", "window:", "window:0", "window:-1", "window:1.5", "window: 2",
     "window:\u0663", "Window:2", "window:" + "9" * 19],
)  # fmt: skip
def test_any_other_reorder_is_refused(reorder: str) -> None:
    with pytest.raises(ValueError, match="neither batch, none nor window:K with K at least 1"):
        reorder_window(reorder)
    with pytest.raises(ValidationError):
        options(reorder=reorder)


def test_a_derived_cap_says_from_which_memory() -> None:
    header = plan_header(tiny_model(), 2, 2, 1).model_dump()
    header["options"] |= {"cap_is_derived": True, "memory_gib": None}
    with pytest.raises(ValidationError, match=r"no options\.memory_gib says from what"):
        PlanHeader.model_validate(header)
    header["options"]["memory_gib"] = 80.0
    assert PlanHeader.model_validate(header).options.cap_is_derived
