"""What this machine has left, and ties between its processes. Linux only."""

import ctypes
import gc
import os
import signal
from pathlib import Path

GIB = float(1 << 30)

_PR_SET_PDEATHSIG = 1


def available_bytes() -> int:
    """Memory that can be had without swapping, from /proc/meminfo."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc/meminfo has no MemAvailable")


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def begin_as_child(parent: int) -> None:
    """First call of a forked process: end with `parent`, and never collect what it left behind.

    Garbage of the parent may own threads, which are not forked: PyTorch's TCPStore of a run that is
    over joins its own as it goes, and a collection in the child would wait for it for ever.
    """
    gc.freeze()
    die_with(parent)


def die_with(parent: int) -> None:
    """Have the kernel kill this process, a child of `parent`, as soon as `parent` has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
