"""What a plan was asked: shown where it differs from its default, whole under --json."""

import inspect

import pytest

from hydraplan.cli.plan import plan
from hydraplan.planheader import PlanOptions
from hydraplan.views.options_text import IN_HEADER, IN_TABLE, changed_options, options_object

PLAIN = {
    "pp": 1, "ranks": 8, "tp": 1, "max_tokens_per_rank": 100, "batch_sequences": 4,
    "batch_tokens": None, "strategy": "hydra", "pipeline": "1f1b", "microbatches": None,
    "microbatch_order": "auto", "on_overlong": "error", "seed": 0,
}  # fmt: skip


def asked(**changed: object) -> PlanOptions:
    return PlanOptions.model_validate(PLAIN | changed)


def test_nothing_is_said_of_defaults():
    assert changed_options(asked()) == ""


SLOW_LANES = "rank-speed 0.5..1 (2 of 8 lanes below 1: 6, 7)"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"min_degree": 2}, "min-degree 2"),
        ({"microbatch_multiple": 4}, "microbatch-multiple 4"),
        ({"max_groups": 7}, "max-groups 7"),
        ({"reorder": "window:64"}, "reorder window:64"),
        ({"engine": "ring"}, "engine ring"),
        ({"layers": "even"}, "layers even"),
        ({"microbatches": 6}, "microbatches 6"),
        ({"on_overlong": "skip"}, "on-overlong skip"),
        ({"seed": 3}, "seed 3"),
        ({"rank_speed": (1.0,) * 6 + (0.5, 0.75)}, SLOW_LANES),
        ({"engine": "ring", "min_degree": 2}, "min-degree 2, engine ring"),
    ],
)
def test_an_option_that_shapes_the_plan_is_named_with_its_value(changed, said):
    assert changed_options(asked(**changed)) == f"options: {said}"


def test_no_option_is_left_out_of_header_tables_and_line():
    rest = set(PlanOptions.model_fields) - {*IN_HEADER, *IN_TABLE}
    assert {"min_degree", "engine", "rank_speed", "layers"} <= rest
    other = asked().model_copy(update=dict.fromkeys(rest, "other"))
    words = changed_options(other).removeprefix("options: ").split(", ")
    assert {word.replace("-", "_") for word in words} == {f"{name} other" for name in rest}


def test_a_default_is_that_of_the_command_line():
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(plan).parameters.items()
        if name in PlanOptions.model_fields and parameter.default is not inspect.Parameter.empty
    }
    defaults |= {"microbatches": None, "microbatch_order": "auto", "batch_sequences": 4}
    assert changed_options(asked(**defaults)) == ""


def test_json_holds_every_option():
    found = options_object(asked(engine="ring"))
    assert list(found) == list(PlanOptions.model_fields)
    assert (found["engine"], found["max_groups"]) == ("ring", None)
