"""What is run in full on a GPU, and what of it in a minute on a CPU, to try the code.

A dry run takes the same way through all parts with tiny sizes. Its figures say nothing of a GPU.
"""

import time
from typing import NamedTuple

import torch

from hydraplan.errors import InputError, MissingDependency
from hydraplan.profiler.measure import Device, Run, Timed, cuda_device


class Pool(NamedTuple):
    """What a plan is made for: `gpus` = pp x ranks, cap in rows of a rank, longest row of the file.

    The batch fills 80% of the cap over so many microbatches a stage.
    """

    pp: int
    ranks: int
    cap_tokens: int
    longest_tokens: int
    microbatches_a_stage: int

    @property
    def gpus(self) -> int:
        """Devices of all stages."""
        return self.pp * self.ranks


class Heads(NamedTuple):
    """Query and KV heads."""

    name: str
    queries: int
    keys: int


class Scale(NamedTuple):
    """Sizes of all parts.

    `dtype` of the kernels is bfloat16 always; `model` has its own. `product` is the width of the
    square matrices whose product stands for the chip. `slots` are replayed of each plan. `budget_s`
    is shared out to the parts by name.
    """

    device: Device
    device_name: str
    model: str
    heads: tuple[Heads, ...]
    head_dim: int
    packed: tuple[int, ...]
    long_tokens: tuple[int, ...]
    rate_tokens: tuple[int, ...]
    linear_rows: tuple[int, ...]
    product: int
    glue_rows: int
    pool: Pool
    slots: int
    run_dtype: str
    budget_s: float
    shares_s: dict[str, float]

    @property
    def target(self) -> torch.device:
        """Where tensors lie."""
        return self.device.torch_device

    @property
    def is_cuda(self) -> bool:
        """Whether times are those of a GPU."""
        return self.target.type == "cuda"


FULL_SHARES_S = {
    "kernels": 50.0, "profile": 75.0, "slots": 170.0, "rates": 30.0, "glue": 25.0, "run": 90.0,
}  # fmt: skip
"""Seconds of 465, imports included, so that 8 minutes hold. The first plan on a machine compiles
the planner's loops, up to a minute of `slots`."""

QUICK_SHARES_S = {
    "kernels": 20.0, "profile": 10.0, "slots": 120.0, "rates": 10.0, "glue": 10.0, "run": 130.0,
}  # fmt: skip
"""Enough on a busy machine of two cores."""

PACKED = (1, 2, 17, 63, 64, 65, 333, 1_000, 1_537)
"""Lengths of one packed call: shorter and longer than a block, and next to its borders."""


def full_scale() -> Scale:
    """For one CUDA device of at least 40 GB; within 8 minutes.

    Raises:
        MissingDependency: torch finds no CUDA device.
    """
    if not torch.cuda.is_available():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPU only"
        raise MissingDependency(
            f"no CUDA device: torch {torch.__version__} is built {built}",
            "try the code alone: scripts/gpu_check --device cpu --quick",
        )
    return Scale(
        device=cuda_device(),
        device_name=torch.cuda.get_device_name(),
        model="llama-8b",
        heads=(Heads("MHA", 16, 16), Heads("GQA", 32, 8), Heads("MQA", 16, 1)),
        head_dim=128,
        packed=PACKED,
        long_tokens=(8_192,),
        rate_tokens=(2_048, 8_192, 32_768),
        linear_rows=(2_048, 8_192, 32_768),
        product=8_192,
        glue_rows=32_768,
        pool=Pool(8, 256, 32_768, 262_144, 4),
        slots=256,
        run_dtype="bfloat16",
        budget_s=465.0,
        shares_s=FULL_SHARES_S,
    )


def quick_scale(device: str) -> Scale:
    """The same way with tiny sizes, on either device.

    Raises:
        MissingDependency: torch finds no CUDA device, and one was asked for.
    """
    timed, name = Device(torch.device("cpu"), cpu_seconds, (1, 2)), "CPU"
    if device == "cuda":
        full = full_scale()
        timed, name = full.device, full.device_name
    return Scale(
        device=timed,
        device_name=name,
        model="tiny",
        heads=(Heads("MHA", 4, 4), Heads("GQA", 8, 2), Heads("MQA", 4, 1)),
        head_dim=16,
        packed=(1, 2, 17, 63, 64, 65, 130),
        long_tokens=(384,),
        rate_tokens=(128, 256),
        linear_rows=(64, 256),
        product=256,
        glue_rows=256,
        pool=Pool(2, 8, 512, 2_048, 2),
        slots=6,
        run_dtype="bfloat16",
        budget_s=300.0,
        shares_s=QUICK_SHARES_S,
    )


def chosen_scale(device: str, quick: bool) -> Scale:
    """The scale of the options.

    Raises:
        InputError: Full sizes on a CPU.
        MissingDependency: No CUDA device, and one was asked for.
    """
    if quick:
        return quick_scale(device)
    if device == "cpu":
        raise InputError("full sizes would take hours on a CPU", "add --quick")
    return full_scale()


def cpu_seconds(call: Run) -> Timed:
    """CPU seconds of this thread in one call: other processes may use the cores."""
    began_s = time.thread_time()
    call()
    return Timed(time.thread_time() - began_s)
