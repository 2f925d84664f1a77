"""docs/glossary.md tells what every figure and every column of the product means."""

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from hydraplan.files.planfile import PLAN_FILES
from hydraplan.files.runfile import RUN_FILES
from hydraplan.memory import TERMS
from hydraplan.metrics import FIGURES
from hydraplan.model import BatchSummary, Comparison, Search
from hydraplan.planner.pipeline.order import ALL_ORDERS
from hydraplan.views.compare_text import row_object
from hydraplan.views.plan_text import batch_object

TEXT = (Path(__file__).parents[1] / "docs" / "glossary.md").read_text()


def first_cells(section: str, column: int = 1) -> list[str]:
    """Names in the given column of the table of a section, heads left out."""
    body = re.split(r"^## ", TEXT.partition(f"## {section}\n")[2], flags=re.MULTILINE)[0]
    rows = [line.split("|") for line in body.splitlines() if line.startswith("|")][2:]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row[column])]


def summary() -> BatchSummary:
    values = {f.name: 0 for f in fields(Search)}
    values |= {"window_advice": "", "exact_status": "", "ops_status": "", "ops_from": ""}
    counted = {"figures": dict.fromkeys(FIGURES, 0.0), "status": {}, "degrees": {}}
    plain = dict.fromkeys((f.name for f in fields(BatchSummary)), 0)
    return BatchSummary(**plain | counted | {"search": Search(**values)})


def test_every_figure_is_explained_once_in_the_order_it_is_printed():
    assert first_cells("Figures") == list(FIGURES)


def test_every_name_of_a_batch_under_json_is_explained():
    known = {*first_cells("Figures"), *first_cells("What a search says")}
    known |= {"batch", "strategy", "pipeline"}
    assert set(batch_object(summary())) - known - {"window_is_empty"} == set()
    assert "`window_is_empty`" in TEXT


def test_every_name_of_a_comparison_under_json_is_explained():
    plain = dict.fromkeys((f.name for f in fields(Comparison)), 0)
    held = np.zeros((len(TERMS), 1), np.int64)
    made = {"batches": (summary(),), "figures": summary().figures, "needed_bytes": held}
    row = SimpleNamespace(**plain | made)
    known = {*first_cells("Figures"), *first_cells("What a search says"), "strategy", "window"}
    known |= {*first_cells("Stages of a plan")}
    assert set(row_object(row)) - known == set()


def test_every_column_of_a_loaded_plan_is_explained():
    explained = {"batch", *first_cells("Columns of a plan", column=2)}
    searched = {*first_cells("Figures"), *first_cells("What a search says")}
    for name, schema in PLAN_FILES.items():
        assert set(schema.names) - explained - searched == set(), name
        assert f"| `{name.removesuffix('.parquet')}` |" in TEXT
    columns = {name for schema in PLAN_FILES.values() for name in schema.names}
    assert explained <= columns


def test_no_name_is_explained_twice_in_a_table():
    for section in ("Figures", "What a search says", "Stages of a plan"):
        names = first_cells(section)
        assert sorted(set(names)) == sorted(names), section


def test_every_order_of_microbatches_is_named():
    row = next(line for line in TEXT.splitlines() if line.startswith("| `microbatch_order` |"))
    assert all(name in row for name in (*ALL_ORDERS, "auto"))


def test_sums_of_predicted_seconds_are_called_what_they_are():
    assert "is an upper bound of its load" in TEXT
    assert "degree descending, then `sequence_id`" in TEXT


def test_every_column_of_a_run_is_explained():
    explained = {"step", "stage", "lane", *first_cells("Columns of a run", column=2)}
    assert {name for schema in RUN_FILES.values() for name in schema.names} == explained
    for name in RUN_FILES:
        assert f"| `{name.removesuffix('.parquet')}` |" in TEXT
