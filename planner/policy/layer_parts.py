"""What a layer's time is made of on every lane, in the parts between which work can move.

Attention of split sequences (whose groups meet), attention of whole ones, then linears row by
row: QKV before attention, the output projection and the MLP after it. Seconds of a layer on a
nominal rank, as `slots` adds them up; calls, embedding, head and what tensor parallelism exchanges
stay with the slot and are in none of them.

Source: shares of linears follow the weights (ours); docs/migration.md.
"""

from dataclasses import dataclass

import numpy as np

from hydraplan.cost import AttentionParts, CostModel
from hydraplan.layout import expand
from hydraplan.model import FloatArray, IntArray, Sequences
from hydraplan.slots import buckets

BucketKey = tuple[int, int, int, int]
"""microbatch, first_rank, ulysses_size, ring_size."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerParts:
    """Parts of every slot of a batch, on nominal ranks.

    `whole_s`: attention of unsplit sequences, forward and backward, (2, lanes, microbatches);
    `whole_tokens` their rows, (lanes, microbatches). `is_split`: slots with a member of some group.
    `bucket`: place of each bucket in `attention`. `qkv_s`, `output_s`, `mlp_s`: one row in F, B and
    W, (3,).
    """

    whole_s: FloatArray
    whole_tokens: IntArray
    is_split: IntArray
    bucket: dict[BucketKey, int]
    attention: AttentionParts
    attention_s: FloatArray
    qkv_s: FloatArray
    output_s: FloatArray
    mlp_s: FloatArray


def layer_parts(cost: CostModel, placed: Sequences, num_microbatches: int) -> LayerParts:
    """Parts of every slot; `placed` holds only rows on ranks."""
    bucket, lead = buckets(placed)
    columns = (placed.length_tokens, placed.ulysses_size, placed.ring_size, bucket)
    attention_s = cost.attention_s(*columns)
    shape = (cost.ranks, num_microbatches)
    whole_s, whole_tokens = np.zeros((2, *shape)), np.zeros(shape, np.int64)
    is_whole = placed.degree[lead] == 1
    lone = lead[is_whole]
    where = placed.first_rank[lone], placed.microbatch[lone]
    whole_s[:, where[0], where[1]] = attention_s[:, is_whole]
    unsplit = placed.take(np.flatnonzero(placed.degree == 1))
    np.add.at(whole_tokens, (unsplit.first_rank, unsplit.microbatch), unsplit.length_tokens)
    is_split = np.zeros(shape, np.int64)
    group, member = expand(placed.degree[lead[~is_whole]])
    wide = lead[~is_whole][group]
    is_split[placed.first_rank[wide] + member, placed.microbatch[wide]] = 1
    keys = zip(
        *(
            getattr(placed, name)[lead].tolist()
            for name in ("microbatch", "first_rank", "ulysses_size", "ring_size")
        ),
        strict=True,
    )
    model, fit = cost.model, cost.fit
    weights = {
        "qkv": model.hidden_size * model.head_dim * (model.num_heads + 2 * model.num_kv_heads),
        "output": model.hidden_size * model.head_dim * model.num_heads,
        "mlp": 3 * model.hidden_size * model.ffn_hidden_size,
    }
    assert sum(weights.values()) == model.layer_parameters
    rate = np.array(
        [f.flops_per_s for f in (fit.linear_forward, fit.linear_input, fit.linear_weight)]
    )
    row_s = {name: 2 * count / cost.tp / rate for name, count in weights.items()}
    return LayerParts(
        whole_s=whole_s,
        whole_tokens=whole_tokens,
        is_split=is_split,
        bucket={key: i for i, key in enumerate(keys)},
        attention=cost.attention_parts(*columns),
        attention_s=attention_s,
        qkv_s=row_s["qkv"],
        output_s=row_s["output"],
        mlp_s=row_s["mlp"],
    )
