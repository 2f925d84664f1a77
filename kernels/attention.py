"""Choose the attention kernel: what runs the score matrix of packed segments on one device.

What a kernel is, and what is checked of every call, stands in `guarded`. A kernel is used only
after it agreed with the reference kernel on small cases. No dropout, no sliding window, no
bias; q, k and v have one head_dim.
"""

import logging
from functools import lru_cache
from importlib import metadata

import torch

from hydraplan.errors import InputError, MissingDependency
from hydraplan.kernels import cpu, cuda, flash2, flash4, reference
from hydraplan.kernels.guarded import AttentionKernel, guarded
from hydraplan.kernels.probe import TOLERANCE, probe

__all__ = [
    "KERNELS", "NAMES", "AttentionKernel", "auto_choices", "choose_kernel", "kernel_report",
    "package_versions", "why_not",
]  # fmt: skip

log = logging.getLogger(__name__)

KERNELS = {
    kernel.name: guarded(kernel)
    for kernel in (
        AttentionKernel("cpu", cpu.forward, cpu.backward, False),
        AttentionKernel("cuda", cuda.forward, cuda.backward, True),
        AttentionKernel("flash2", flash2.forward, flash2.backward, True),
        AttentionKernel("flash4", flash4.forward, flash4.backward, True),
        AttentionKernel("reference", reference.forward, reference.backward, False),
    )
}
NEWEST_FLASH = ("flash4", "flash2")
"""What `flash` stands for: the first of these packages that works."""

NAMES = ("auto", "flash", *KERNELS)

_DEVICE_TYPE = {"cpu": "cpu", "cuda": "cuda", "flash2": "cuda", "flash4": "cuda"}
_PACKAGES = {"flash2": flash2.PACKAGE, "flash4": flash4.PACKAGE}
_WHY_ABSENT = {"flash2": flash2.why_absent, "flash4": flash4.why_absent}
_HALF = (torch.bfloat16, torch.float16)
_NEEDS_HALF = ("cuda", "flash2", "flash4")
_USUAL_DTYPE = {"cpu": torch.float32, "cuda": torch.bfloat16}


@lru_cache
def choose_kernel(device: torch.device, dtype: torch.dtype, name: str = "auto") -> AttentionKernel:
    """The kernel `name` for tensors of `dtype` on `device`; the choice is logged once.

    "auto" takes torch's fused kernel of the device, and the reference kernel where there is
    none for this type. "flash" takes the newest flash-attn package that works.

    Raises:
        InputError: The name or the type is unknown.
        MissingDependency: The named kernel does not work here, with the reason.
    """
    if name not in NAMES:
        raise InputError(f"unknown attention kernel {name!r}", f"one of: {', '.join(NAMES)}")
    if dtype not in TOLERANCE:
        raise InputError(f"attention in {dtype} is not supported")
    candidates = {"auto": (device.type,), "flash": NEWEST_FLASH}.get(name, (name,))
    reasons = []
    for candidate in candidates:
        reason = why_not(candidate, device, dtype)
        if not reason:
            log.info("attention kernel: %s for %s on %s", candidate, dtype, device)
            return KERNELS[candidate]
        reasons.append(reason if candidate == name else f"{candidate}: {reason}")
    if name != "auto":
        raise MissingDependency(
            f"attention kernel {name} cannot be used for {dtype} on {device}: {'; '.join(reasons)}",
            "see what works here: hydraplan doctor",
        )
    log.warning("attention kernel: reference, slow, since %s", reasons[0])
    return KERNELS["reference"]


def kernel_report() -> list[tuple[str, bool, str]]:
    """Name, whether it works on this machine, and why not, of every kernel."""
    report = []
    for name in KERNELS:
        device = _first_device(_DEVICE_TYPE.get(name, "cpu"))
        reason = why_not(name, device, _USUAL_DTYPE[device.type])
        report.append((name, not reason, reason))
    return report


def package_versions(name: str) -> dict[str, str]:
    """The installed version of the package that a kernel comes from, by its name; torch apart."""
    package = _PACKAGES.get(name)
    return {package.distribution: metadata.version(package.distribution)} if package else {}


def auto_choices() -> list[tuple[torch.device, torch.dtype, str]]:
    """Each kind of device here, its usual type, and the name of the kernel that auto takes."""
    kinds = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    cases = [(_first_device(kind), _USUAL_DTYPE[kind]) for kind in kinds]
    return [(*case, choose_kernel(*case).name) for case in cases]


def _first_device(kind: str) -> torch.device:
    return torch.device("cuda", 0) if kind == "cuda" else torch.device(kind)


@lru_cache
def why_not(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """Why a kernel cannot be used; empty if it can."""
    if name not in KERNELS:
        return f"there is no kernel for {name} devices"
    kind = _DEVICE_TYPE.get(name, device.type)
    if kind == "cuda" and not torch.cuda.is_available():
        return "torch finds no CUDA device"
    if kind != device.type:
        return f"it runs on {kind} devices only"
    if name in _NEEDS_HALF and dtype not in _HALF:
        return "it takes float16 and bfloat16 only"
    absent = _WHY_ABSENT[name](device) if name in _WHY_ABSENT else ""
    return absent or probe(KERNELS[name], device, dtype)
