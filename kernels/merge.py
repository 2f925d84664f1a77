"""Merge two partial attention results over disjoint sets of keys.

Each partial result is a normalised output and the log-sum-exp (lse) of its scores. A row that
saw no key has lse -inf and weighs nothing, by selection: a factor of zero would let NaN
through. Weights are ratios to the larger lse, not to the merged one, whose rounding would count in
each of them. Works in float64 for float64 and in float32 for everything else.

N rows of accumulators, T rows of a part, H heads, D head_dim.

Source: the merge rule follows from the definition of softmax; widths are our choice.
"""

import torch
from torch import Tensor

from hydraplan.kernels.packing import RowMap
from hydraplan.kernels.rows import put, take


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type in which partial results of `dtype` are summed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def merge(
    out_THD: Tensor, lse_HT: Tensor, out_b_THD: Tensor, lse_b_HT: Tensor
) -> tuple[Tensor, Tensor]:
    """Output and lse over both key sets, in the accumulator type of the first output."""
    wide = accumulator_dtype(out_THD.dtype)
    a_HT, b_HT = lse_HT.to(wide), lse_b_HT.to(wide)
    most_HT = torch.maximum(a_HT, b_HT)
    most_HT = torch.where(most_HT > -torch.inf, most_HT, 0.0)
    a_sum_HT, b_sum_HT = torch.exp(a_HT - most_HT), torch.exp(b_HT - most_HT)
    sum_HT = a_sum_HT + b_sum_HT
    total_THD = _share(out_THD.to(wide), a_HT, a_sum_HT / sum_HT) + _share(
        out_b_THD.to(wide), b_HT, b_sum_HT / sum_HT
    )
    # Not torch.logaddexp: in the last elements of a CPU tensor it rounds otherwise than before
    # them, so that a head's result would depend on which other heads lie in the tensor.
    return total_THD, most_HT + torch.log(sum_HT)


def merge_rows(
    out_NHD: Tensor, lse_NH: Tensor, rows: RowMap | None, part_THD: Tensor, part_HT: Tensor
) -> None:
    """Merge a part into the ascending `rows` of accumulators, in place."""
    before_THD, before_HT = take(out_NHD, rows), take(lse_NH, rows).T
    merged_THD, merged_HT = merge(before_THD, before_HT, part_THD, part_HT)
    put(out_NHD, rows, merged_THD)
    put(lse_NH, rows, merged_HT.T)


def _share(out_THD: Tensor, lse_HT: Tensor, weight_HT: Tensor) -> Tensor:
    seen_TH1 = (lse_HT > -torch.inf).T[:, :, None]
    return torch.where(seen_TH1, weight_HT.T[:, :, None] * out_THD, 0.0)
