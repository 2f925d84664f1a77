"""What is settled before any worker starts: the plan is valid, fresh, and one this runs.

The batches a run visits are read here, so that forked workers share them; nothing that can
be refused is left for the first step.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from hydraplan.activations import Recompute
from hydraplan.config import DType, ModelShape
from hydraplan.cost import CostModel
from hydraplan.errors import InputError
from hydraplan.executor.data import (
    Tokens,
    check_ids,
    count_labels,
    generated_tokens,
    indexed_tokens,
)
from hydraplan.executor.inject import check_injected
from hydraplan.executor.launch import under_torchrun
from hydraplan.executor.memory import check_memory
from hydraplan.executor.settings import TRANSPORTS, DeviceName, Settings, TransportName
from hydraplan.executor.valid import check_head, lower_batch, read_valid_batch
from hydraplan.files.planfile import open_plan
from hydraplan.files.runfile import plan_digest
from hydraplan.host import available_bytes
from hydraplan.model import BatchPlan
from hydraplan.planheader import PlanHeader
from hydraplan.planner.pipeline.lowering import Steps

MAX_TIMEOUT_S = 1e6
"""Far beyond any step, far below what gloo's milliseconds can hold."""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything the workers of a run need to know; `steps` by the number of the batch.

    `is_shared`: rank 0 alone read the batches, and tells the others
    (`hydraplan.executor.share_plan`).
    """

    header: PlanHeader
    digest: str
    batches: tuple[BatchPlan, ...]
    steps: dict[int, Steps]
    tokens: Tokens
    settings: Settings
    is_shared: bool = False

    @property
    def seed(self) -> int:
        """Of weights and generated ids."""
        return self.settings.seed or 0

    @property
    def data(self) -> str:
        """Name of the dataset, or "generated"."""
        return "generated" if self.settings.data is None else self.settings.data.name

    @property
    def dtype(self) -> DType:
        """Of the activations."""
        return self.settings.dtype or self.header.model.dtype

    @property
    def recompute(self) -> Recompute:
        """What B makes again."""
        return self.settings.recompute or self.header.options.recompute

    @property
    def device(self) -> DeviceName:
        """What the workers compute on."""
        return self.settings.device or "cpu"

    @property
    def attention(self) -> str:
        """Name of the attention kernel."""
        return self.settings.attention or "auto"

    @property
    def transport(self) -> TransportName:
        """How messages between stages are told apart."""
        return self.settings.transport or TRANSPORTS[self.device]

    @property
    def model(self) -> ModelShape:
        """The plan's model in the dtype of the run."""
        return self.header.model.model_copy(update={"dtype": self.dtype})

    @property
    def cost(self) -> CostModel:
        """The plan's cost model with what this run sends, holds and makes again."""
        return replace(self.header.cost_model(), model=self.model, recompute=self.recompute)


def prepare(path: Path, batches: Iterable[int], settings: Settings) -> Job:
    """Open a plan and check everything about the named batches that can be checked.

    Under torchrun rank 0 alone reads and checks batches; the job of the others has none yet.

    Raises:
        InvalidPlan: The plan breaks an invariant.
        StalePlan: The data's lengths are not those the plan was made from.
        InputError: The plan asks for what the executor does not do, or ids do not fit.
    """
    timeout_s, data = settings.timeout_s, settings.data
    if not 0 < timeout_s < MAX_TIMEOUT_S:
        raise InputError(f"timeout {timeout_s} s is not between 0 and {MAX_TIMEOUT_S:.0f} s")
    if settings.device == "cuda" and settings.transport == "tagged":
        raise InputError(
            "--transport tagged has tags, and NCCL on --device cuda knows none",
            "leave --transport out: messages then go in order",
        )
    is_shared = under_torchrun()
    is_reader = not is_shared or os.environ["RANK"] == "0"
    plan = open_plan(path)
    header = plan.header
    if header.options.tp != 1:
        raise InputError(
            f"{path} is for tp {header.options.tp}, real execution runs tp 1",
            "plan with --tp 1, or use execute --simulate",
        )
    if settings.paced and settings.device == "cuda":
        raise InputError(
            "--paced is for ranks that share cores, a GPU has its own pace", "leave --paced out"
        )
    check_injected(settings.injected, header.options.pp, header.options.ranks)
    tokens = generated_tokens(settings.seed or 0, header.model.vocab_size)
    job = Job(header, "", (), {}, tokens, settings, is_shared)
    if not is_shared and job.device == "cpu":  # under torchrun the workers may be anywhere
        check_memory(header, job.dtype, available_bytes())
    read = tuple(read_valid_batch(plan, i) for i in batches) if is_reader else ()
    for batch in read:
        count_labels(batch.sequences.placed(), batch.batch)
        if settings.paced:
            check_head(header, batch)
    if data is not None:
        tokens = indexed_tokens(data, header)
        placed = [batch.sequences.placed() for batch in read]
        check_ids(tokens, placed, header.model.vocab_size, data.with_suffix(".bin"))
    return replace(
        job,
        digest=plan_digest(plan) if is_reader else "",
        batches=read,
        steps={batch.batch: lower_batch(path, header, batch) for batch in read},
        tokens=tokens,
    )
