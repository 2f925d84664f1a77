"""Data sheet rates of the GPUs we know, and the cluster file that stands for their links.

Of a GPU that is not here no share of its peak is told. Peaks are dense, without sparsity, and the
same as those in the comments of the cluster files.
"""

from typing import NamedTuple


class Known(NamedTuple):
    """How torch names a GPU, the built-in cluster it belongs to, and its peak in bfloat16."""

    name: str
    cluster: str
    peak_flops_per_s: float


KNOWN = (
    Known("NVIDIA A100-SXM4-80GB", "a100-sxm", 312e12),
    Known("NVIDIA H100 80GB HBM3", "h100-sxm", 989e12),
    Known("NVIDIA H200", "h200-sxm", 989e12),
    Known("NVIDIA B200", "b200-sxm", 2250e12),
)
OTHER = "h100-sxm"
"""Whose links are taken for a GPU that is not known; nothing here measures them."""


def known(name: str) -> Known | None:
    """The GPU of exactly that name; a PCIe card of the same chip is another one."""
    return next((gpu for gpu in KNOWN if gpu.name == name), None)
