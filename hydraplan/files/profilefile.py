"""Profile file: one row per measurement, fitted coefficients and provenance in the footer."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from hydraplan.config import Cluster, Config, ModelShape
from hydraplan.costfit import CostFit
from hydraplan.errors import InputError
from hydraplan.files.parquet import beside, open_parquet, read_footer, with_footer

PROFILE_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("component", pa.string()),
            ("pass", pa.string()),
            ("query_rows", pa.int64()),
            ("key_rows", pa.int64()),
            ("num_heads", pa.int64()),
            ("num_kv_heads", pa.int64()),
            ("causal", pa.bool_()),
            ("dtype", pa.string()),
            ("kernel", pa.string()),
            ("median_s", pa.float64()),
            ("p10_s", pa.float64()),
            ("p90_s", pa.float64()),
            ("flops", pa.float64()),
            ("bytes", pa.float64()),
        )
    ]
)


class Measurement(NamedTuple):
    """One row of the profile. Fields that a component does not have are 0, "" or false."""

    component: Literal["attention", "linear", "memory", "all_to_all", "p2p"]
    direction: Literal["forward", "backward", "input", "weight", "send"]
    query_rows: int
    key_rows: int
    num_heads: int
    num_kv_heads: int
    causal: bool
    dtype: str
    kernel: str
    median_s: float
    p10_s: float
    p90_s: float
    flops: float
    bytes: float


class ProfileHeader(Config):
    """Footer of a profile. `mode` is "measured" only if every coefficient was timed."""

    schema_version: Literal[1] = 1
    tool_version: str
    mode: Literal["measured", "analytic"]
    device: str
    versions: dict[str, str]
    model: ModelShape
    cluster: Cluster | None
    fit: CostFit


class Profile(NamedTuple):
    """A checked profile and the digest that plans made from it carry."""

    header: ProfileHeader
    digest: str


def write_profile(path: Path, header: ProfileHeader, rows: Sequence[Measurement]) -> None:
    """Write a profile atomically."""
    arrays = [
        pa.array([row[i] for row in rows], field.type) for i, field in enumerate(PROFILE_SCHEMA)
    ]
    schema = with_footer(PROFILE_SCHEMA, header)
    with beside(path) as spare:
        pq.write_table(pa.table(arrays, schema=schema), spare)


def read_profile(path: Path) -> Profile:
    """Read and check a profile's footer; the measurements stay on disk."""
    if not path.exists():
        raise InputError(
            f"profile {path} does not exist",
            "make one: hydraplan profile --device analytic --cluster h100-sxm --model llama-8b"
            f" -o {path}",
        )
    file = open_parquet(path, PROFILE_SCHEMA)
    header = read_footer(file, path, ProfileHeader)
    return Profile(header, hashlib.sha256(header.model_dump_json().encode()).hexdigest())
