"""Footers of profiles whose numbers no device has are refused with the number."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hydraplan.errors import InputError
from hydraplan.files.profilefile import DeviceFactor, read_profile, write_profile
from tests.planner.cases import profile as analytic

DEVICES = tuple(DeviceFactor(world_rank=r, device="cpu", factor=1.0) for r in range(2))


def rewritten(path: Path, place: tuple[str | int, ...], value: object) -> Path:
    """A profile by two ranks with one number of its footer changed."""
    header = analytic().header.model_copy(update={"devices": DEVICES})
    write_profile(path, header, [])
    table = pq.read_table(path)
    footer = json.loads(table.schema.metadata[b"hydraplan"])
    part: Any = footer
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    pq.write_table(table.replace_schema_metadata({b"hydraplan": json.dumps(footer).encode()}), path)
    return path


def test_a_profile_by_two_ranks_is_read(tmp_path: Path) -> None:
    path = rewritten(tmp_path / "p.parquet", ("devices", 1, "factor"), 1.5)
    assert [device.factor for device in read_profile(path).header.devices] == [1.0, 1.5]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("devices", 1, "world_rank"), 0, "device 1 has world_rank 0"),
        (("devices", 0, "world_rank"), 1 << 70, f"device 0 has world_rank {1 << 70}"),
        (("devices", 1, "factor"), 0.0, "factor: must be at least"),
        (("devices", 1, "factor"), 1e300, "factor: must be at most"),
        (("devices", 1, "factor"), float("nan"), "factor: must be a finite number"),
        (("fit", "attention_forward", "spill"), 1e30, "spill: must be at most 1000"),
        (("fit", "attention_forward", "spill"), float("inf"), "spill: must be a finite number"),
        (("fit", "attention_forward", "half_rows"), float("nan"), "half_rows: must be a finite"),
        (("fit", "devices_per_node"), 1 << 50, "devices_per_node: must be at most"),
    ],
)
def test_a_number_that_no_device_has_is_refused(
    tmp_path: Path, place: tuple[str | int, ...], value: object, said: str
) -> None:
    path = rewritten(tmp_path / "p.parquet", place, value)
    with pytest.raises(InputError, match=said):
        read_profile(path)
