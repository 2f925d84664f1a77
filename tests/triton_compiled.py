"""Compile the Triton kernels for GPUs that need not be there, from the calls the code makes.

    python -m tests.triton_compiled bfloat16,float32 80 90

Prints a line a kernel: architecture, size of its machine code, and how much a thread writes
at once. The interpreter takes more than the compiler does, so it proves nothing of this.
"""

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import mangle_type

from hydraplan.kernels import triton_heads, triton_merge
from hydraplan.kernels.merge import accumulator_dtype
from hydraplan.kernels.packing import RowMap


class Launch:
    """Stands for a kernel, keeps what it is launched with and does not run it."""

    def __init__(self, kernel: Any, launches: list[tuple[Any, tuple[object, ...]]]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *values: self.launches.append((self.kernel, values))


def launches(dtypes: list[torch.dtype]) -> list[tuple[Any, tuple[object, ...]]]:
    """Every kernel with the arguments of calls: with and without index map, and replicas."""
    found: list[tuple[Any, tuple[object, ...]]] = []
    for module, name in (
        (triton_merge, "_merge"),
        (triton_heads, "_gather"),
        (triton_heads, "_scatter"),
    ):
        setattr(module, name, Launch(getattr(module, name), found))
    for dtype in dtypes:
        wide = accumulator_dtype(dtype)
        out, lse = torch.zeros(64, 8, 128, dtype=wide), torch.zeros(64, 8, dtype=wide)
        for rows in (None, RowMap(np.arange(0, 64, 2))):
            count = 64 if rows is None else 32
            part = torch.zeros(count, 8, 128, dtype=dtype), torch.zeros(8, count, dtype=wide)
            triton_merge.merge_rows(out, lse, rows, *part)
        parts = [torch.zeros(64, 8, 128, dtype=dtype)]
        for heads in (((0, 1, 2, 3), (4, 5, 6, 7)), (tuple(range(8)),) * 2):
            flat = triton_heads.gather_heads(parts, [heads])
            triton_heads.scatter_heads(flat, 64, 128, [heads], [8])
    return found


def compiled(kernel: Any, values: tuple[object, ...], arch: int) -> Any:
    """The kernel as a launch with these values makes it."""
    signature, constants, attributes = {}, {}, {}
    for i, (parameter, value) in enumerate(zip(kernel.params, values, strict=True)):
        special = not parameter.do_not_specialize
        kind = "constexpr" if parameter.is_constexpr or value is None else mangle_type(value)
        if kind == "constexpr" or (special and isinstance(value, int) and value == 1):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        signature[parameter.name] = kind
        if special and (not isinstance(value, int) or value % 16 == 0):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32))


def main(dtypes: list[torch.dtype], archs: list[int]) -> None:
    for kernel, values in launches(dtypes):
        for arch in archs:
            made = compiled(kernel, values, arch).asm
            wide = bool(re.search(r"st\.global\.(v4\.b32|v2\.b64)", made["ptx"]))
            width = "16 bytes" if wide else "less than 16 bytes"
            print(kernel.__name__, f"sm_{arch}: {len(made['cubin'])} bytes, writes {width} at once")


if __name__ == "__main__":
    main([getattr(torch, name) for name in sys.argv[1].split(",")], list(map(int, sys.argv[2:])))
