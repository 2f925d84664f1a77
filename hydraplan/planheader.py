"""What a plan says of itself: the request, the model, the costs and the promises.

It stands as JSON in the footer of every file of a plan, so that a plan can be checked,
simulated and shown without the profile and the lengths it was made from.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from hydraplan.activations import Recompute
from hydraplan.config import Cluster, Config, Count, ModelShape
from hydraplan.cost import CostModel
from hydraplan.costfit import CostFit
from hydraplan.errors import InputError
from hydraplan.host import GIB
from hydraplan.layout import MAX_RANKS
from hydraplan.route import RouteName
from hydraplan.stages import check_tensor_parallel

LIVE_STAGES = {"zb-1p": 1, "zb-2p": 2, "portfolio": 1, "exact": 1, "auto": 1, "policy": 1}
"""Schedules planned under a memory limit, and the default of it: microbatches a stage of the
pipeline that a stage may hold."""

MIN_SPEED, MAX_SPEED = 1e-3, 1e3
Speed = Annotated[float, Field(ge=MIN_SPEED, le=MAX_SPEED)]

MAX_GIB = 1 << 16
Gib = Annotated[float, Field(ge=1e-6, le=MAX_GIB)]

MAX_DIGITS = 18
"""Digits of the longest number an option takes; it fits int64."""


class Resumed(Config):
    """What a plan goes on from: a run of plan `plan_digest` after `steps` of its steps.

    Rows before `first_row` of the length file are trained.
    """

    plan_digest: str
    steps: Annotated[int, Field(ge=0, le=1 << 40)]
    first_row: Annotated[int, Field(ge=0, lt=1 << 40)]

    def __str__(self) -> str:
        return f"after step {self.steps} of plan {self.plan_digest[:16]}, from row {self.first_row}"


class PlanOptions(Config):
    """What the user asked for; enough to make the same plan again.

    `min_degree` is a power of two up to the pool, or the pool. `microbatch_multiple` divides
    the number of microbatches. `max_groups` bounds the distinct rank sets of degree > 1.
    `reorder` says how far a row may move from its place in the file (`reorder_window`).
    `engine` "ring" knows no inner groups. `rank_speed` has a factor a lane, 1.0 nominal and 0.5
    half as fast; None where all are nominal. `layers` "balanced" gives the stages with the
    embedding and the loss as many layers fewer as these cost, "even" does not.
    `microbatch_shape` "tapered" lets microbatches be light at both ends (`placement.taper`).
    `chunks` of every stage, None for as many as the schedule has by itself. `live_microbatches`
    times the cap is what a stage may hold of activations, in tokens; None for no limit.
    `recompute`: what B makes again, in costs and in what a stage holds. `memory_gib` of a device,
    which no batch needs more than; None for no limit. `cap_is_derived` from it: the cap is `auto`.
    `resumes` names the run that a plan of the remaining rows goes on from.
    """

    pp: Count
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)]
    tp: Count
    max_tokens_per_rank: Count
    batch_sequences: Count | None
    batch_tokens: Count | None
    strategy: str
    pipeline: str
    microbatches: Count | None
    microbatch_order: str
    on_overlong: Literal["error", "skip", "truncate"]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)]
    min_degree: Count = 1
    microbatch_multiple: Count = 1
    max_groups: Count | None = None
    reorder: str = "batch"
    engine: Literal["nested", "ring"] = "nested"
    rank_speed: tuple[Speed, ...] | None = None
    layers: Literal["balanced", "even"] = "balanced"
    microbatch_shape: Literal["even", "tapered"] = "even"
    chunks: Count | None = None
    live_microbatches: Annotated[Count | None, Field(validate_default=True)] = None
    recompute: Recompute = "none"
    memory_gib: Gib | None = None
    cap_is_derived: bool = False
    resumes: Resumed | None = None

    @property
    def memory_bytes(self) -> int | None:
        """Most bytes that a rank may need at once; None for no limit."""
        return None if self.memory_gib is None else int(self.memory_gib * GIB)

    @property
    def first_row(self) -> int:
        """First row of the length file that is planned."""
        return 0 if self.resumes is None else self.resumes.first_row

    @property
    def live_limit_tokens(self) -> int | None:
        """Most tokens whose activations a rank may hold at once; None for no limit."""
        live = self.live_microbatches
        return None if live is None else live * self.max_tokens_per_rank

    @field_validator("live_microbatches")
    @classmethod
    def _limit_of_planned(cls, live: int | None, info: ValidationInfo) -> int | None:
        stages = LIVE_STAGES.get(info.data.get("pipeline", ""))
        if live is not None or stages is None or "pp" not in info.data:
            return live
        return stages * int(info.data["pp"])

    @field_validator("min_degree")
    @classmethod
    def _legal_degree(cls, degree: int, info: ValidationInfo) -> int:
        ranks = info.data.get("ranks", MAX_RANKS)
        if degree != ranks and (degree > ranks or degree & (degree - 1)):
            raise ValueError(f"neither a power of two up to ranks {ranks} nor {ranks}")
        return degree

    @field_validator("microbatch_multiple")
    @classmethod
    def _divides_microbatches(cls, multiple: int, info: ValidationInfo) -> int:
        count = info.data.get("microbatches")
        if count is not None and count % multiple:
            raise ValueError(f"does not divide microbatches {count}")
        return multiple

    @field_validator("reorder")
    @classmethod
    def _known_reorder(cls, reorder: str) -> str:
        reorder_window(reorder)
        return reorder

    @field_validator("rank_speed")
    @classmethod
    def _speed_of_every_lane(
        cls, speed: tuple[float, ...] | None, info: ValidationInfo
    ) -> tuple[float, ...] | None:
        if speed is None:
            return None
        ranks = info.data.get("ranks", len(speed))
        if len(speed) != ranks:
            raise ValueError(f"{len(speed)} factors for {ranks} ranks")
        return None if all(factor == 1.0 for factor in speed) else speed


def reorder_window(reorder: str) -> int | None:
    """Rows of the windows inside which rows may trade places; 1 for `none`, None for the batch.

    Raises:
        ValueError: `reorder` is neither `batch`, `none` nor `window:K` with K >= 1.
    """
    if reorder == "batch":
        return None
    if reorder == "none":
        return 1
    word, _, size = reorder.partition(":")
    known = word == "window" and size.isascii() and size.isdigit() and len(size) <= MAX_DIGITS
    if not known or int(size) == 0:
        raise ValueError("neither batch, none nor window:K with K at least 1")
    return int(size)


def reorder_within(reorder: str, num_rows: int) -> str:
    """What is asked of a batch of so many rows: a window that holds them all is `batch`."""
    size = reorder_window(reorder)
    return "batch" if size is None or size >= num_rows else reorder


class PlanHeader(Config):
    """Footer of the three files of a plan.

    `cluster` is what an analytic profile was made from, None where costs were measured.
    `layers[stage][chunk]` counts decoder layers, `route` is the way of the model through them.
    `lengths_digest` is
    `hydraplan.files.lengths.digest` of the whole length file, `profile_digest` that of
    `read_profile`. `invariants` names what this strategy promises and `validate` checks.
    """

    schema_version: Literal[1] = 1
    tool_version: str
    options: PlanOptions
    model: ModelShape
    cluster: Cluster | None
    fit: CostFit
    layers: tuple[tuple[int, ...], ...]
    route: RouteName = "loop"
    profile_mode: Literal["measured", "analytic"]
    profile_digest: str
    lengths_digest: str
    lengths_name: str
    lengths_unit: Literal["sequences", "documents"]
    invariants: tuple[str, ...]
    num_batches: Count

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        chunks = {len(stage) for stage in self.layers}
        counts = [count for stage in self.layers for count in stage]
        if len(self.layers) != self.options.pp or len(chunks) != 1 or not counts:
            raise ValueError(f"layers are not those of {self.options.pp} stages of equal chunks")
        if self.options.cap_is_derived and self.options.memory_gib is None:
            raise ValueError("options.cap_is_derived, but no options.memory_gib says from what")
        if min(counts) < 1 or sum(counts) != self.model.num_layers:
            raise ValueError(f"layers do not add up to the {self.model.num_layers} of the model")
        if self.route != "loop" and chunks != {2}:
            raise ValueError(f"route {self.route} has two chunks a stage, layers have {chunks}")
        try:
            check_tensor_parallel(self.model, self.options.tp, self.fit.devices_per_node)
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    def cost_model(self) -> CostModel:
        """The cost model this plan was made with."""
        o = self.options
        return CostModel(
            self.fit, self.model, o.tp, o.pp, o.ranks, self.layers, o.engine, o.rank_speed,
            self.route, o.recompute,
        )  # fmt: skip
