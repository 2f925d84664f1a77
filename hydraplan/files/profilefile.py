"""Profile file: one row per measurement, fitted coefficients and provenance in the footer."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import NonNegativeFloat, NonNegativeInt, model_validator

from hydraplan.config import Cluster, Config, Count, ModelShape, Rate, Seconds
from hydraplan.costfit import CostFit
from hydraplan.errors import InputError
from hydraplan.files.parquet import DAMAGED, beside, open_parquet, read_footer, with_footer

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
            ("calls", pa.int64()),
            ("ranks", pa.int64()),
            ("num_samples", pa.int64()),
            ("num_disturbed", pa.int64()),
        )
    ]
)

COLUMNS_OF_VERSION_1 = 14
"""Profiles of schema version 1 end with `bytes`; their footers are read as they are."""

Name = Literal[
    "attention",
    "linear",
    "memory",
    "all_to_all",
    "p2p",
    "fabric_all_to_all",
    "fabric_p2p",
    "embedding",
    "loss",
    "optimizer",
]
Pass = Literal["forward", "backward", "input", "weight", "send", "step"]


class Measurement(NamedTuple):
    """One row of the profile. Fields that a component does not have are 0, "" or false.

    `calls`: kernel calls in what was timed, more than one where packed sequences take one each.
    `ranks` talked to each other. Of `num_samples`, `num_disturbed` shared their core with others.
    """

    component: Name
    direction: Pass
    query_rows: int = 0
    key_rows: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    causal: bool = False
    dtype: str = ""
    kernel: str = ""
    median_s: float = 0.0
    p10_s: float = 0.0
    p90_s: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    calls: int = 1
    ranks: int = 1
    num_samples: int = 0
    num_disturbed: int = 0


class TermError(Config):
    """How well one coefficient of the fit explains its measurements.

    Errors are |fit - measured| / measured over `num_points`: of the fit, and of a fit to all other
    points (leave-one-out). `smallest` and `largest` size measured, in `unit`: rows of a call, bytes
    of a message.
    """

    name: str
    num_points: Count
    median_error: NonNegativeFloat
    worst_error: NonNegativeFloat
    left_out_median: NonNegativeFloat
    left_out_p90: NonNegativeFloat
    smallest: NonNegativeFloat
    largest: NonNegativeFloat
    unit: Literal["rows", "bytes"]


class WholeCheck(Config):
    """A whole packed microbatch, never used in the fit: what it takes beside what is predicted.

    Seconds of F, B and W through `num_layers` layers, embedding and loss.
    """

    lengths: str
    num_sequences: Count
    num_tokens: Count
    longest_tokens: Count
    num_layers: Count
    predicted_s: tuple[Seconds, Seconds, Seconds]
    measured_s: tuple[Seconds, Seconds, Seconds]

    @model_validator(mode="after")
    def _took_time(self) -> Self:
        if not sum(self.measured_s) > 0:
            raise ValueError(f"measured_s of {self.lengths} add up to 0")
        return self

    @property
    def error(self) -> float:
        """Predicted over measured, of all three ops together, less one."""
        return sum(self.predicted_s) / sum(self.measured_s) - 1


class ClockState(Config):
    """A device's clock, MHz, and what held it back, as it says itself; "" if nothing or unknown."""

    mhz: NonNegativeFloat
    throttled_by: str = ""


class DeviceFactor(Config):
    """One of the devices of a profile made by all ranks: times as long as the median device."""

    world_rank: NonNegativeInt
    device: str
    factor: Rate
    clock: ClockState | None = None


class ProfileHeader(Config):
    """Footer of a profile. `mode` is "measured" only if every coefficient was timed.

    Since schema version 2: `terms` of the fit, `checks` of whole microbatches, the clock `before`
    and `after`, and `devices` where all ranks measured.
    """

    schema_version: Literal[1, 2] = 2
    tool_version: str
    mode: Literal["measured", "analytic"]
    device: str
    versions: dict[str, str]
    model: ModelShape
    cluster: Cluster | None
    fit: CostFit
    terms: tuple[TermError, ...] = ()
    checks: tuple[WholeCheck, ...] = ()
    before: ClockState | None = None
    after: ClockState | None = None
    devices: tuple[DeviceFactor, ...] = ()

    @model_validator(mode="after")
    def _in_order_of_ranks(self) -> Self:
        for rank, device in enumerate(self.devices):
            if device.world_rank != rank:
                raise ValueError(f"device {rank} has world_rank {device.world_rank}")
        return self


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
    file = open_parquet(
        path, PROFILE_SCHEMA, pa.schema(list(PROFILE_SCHEMA)[:COLUMNS_OF_VERSION_1])
    )
    header = read_footer(file, path, ProfileHeader)
    return Profile(header, hashlib.sha256(header.model_dump_json().encode()).hexdigest())


def is_profile(path: Path) -> bool:
    """Whether a Parquet file has the columns of a profile; damaged files have none."""
    try:
        names: list[str] = pq.read_schema(path).names
    except DAMAGED:
        return False
    known: list[str] = PROFILE_SCHEMA.names[:COLUMNS_OF_VERSION_1]
    return names[:COLUMNS_OF_VERSION_1] == known
