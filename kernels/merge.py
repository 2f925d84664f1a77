"""Merge two partial attention results over disjoint sets of keys.

Each partial result is a normalised output and the log-sum-exp (lse) of its scores. A row that
saw no key has lse -inf and weighs nothing, by selection: a factor of zero would let NaN
through. Works in float64 for float64 and in float32 for everything else.

T rows, H heads, D head_dim.

Source: the merge rule follows from the definition of softmax; widths are our choice.
"""

import torch
from torch import Tensor


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type in which partial results of `dtype` are summed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def merge(
    out_THD: Tensor, lse_HT: Tensor, out_b_THD: Tensor, lse_b_HT: Tensor
) -> tuple[Tensor, Tensor]:
    """Output and lse over both key sets, in the accumulator type of the first output."""
    wide = accumulator_dtype(out_THD.dtype)
    lse_HT, lse_b_HT = lse_HT.to(wide), lse_b_HT.to(wide)
    both_HT = _log_add(lse_HT, lse_b_HT)
    total = _share(out_THD.to(wide), lse_HT, both_HT) + _share(
        out_b_THD.to(wide), lse_b_HT, both_HT
    )
    return total, both_HT


def _log_add(a_HT: Tensor, b_HT: Tensor) -> Tensor:
    """log(exp a + exp b), each element's bits whatever the shape.

    `torch.logaddexp` rounds otherwise in the last elements of a CPU tensor than before them, so
    that a head's result would depend on which other heads lie in the tensor.
    """
    most_HT = torch.maximum(a_HT, b_HT)
    most_HT = torch.where(most_HT > -torch.inf, most_HT, 0.0)
    return most_HT + torch.log(torch.exp(a_HT - most_HT) + torch.exp(b_HT - most_HT))


def _share(out_THD: Tensor, lse_HT: Tensor, both_HT: Tensor) -> Tensor:
    seen_TH1 = (lse_HT > -torch.inf).T[:, :, None]
    weight_TH1 = torch.exp(lse_HT - both_HT).T[:, :, None]
    return torch.where(seen_TH1, weight_TH1 * out_THD, 0.0)
