"""Compile the Triton kernels for GPUs that need not be there, from the calls the code makes.

    python -m tests.triton_compiled bfloat16,float32 80 90

Prints a line a kernel: architecture, size of its machine code, and how much a thread writes
at once; then whether other numbers of rows need other kernels. The interpreter takes more than
the compiler does, so it proves nothing of this.
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

Launch = tuple[Any, tuple[object, ...]]
"""A kernel and what it is launched with."""


class Recorder:
    """Stands for a kernel, keeps its launches and runs none."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *values: self.launches.append((self.kernel, values))


def recorded() -> list[Launch]:
    """The list in which all further launches are kept."""
    found: list[Launch] = []
    for module, name in (
        (triton_merge, "_merge"),
        (triton_heads, "_gather"),
        (triton_heads, "_scatter"),
    ):
        setattr(module, name, Recorder(getattr(module, name), found))
    return found


def use(dtype: torch.dtype, rows: int) -> None:
    """Merge into a run of rows and into others; heads to two peers, apart and replicated."""
    wide = accumulator_dtype(dtype)
    out, lse = torch.zeros(200, 6, 128, dtype=wide), torch.zeros(200, 6, dtype=wide)
    run = np.arange(rows % 5, rows % 5 + rows)
    for index in (run, np.append(run[:-1], 199)):
        part = torch.zeros(rows, 6, 128, dtype=dtype), torch.zeros(6, rows, dtype=wide)
        triton_merge.merge_rows(out, lse, RowMap(index), *part)
    parts = [torch.zeros(rows, 6, 128, dtype=dtype)]
    for heads in (((0, 1, 2), (3, 4, 5)), (tuple(range(6)),) * 2):
        flat = triton_heads.gather_heads(parts, [heads])
        triton_heads.scatter_heads(flat, rows, 128, [heads], [6])


Variant = tuple[dict[str, str], dict[str, object], dict[tuple[int], list[list[object]]]]
"""By what Triton tells one compiled kernel from another: types, constants, alignments."""


def variant(kernel: Any, values: tuple[object, ...]) -> Variant:
    """The variant that a launch needs."""
    types, constants, alignments = {}, {}, {}
    for i, (parameter, value) in enumerate(zip(kernel.params, values, strict=True)):
        special = not parameter.do_not_specialize
        types[parameter.name] = "constexpr"
        if (
            parameter.is_constexpr
            or value is None
            or (special and type(value) is int and value == 1)
        ):
            constants[parameter.name] = value
            continue
        types[parameter.name] = mangle_type(value)
        number = value.data_ptr() if isinstance(value, torch.Tensor) else value
        if special and not parameter.do_not_specialize_on_alignment and number % 16 == 0:
            alignments[(i,)] = [["tt.divisibility", 16]]
    return types, constants, alignments


def main(dtypes: list[torch.dtype], archs: list[int]) -> None:
    launches = recorded()
    for dtype in dtypes:
        use(dtype, 64)
    for kernel, values in launches:
        for arch in archs:
            source = ASTSource(kernel, *variant(kernel, values))
            made = triton.compile(source, target=GPUTarget("cuda", arch, 32)).asm
            wide = bool(re.search(r"st\.global\.(v4\.b32|v2\.b64)", made["ptx"]))
            width = "16 bytes" if wide else "less than 16 bytes"
            print(kernel.__name__, f"sm_{arch}: {len(made['cubin'])} bytes, writes {width} at once")
    needed = [variant(*launch) for launch in launches]
    for rows in (2, 33, 61):
        launches.clear()
        for dtype in dtypes:
            use(dtype, rows)
        same = [variant(*launch) for launch in launches] == needed
        print(rows, "rows need", "the same kernels" if same else "other kernels")


if __name__ == "__main__":
    main([getattr(torch, name) for name in sys.argv[1].split(",")], list(map(int, sys.argv[2:])))
