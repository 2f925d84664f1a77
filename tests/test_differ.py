"""Comparing plans: every single edit of a batch is found, and said to be what it is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.differ import Scope, batch_diff, figure_change, header_changes, scope
from hydraplan.metrics import FIGURES
from hydraplan.model import ARRAY_COLUMNS, BatchPlan
from tests.builders import Place
from tests.plans import batch_plan, batch_rows, plan_header, tiny_model

PLACES = [
    Place(64, 0, 2, 2),
    *(Place(10 + i, i % 4, microbatch=i % 3) for i in range(12)),
    Place(40, 2, 1, 2, 1),
]
HEADER = plan_header(tiny_model(), 2, 4, 1)
ALL = Scope(rows=True, costs=True, pool=True)


def batch() -> BatchPlan:
    made = batch_plan(0, batch_rows(PLACES), 3, 2)
    figures = {name: 1.0 + i for i, name in enumerate(FIGURES)}
    return replace(made, figures=figures)


def with_row(plan: BatchPlan, column: str, row: int, value: float | int) -> BatchPlan:
    values = getattr(plan.sequences, column).copy()
    values[row] = value
    return replace(plan, sequences=replace(plan.sequences, **{column: values}))


def difference(old: BatchPlan, new: BatchPlan) -> Any:
    return batch_diff((HEADER, HEADER), old, new)


def test_a_batch_and_itself_have_no_difference() -> None:
    found = difference(batch(), batch())
    assert not found.is_different()
    assert (found.rows, found.counts, found.lanes) == ((), {}, ())
    assert {figure.verdict for figure in found.figures} == {"same"}


def test_a_sequence_on_other_ranks_is_named_and_no_other() -> None:
    places = list(PLACES)
    places[5] = places[5]._replace(first_rank=2, ulysses_size=2)
    new = replace(batch(), sequences=batch_rows(places))
    found = difference(batch(), new)
    (row,) = [row for row in found.rows if row.kind == "degree"]
    assert (row.sequence_id, row.length_tokens) == (5, 14)
    assert (row.old.degree, row.new.degree) == (1, 2)
    assert found.counts["degree"] == 1
    assert "moved" not in found.counts
    changed = {lane.lane for lane in found.lanes}
    assert changed == {PLACES[5].first_rank, 2, 3}


def edits() -> st.SearchStrategy[Callable[[BatchPlan], BatchPlan]]:
    """Functions that change one thing of a batch."""
    row = st.integers(0, len(PLACES) - 1)
    by = st.integers(1, 5)

    def column(name: str, index: int, more: int) -> Callable[[BatchPlan], BatchPlan]:
        return lambda plan: with_row(plan, name, index, getattr(plan.sequences, name)[index] + more)

    def status(index: int) -> Callable[[BatchPlan], BatchPlan]:
        def edit(plan: BatchPlan) -> BatchPlan:
            states = list(plan.sequences.status)
            states[index] = "truncated"
            return replace(plan, sequences=replace(plan.sequences, status=tuple(states)))

        return edit

    def figure(name: str, more: float) -> Callable[[BatchPlan], BatchPlan]:
        return lambda plan: replace(plan, figures=plan.figures | {name: plan.figures[name] + more})

    def swapped(stage: int, index: int) -> Callable[[BatchPlan], BatchPlan]:
        def edit(plan: BatchPlan) -> BatchPlan:
            ops = list(plan.schedule[stage])
            ops[index], ops[index + 1] = ops[index + 1], ops[index]
            schedule = list(plan.schedule)
            schedule[stage] = tuple(ops)
            return replace(plan, schedule=tuple(schedule))

        return edit

    def time(stage: int, index: int) -> Callable[[BatchPlan], BatchPlan]:
        def edit(plan: BatchPlan) -> BatchPlan:
            ends = [end.copy() for end in plan.predicted_end_s]
            ends[stage][index] += 1e-9
            return replace(plan, predicted_end_s=tuple(ends))

        return edit

    def choice(name: str) -> Callable[[BatchPlan], BatchPlan]:
        return lambda plan: replace(plan, **{name: "other"})

    def searched(name: str) -> Callable[[BatchPlan], BatchPlan]:
        return lambda plan: replace(plan, search=replace(plan.search, **{name: 7}))

    names = ("strategy", "winner", "microbatch_order", "pipeline")
    return st.one_of(
        st.builds(
            column, st.sampled_from([n for n in ARRAY_COLUMNS if n != "sequence_id"]), row, by
        ),
        st.builds(status, row),
        st.builds(figure, st.sampled_from(FIGURES), st.sampled_from([1e-9, 0.1, float("nan")])),
        st.builds(swapped, st.integers(0, 1), st.integers(0, 4)),
        st.builds(time, st.integers(0, 1), st.integers(0, 5)),
        st.builds(choice, st.sampled_from(names)),
        st.builds(searched, st.sampled_from(["window_min", "theta", "bound_s", "ops_from"])),
    )


@settings(max_examples=500, deadline=None)
@given(edits())
def test_every_single_edit_is_found_whichever_side_it_is_on(
    edit: Callable[[BatchPlan], BatchPlan],
) -> None:
    plain, edited = batch(), edit(batch())
    for pair in ((plain, edited), (edited, plain)):
        assert difference(*pair).is_different()


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("ring_size", "degree"),
        ("microbatch", "moved"),
        ("first_rank", "moved"),
        ("order", "reordered"),
        ("valid_tokens", "other"),
        ("predicted_s", "other"),
    ],
)
def test_a_row_changed_in_the_first_way_that_holds(column: str, kind: str) -> None:
    plan = batch()
    found = difference(plan, with_row(plan, column, 4, getattr(plan.sequences, column)[4] + 1))
    assert found.counts == {kind: 1}
    assert [(row.sequence_id, row.kind) for row in found.rows] == [(4, kind)]


def test_rows_of_one_plan_alone_are_counted() -> None:
    fewer = replace(batch(), sequences=batch_rows(PLACES[:-2]))
    found = difference(batch(), fewer)
    assert (found.only_old, found.only_new) == (2, 0)


def test_loads_of_a_batch_that_breaks_a_rule_are_left_out() -> None:
    plan = batch()
    found = difference(plan, with_row(plan, "first_rank", 0, 3))
    assert found.lanes is None


def test_more_or_less_is_better_or_worse_as_the_figure_says() -> None:
    def verdict(name: str, old: float, new: float, tolerance: float = 0.0) -> str:
        return figure_change(name, old, new, ALL, tolerance).verdict

    assert verdict("iteration_s", 1.0, 1.1) == "worse"
    assert verdict("iteration_s", 1.1, 1.0) == "better"
    assert verdict("efficiency", 0.8, 0.9) == "better"
    assert verdict("efficiency", 0.9, 0.8) == "worse"
    assert verdict("lower_bound_s", 1.0, 2.0) == "changed"
    assert verdict("iteration_s", 1.0, 1.01, 0.02) == "same"
    assert verdict("iteration_s", 1.0, 1.03, 0.02) == "worse"
    nan = float("nan")
    assert verdict("target_error", nan, nan) == "same"
    assert verdict("target_error", nan, 1.0, 1.0) == "changed"
    assert verdict("padding_tokens", 0.0, 5.0) == "worse"
    assert figure_change("padding_tokens", 0.0, 5.0, ALL, 0.0).change == float("inf")


def test_what_means_nothing_is_not_compared_and_said() -> None:
    other_rows = HEADER.model_copy(update={"lengths_digest": "1" * 64})
    may = scope(HEADER, other_rows)
    assert may == Scope(rows=False, costs=True, pool=True)
    assert figure_change("iteration_s", 1.0, 2.0, may, 0.0).verdict == "not comparable"
    assert figure_change("sent_bytes", 1.0, 2.0, may, 0.0).verdict == "not comparable"
    assert figure_change("slot_imbalance", 1.0, 2.0, may, 0.0).verdict == "worse"
    found = batch_diff((HEADER, other_rows), batch(), batch())
    assert (found.rows, found.lanes) == ((), None)
    dear = HEADER.fit.model_copy(update={"memory_bytes_per_s": 1.0})
    may = scope(HEADER, HEADER.model_copy(update={"fit": dear}))
    assert may == Scope(rows=True, costs=False, pool=True)
    assert figure_change("iteration_s", 1.0, 2.0, may, 0.0).verdict == "not comparable"
    assert figure_change("sent_bytes", 1.0, 2.0, may, 0.0).verdict == "worse"
    wide = HEADER.options.model_copy(update={"ranks": 8})
    may = scope(HEADER, HEADER.model_copy(update={"options": wide}))
    assert may == Scope(rows=True, costs=True, pool=False)
    assert len(Scope(rows=False, costs=False, pool=False).reasons()) == 3


@pytest.mark.parametrize("name", sorted(set(type(HEADER).model_fields) - {"schema_version"}))
def test_every_field_of_a_footer_is_compared(name: str) -> None:
    value = getattr(HEADER, name)
    changes: dict[str, object] = {
        "options": HEADER.options.model_copy(update={"seed": 7}),
        "model": HEADER.model.model_copy(update={"vocab_size": 7}),
        "fit": HEADER.fit.model_copy(update={"memory_bytes_per_s": 7.0}),
        "cluster": tiny_model(),  # anything that is there
        "layers": ((2,), (1,)),
        "invariants": ("cap",),
    }
    other = changes.get(name, f"{value}x" if isinstance(value, str) else 7)
    (found,) = header_changes(HEADER, HEADER.model_copy(update={name: other}))
    assert name in found.name or found.name.startswith(f"{name}.")
    assert header_changes(HEADER, HEADER) == []
