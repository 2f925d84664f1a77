import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hydraplan
from hydraplan.errors import InputError
from hydraplan.files.lengths import Lengths
from hydraplan.files.planfile import open_plan, read_batch, write_plan
from hydraplan.model import WINNERS, BatchPlan
from hydraplan.planheader import PlanHeader
from hydraplan.planner.plan import plan
from tests.planner.cases import long_tailed, options, profile


@cache
def made(num_batches: int = 3) -> tuple[PlanHeader, list[BatchPlan]]:
    lengths = Lengths("t", "sequences", long_tailed(192, 4, longest=20_000))
    header, batches = plan(lengths, profile(), options(), num_batches)
    return header, list(batches)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_plan(tmp_path / "a.plan", *made())
    return tmp_path / "a.plan"


def digests(folder: Path) -> list[str]:
    return [hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.iterdir())]


def test_a_batch_is_one_row_group_and_reads_back_as_written(folder: Path) -> None:
    _, batches = made()
    opened = open_plan(folder)
    for name in ("sequences", "schedule", "batches"):
        assert pq.ParquetFile(folder / f"{name}.parquet").num_row_groups == 3
    for index, batch in enumerate(batches):
        read = read_batch(opened, index)
        for name in batch.sequences.__dataclass_fields__:
            wanted, found = getattr(batch.sequences, name), getattr(read.sequences, name)
            assert np.array_equal(wanted, found)
        assert read.schedule == batch.schedule
        np.testing.assert_equal(asdict(read.search), asdict(batch.search))  # NaN equals NaN
        assert all(
            np.array_equal(a, b)
            for a, b in zip(read.predicted_end_s, batch.predicted_end_s, strict=True)
        )


def test_same_inputs_give_the_same_bytes(tmp_path: Path, folder: Path) -> None:
    write_plan(tmp_path / "b.plan", *made.__wrapped__())
    assert digests(folder) == digests(tmp_path / "b.plan")


def test_writing_over_a_plan_replaces_it_whole(folder: Path) -> None:
    write_plan(folder, *made(1))
    assert open_plan(folder).header.num_batches == 1
    assert [p.name for p in folder.parent.iterdir()] == ["a.plan"]


def test_a_planner_that_fails_half_way_leaves_the_old_plan_and_nothing_else(folder: Path) -> None:
    header, batches = made()
    before = digests(folder)

    def failing() -> Iterator[BatchPlan]:
        yield batches[0]
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"):
        write_plan(folder, header, failing())
    assert digests(folder) == before
    assert [p.name for p in folder.parent.iterdir()] == ["a.plan"]


def test_the_footer_makes_the_plan_self_contained(folder: Path) -> None:
    header = open_plan(folder).header
    assert header.model.name == "llama-8b"
    assert header.cluster is not None
    assert header.cluster.name == "h100-sxm"
    assert header.layers == ((17,), (15,))  # the last stage holds the loss
    assert header.profile_mode == "analytic"
    assert header.cost_model().row_s.shape == (3, 2, 1)


def test_load_plan_gives_pandas_tables(folder: Path) -> None:
    frames = hydraplan.load_plan(folder)
    assert len(frames.sequences) == 192
    assert frames.sequences.batch.tolist() == [i // 64 for i in range(192)]
    assert set(frames.batches.winner) <= set(WINNERS)
    assert frames.header == open_plan(folder).header


def cut(folder: Path) -> None:
    data = (folder / "schedule.parquet").read_bytes()
    (folder / "schedule.parquet").write_bytes(data[: len(data) // 2])


def noise(folder: Path) -> None:
    data = bytearray((folder / "sequences.parquet").read_bytes())
    data[8:400] = bytes(392)
    (folder / "sequences.parquet").write_bytes(data)


def other_column(folder: Path) -> None:
    table = pq.read_table(folder / "sequences.parquet").drop_columns(["order"])
    pq.write_table(table, folder / "sequences.parquet")


def no_footer(folder: Path) -> None:
    table = pq.read_table(folder / "batches.parquet").replace_schema_metadata(None)
    pq.write_table(table, folder / "batches.parquet", row_group_size=1)


def other_footer(folder: Path) -> None:
    table = pq.read_table(folder / "batches.parquet")
    meta = table.schema.metadata[b"hydraplan"].replace(b'"seed":0', b'"seed":1')
    pq.write_table(
        table.replace_schema_metadata({b"hydraplan": meta}),
        folder / "batches.parquet",
        row_group_size=1,
    )


def strange_footer(folder: Path) -> None:
    table = pq.read_table(folder / "batches.parquet")
    meta = table.schema.metadata[b"hydraplan"].replace(b'"pp":2', b'"pp":-2')
    pq.write_table(
        table.replace_schema_metadata({b"hydraplan": meta}),
        folder / "batches.parquet",
        row_group_size=1,
    )


def footer(path: str, value: object) -> Callable[[Path], None]:
    """Set one value of all three footers; a dot in `path` goes one level down."""

    def damage(folder: Path) -> None:
        for file in folder.iterdir():
            opened = pq.ParquetFile(file)
            values = json.loads(opened.schema_arrow.metadata[b"hydraplan"])
            *above, last = path.split(".")
            inner = values
            for key in above:
                inner = inner[key]
            inner[last] = value
            schema = opened.schema_arrow.with_metadata({b"hydraplan": json.dumps(values)})
            with pq.ParquetWriter(folder / "new", schema) as writer:
                for group in range(opened.num_row_groups):
                    table = opened.read_row_group(group).replace_schema_metadata(schema.metadata)
                    writer.write_table(table)
            (folder / "new").replace(file)

    return damage


def cell(name: str, column: str, value: object) -> Callable[[Path], None]:
    """Set one cell of the first row."""

    def damage(folder: Path) -> None:
        opened = pq.ParquetFile(folder / name)
        with pq.ParquetWriter(folder / "new", opened.schema_arrow) as writer:
            for group in range(opened.num_row_groups):
                values = opened.read_row_group(group).to_pylist()
                values[0][column] = value
                writer.write_table(pa.Table.from_pylist(values, opened.schema_arrow))
        (folder / "new").replace(folder / name)

    return damage


def one_group(folder: Path) -> None:
    pq.write_table(pq.read_table(folder / "sequences.parquet"), folder / "sequences.parquet")


def empty_cell(folder: Path) -> None:
    table = pq.read_table(folder / "batches.parquet")
    fields = [f.with_nullable(True) for f in table.schema]
    values = table.to_pylist()
    values[0]["strategy"] = None
    changed = pa.Table.from_pylist(values, pa.schema(fields, table.schema.metadata))
    pq.write_table(changed, folder / "batches.parquet", row_group_size=1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "batches.parquet").unlink(), "is no plan: it holds no batches.parquet"),
        (lambda f: (f / "steps.parquet").touch(), "is a run, not a plan"),
        (cut, "schedule.parquet is not readable Parquet"),
        (noise, "sequences.parquet is damaged"),
        (other_column, "does not have the schema"),
        (no_footer, "has no hydraplan footer"),
        (other_footer, "different footers"),
        (strange_footer, "options.pp"),
        (footer("options.pp", 3), "layers are not those of 3 stages"),
        (footer("options.pp", 10**12), "layers are not those of 1000000000000 stages"),
        (footer("options.ranks", 10**12), "options.ranks: must be at most 65536"),
        (footer("options.max_tokens_per_rank", 10**30), "options.max_tokens_per_rank"),
        (footer("options.tp", 3), "tp 3 does not divide num_heads 32"),
        (footer("layers", [[8, 8], [16]]), "stages of equal chunks"),
        (footer("layers", [[], []]), "stages of equal chunks"),
        (footer("layers", [[0], [32]]), "layers do not add up to the 32 of the model"),
        (footer("layers", [[16], [15]]), "layers do not add up to the 32 of the model"),
        (footer("model.hidden_size", 10**400), "model.hidden_size"),
        (footer("fit.linear_forward.flops_per_s", 1e-300), "fit.linear_forward.flops_per_s"),
        (footer("fit.node_p2p.bytes_per_s", 0.0), "fit.node_p2p.bytes_per_s"),
        (footer("fit.node_p2p.latency_s", 1e300), "fit.node_p2p.latency_s"),
        (footer("fit.memory_bytes_per_s", float("nan")), "fit.memory_bytes_per_s"),
        (
            cell("batches.parquet", "num_microbatches", 10**12),
            "batch 0 has 1000000000000 microbatches, its schedule",
        ),
        (cell("batches.parquet", "num_microbatches", 0), "batch 0 has 0 microbatches"),
        (cell("schedule.parquet", "stage", -1), "batch 0, row 0: stage -1, the plan has 0"),
        (
            cell("schedule.parquet", "position", 7),
            "batch 0, stage 0: position 7 stands where 0 belongs; they count 0..",
        ),
        (one_group, "holds 1 row groups, its footer says 3 batches"),
        (empty_cell, "does not have the schema"),
    ],
)
def test_damage_is_named_with_its_file(folder: Path, damage, said: str) -> None:  # type: ignore[no-untyped-def]
    damage(folder)
    with pytest.raises(InputError, match=said):
        [read_batch(open_plan(folder), index) for index in range(3)]


def test_a_batch_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"batch 3 is not in .*: 0\.\.2"):
        read_batch(open_plan(folder), 3)
