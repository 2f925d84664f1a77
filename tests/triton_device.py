"""Where the Triton kernels can be tested: on a CUDA device, or on the CPU by the interpreter.

Whether Triton interprets is settled when it is imported, for the whole process. So the modules
that need it skip themselves elsewhere, and `test_triton_interpreted` runs them in a process of
its own; by hand: TRITON_INTERPRET=1 scripts/test tests/kernels/test_triton_merge.py
"""

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
IGNORE_NUMPY = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
"""The interpreter computes with numpy, which warns of what is selected away later."""


def triton_device() -> torch.device:
    """The device, or the module is skipped."""
    pytest.importorskip("triton")
    if not INTERPRETED and not torch.cuda.is_available():
        pytest.skip("needs TRITON_INTERPRET=1 or a CUDA device", allow_module_level=True)
    return torch.device("cpu" if INTERPRETED else "cuda")
