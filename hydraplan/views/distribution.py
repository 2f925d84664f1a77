"""Figures of a length distribution: percentiles and the weight of its tail.

Sums of tokens are int64, sums of squares float64: a single row of 4 million tokens squared
passes 2**43, and a file of them 2**63. Resampling and fitting are not done here.
"""

from dataclasses import asdict, dataclass

import numpy as np

from hydraplan.model import IntArray

PERCENTILES = (1, 5, 25, 50, 75, 90, 95, 99, 99.9)
TAIL_TOKENS = (8 * 1024, 32 * 1024, 128 * 1024, 256 * 1024)


@dataclass(frozen=True, slots=True)
class Tail:
    """Rows longer than `beyond_tokens`: how many, and their shares, each in 0..1."""

    beyond_tokens: int
    num_sequences: int
    sequences_share: float
    tokens_share: float
    squares_share: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What `hydraplan lengths` reports; percentiles are rows of the file, never between two."""

    num_sequences: int
    num_tokens: int
    num_empty: int
    percentiles: dict[str, int]
    tail: tuple[Tail, ...]

    def as_dict(self) -> dict[str, object]:
        """The same as plain values."""
        return asdict(self)


def summarize(length_tokens: IntArray) -> Summary:
    """Summarize lengths of shape (num_sequences,), at least one; shares of nothing are 0."""
    ordered = np.sort(length_tokens)
    num_tokens, all_squares = int(ordered.sum()), _squares(ordered)
    percentiles = {f"p{q:g}": int(ordered[_rank(q, len(ordered))]) for q in PERCENTILES}
    tail = []
    for beyond in TAIL_TOKENS:
        first = int(np.searchsorted(ordered, beyond, side="right"))
        tail.append(
            Tail(
                beyond_tokens=beyond,
                num_sequences=len(ordered) - first,
                sequences_share=(len(ordered) - first) / len(ordered),
                tokens_share=int(ordered[first:].sum()) / max(1, num_tokens),
                squares_share=_squares(ordered[first:]) / max(1.0, all_squares),
            )
        )
    return Summary(
        num_sequences=len(ordered),
        num_tokens=num_tokens,
        num_empty=int(np.searchsorted(ordered, 0, side="right")),
        percentiles=percentiles | {"max": int(ordered[-1])},
        tail=tuple(tail),
    )


def _squares(length_tokens: IntArray) -> float:
    """Sum of squares, a part at a time: ten million rows would take 80 MB more."""
    parts = np.array_split(length_tokens, 1 + len(length_tokens) // 2**20)
    return sum(float(np.square(part, dtype=np.float64).sum()) for part in parts)


def _rank(percent: float, rows: int) -> int:
    """Lower percentile: the row below which at most `percent` of the rows lie."""
    return int((rows - 1) * percent / 100)
