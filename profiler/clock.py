"""What a device says of its clock, and what holds it back, before and after it is timed.

A GPU is asked through nvidia-smi, a CPU through /proc/cpuinfo. Where neither answers nothing is
known, and that is no error.
"""

import re
import subprocess
from pathlib import Path

import torch

from hydraplan.files.profilefile import ClockState

CPUINFO = Path("/proc/cpuinfo")
QUERY = "clocks.sm,clocks_event_reasons.active"
ASK_S = 10.0

REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature, in hardware",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons that are a throttle; idling and set clocks are none."""


def clock_state(device: torch.device) -> ClockState | None:
    """The clock of the device now, None if it does not say."""
    return _gpu_state(device) if device.type == "cuda" else _cpu_state(CPUINFO)


def _cpu_state(path: Path) -> ClockState | None:
    """Mean of the cores' clocks."""
    try:
        found = re.findall(r"^cpu MHz\s*:\s*([0-9]+(?:\.[0-9]*)?)$", path.read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return None
    return ClockState(mhz=sum(map(float, found)) / len(found)) if found else None


def _gpu_state(device: torch.device) -> ClockState | None:
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    words = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parsed(done.stdout)


def parsed(answer: str) -> ClockState | None:
    """`1980, 0x0000000000000004` in our words; None if it is anything else."""
    found = re.fullmatch(r"\s*([0-9]+)\s*,\s*(0x[0-9A-Fa-f]+)\s*", answer)
    if found is None:
        return None
    bits = int(found[2], 16)
    return ClockState(
        mhz=float(found[1]),
        throttled_by=", ".join(text for bit, text in REASONS.items() if bits & bit),
    )
