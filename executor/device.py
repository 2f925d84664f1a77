"""The device a worker computes on: the CPU, or one GPU of its host for each of the host's workers.

With GPUs the world has two back ends, gloo for what lies on the CPU (clock, records, proofs) and
NCCL for what lies on GPUs. No process looks for GPUs before it is a worker: a CUDA context does not
survive a fork. Not yet run on a GPU.
"""

import os

import torch

from hydraplan.errors import MissingDependency
from hydraplan.executor.settings import DeviceName

BACKENDS: dict[DeviceName, str] = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""Back ends of the world, by device, as `init_process_group` takes them."""


def take_device(device: DeviceName) -> torch.device:
    """The device of this worker, made the current one; GPU i for the i-th worker of the host.

    Raises:
        MissingDependency: torch finds no GPU here, or fewer than there are workers.
    """
    if device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPU only"
        raise MissingDependency(
            f"--device cuda: torch {torch.__version__}, built {built}, finds no CUDA device",
            "use --device cpu",
        )
    workers, here = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if workers > here:
        raise MissingDependency(
            f"--device cuda: {workers} workers on a host with {here} CUDA devices, each needs one",
            "plan for fewer stages x ranks, or use --device cpu",
        )
    taken = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(taken)
    return taken
