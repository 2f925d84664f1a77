"""Seconds of a bucket's attention whose members share its heads unevenly, on slow and fast ranks.

As `moves.group_s`: columns of ring peers, each as slow as its slowest member, between two
all-to-alls that are as slow as the slowest member of the group. Bytes follow the heads.

Source: our derivation, docs/migration.md.
"""

from functools import lru_cache

import numpy as np

from hydraplan.cost import FORWARD, INPUT_GRADIENT
from hydraplan.heads import HeadSplit, even_split
from hydraplan.migration import HeadShares
from hydraplan.model import FloatArray
from hydraplan.planner.policy.rated import Rated
from hydraplan.traffic import member_bytes


def bucket_s(batch: Rated, share: HeadShares) -> FloatArray:
    """Seconds of one layer, forward and backward, (2,); alike for all members."""
    cost, parts = batch.cost, batch.parts
    u, r = share.ulysses_size, share.ring_size
    split = share.split(cost.num_heads, cost.num_kv_heads)
    even = even_split(cost.num_heads, cost.num_kv_heads, u, r)
    place = parts.bucket[share[1:5]]
    own_s, step_s, hop_s, home_s = (a[:, place, None] for a in parts.attention[:4])
    slow = batch.slow[share.stage, share.first_rank : share.first_rank + u * r]
    columns = slow.reshape(r, u)
    work = (columns * _counts(split) / _counts(even).mean()).max(axis=0)
    keys = np.array([len(held) for held in split.kv_heads]) / max(map(len, even.kv_heads))
    carried = columns.max(axis=0) * keys
    ring_s = work * own_s + carried * home_s
    ring_s += (r - 1) * np.maximum(work * step_s, carried * hop_s)
    size = cost.model.head_dim, cost.element_bytes
    sent = [_exchanged_bytes(each, *size) for each in (split, even)]
    more = (sent[0] * slow).max(axis=1) / np.maximum(sent[1].max(axis=1), 1)
    taken_s: FloatArray = ring_s.max(axis=1) + parts.attention.exchange_s[place] * more
    if cost.recompute == "full":
        taken_s[INPUT_GRADIENT] += taken_s[FORWARD]
    return taken_s


def _counts(split: HeadSplit) -> FloatArray:
    return np.array([[len(held) for held in shard] for shard in split.q_heads], float)


@lru_cache(maxsize=1024)
def _exchanged_bytes(split: HeadSplit, head_dim: int, element_bytes: int) -> FloatArray:
    """Bytes that members send in all-to-alls for a row each, forward and backward, (2, degree).

    Each ring shard is a group without a ring here.
    """
    shards = [HeadSplit(split.num_heads, split.num_kv_heads, (shard,)) for shard in split.q_heads]
    sent = [member_bytes(split.ulysses_size, shard, head_dim, element_bytes, 0) for shard in shards]
    found = np.concatenate(sent, axis=1).astype(float)
    found.flags.writeable = False
    return found
