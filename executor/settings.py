"""How batches are run, whatever is run of them: data, precision, device, and how workers talk.

Asked for once, by `execute` or `verify`; what is None is the plan's or the device's own.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hydraplan.activations import Recompute
from hydraplan.config import DType
from hydraplan.executor.inject import Injected

DeviceName = Literal["cpu", "cuda"]
TransportName = Literal["tagged", "ordered"]
RingHops = Literal["batched", "single"]

TRANSPORTS: dict[DeviceName, TransportName] = {"cpu": "tagged", "cuda": "ordered"}
"""How messages between stages are told apart where nothing is asked for; NCCL knows no tags."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked of a run.

    `data`: `.idx` or `.bin` of a Megatron dataset; None generates ids from the seed. `dtype` of the
    activations, `recompute`: what B makes again; None for the plan's. `attention`: name of the
    kernel (`hydraplan.kernels.attention`), None for "auto". `timeout_s`: longest wait of
    a worker for another. `transport`: how messages between stages are told apart
    (`hydraplan.executor.transport`), None for what the device can. `debug_messages`: each is
    checked by a header before it. `ring_hops`: whether one call posts both messages of a
    hop. `injected`: ranks that are slow on purpose. `paced`: parts take as long as the plan says
    (`hydraplan.executor.pace`).
    """

    seed: int | None = None
    data: Path | None = None
    dtype: DType | None = None
    recompute: Recompute | None = None
    device: DeviceName | None = None
    attention: str | None = None
    timeout_s: float = 120.0
    transport: TransportName | None = None
    debug_messages: bool = False
    ring_hops: RingHops = "batched"
    injected: tuple[Injected, ...] = ()
    paced: bool = False
