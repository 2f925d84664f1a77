"""What a plan says of itself: the request, the model, the costs and the promises.

It stands as JSON in the footer of every file of a plan, so that a plan can be checked,
simulated and shown without the profile and the lengths it was made from.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hydraplan.config import Cluster, Config, Count, ModelShape
from hydraplan.cost import CostFit, CostModel, check_tensor_parallel
from hydraplan.errors import InputError
from hydraplan.layout import MAX_RANKS


class PlanOptions(Config):
    """What the user asked for; enough to make the same plan again."""

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


class PlanHeader(Config):
    """Footer of the three files of a plan.

    `cluster` is what an analytic profile was made from, None where costs were measured.
    `layers[stage][chunk]` counts decoder layers. `lengths_digest` is
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
        if min(counts) < 1 or sum(counts) != self.model.num_layers:
            raise ValueError(f"layers do not add up to the {self.model.num_layers} of the model")
        try:
            check_tensor_parallel(self.model, self.options.tp, self.fit.devices_per_node)
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    def cost_model(self) -> CostModel:
        """The cost model this plan was made with."""
        o = self.options
        return CostModel(self.fit, self.model, o.tp, o.pp, o.ranks, self.layers)
