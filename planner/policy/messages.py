"""Bytes that travel when heads or rows move, as seconds of the two messages of a pass.

Forward, heads: q of every head and k, v of every KV group out, the heads' outputs back; rows: x
out, y back. Backward sends the gradients of what came back, and gets those of what went out.

Source: cp engine and MLP as they are (docs/migration.md); one link a rank each way, full duplex.
"""

from dataclasses import dataclass

import numpy as np

from hydraplan.errors import InputError
from hydraplan.model import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Sent:
    """Seconds over the link of one message, arrays of shape (ranks,).

    `unit_s` for each unit of a rank, `group_s` for each group of which any unit goes, and once
    `latency_s`.
    """

    unit_s: FloatArray
    group_s: FloatArray
    latency_s: float

    def seconds(self, rank: int, units: int, groups: int) -> float:
        """One message of `rank`."""
        parts_s = units * float(self.unit_s[rank]) + groups * float(self.group_s[rank])
        return self.latency_s + parts_s


def head_messages(
    tokens: IntArray,
    head_dim: int,
    element_bytes: int,
    bytes_per_s: float,
    latency_s: float,
    is_backward: bool,
) -> tuple[Sent, Sent]:
    """Messages out and back if units are query heads and groups the KV heads they share.

    Args:
        tokens: Rows of every rank whose heads may move, shape (ranks,).

    Raises:
        InputError: The link has no speed.
    """
    column_s = _link_s(tokens * head_dim * element_bytes, bytes_per_s)
    with_kv = Sent(column_s, 2 * column_s, latency_s)
    without = Sent(column_s, np.zeros(len(tokens)), latency_s)
    return (without, with_kv) if is_backward else (with_kv, without)


def row_messages(
    ranks: int, hidden: int, element_bytes: int, bytes_per_s: float, latency_s: float
) -> tuple[Sent, Sent]:
    """Messages out and back if units are rows of the MLP; alike forward and backward.

    Raises:
        InputError: The link has no speed.
    """
    row_s = _link_s(np.full(ranks, hidden * element_bytes), bytes_per_s)
    sent = Sent(row_s, np.zeros(ranks), latency_s)
    return sent, sent


def _link_s(sent_bytes: IntArray, bytes_per_s: float) -> FloatArray:
    if not bytes_per_s > 0:
        raise InputError(f"a link of {bytes_per_s} bytes a second carries nothing")
    return np.asarray(sent_bytes / bytes_per_s, np.float64)
