"""The cost model: seconds of forward, input gradient and weight gradient of a sequence.

A layer's time is an attention part, quadratic in length and falling with the degree, its
communication (inner all-to-all, outer ring hops hidden behind compute), and a linear part
proportional to the rows a rank holds. Each call and message adds a fixed time, once for all
sequences that are exchanged together. The coefficients are those of `hydraplan.costfit`; what
a plan sends between stages and at its end is in `hydraplan.traffic`.

Symbols: L tokens, d = u * r (ulysses_size, ring_size), t = L / d rows, h and h_kv heads of
one rank (after tensor parallelism), D head_dim, b bytes an element, ba bytes an accumulator.

Source: causal work, all-to-all and ring volumes are counted from the algorithm (derived);
HyDra publishes no formula.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from hydraplan.activations import Recompute
from hydraplan.config import ACCUMULATOR_BYTES, DTYPE_BYTES, MAX_RATE, ModelShape
from hydraplan.costfit import CostFit, LinkFit, causal_waste
from hydraplan.ends import embedding_s, loss_s
from hydraplan.layout import legal_degrees, legal_ulysses
from hydraplan.model import FloatArray, IntArray
from hydraplan.route import Route, RouteName, route
from hydraplan.topology import World, group_link, node_ranks, rank_link

BACKWARD_FLOPS_RATIO = 2.5
"""Attention backward over forward: five matrix products to two (scores are recomputed)."""

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 0, 1, 2
"""First index of every array of op times."""


class AttentionParts(NamedTuple):
    """Seconds of one layer's attention, shape (2, buckets), forward and backward.

    `own_s`: the ring step on a member's own keys. `step_s`: one on the keys of another, and there
    are `hops` of these, each beside a hop of `hop_s`. `home_s`: gradients of keys on their way
    home. `exchange_s`: both all-to-alls, (buckets,).
    """

    own_s: FloatArray
    step_s: FloatArray
    hop_s: FloatArray
    home_s: FloatArray
    exchange_s: FloatArray
    hops: FloatArray


@dataclass(frozen=True)
class CostModel:
    """Coefficients applied to one model cut into stages.

    `layers[stage][chunk]` counts decoder layers; where the route begins the embedding is added,
    where it ends the final norm, head and loss. Engine "ring" knows no inner groups.
    `rank_speed` has a factor a lane, None where all are nominal; all seconds here are those of a
    nominal rank; `slots` multiplies those of a lane by `slow`. `recompute`: what B makes again is
    part of it.
    """

    fit: CostFit
    model: ModelShape
    tp: int
    pp: int
    ranks: int
    layers: tuple[tuple[int, ...], ...]
    engine: Literal["nested", "ring"] = "nested"
    rank_speed: tuple[float, ...] | None = None
    route_name: RouteName = "loop"
    recompute: Recompute = "none"

    @property
    def route(self) -> Route:
        """The way of a microbatch through all chunks."""
        return route(self.route_name, self.pp, len(self.layers[0]))

    @cached_property
    def num_heads(self) -> int:
        """Query heads of one rank."""
        return self.model.num_heads // self.tp

    @cached_property
    def num_kv_heads(self) -> int:
        """KV heads of one rank; replicated, never below one."""
        return max(1, self.model.num_kv_heads // self.tp)

    @cached_property
    def slow(self) -> FloatArray:
        """What an op takes on each lane over what it takes on a nominal one, shape (ranks,)."""
        return np.ones(self.ranks) if self.rank_speed is None else 1 / np.array(self.rank_speed)

    @cached_property
    def pool_speed(self) -> float:
        """What all lanes do at once, in nominal lanes: the pool's size if none is slow."""
        return float((1 / self.slow).sum())

    @property
    def mean_slow(self) -> float:
        """What a load takes on average over what it takes on nominal lanes, if spread evenly."""
        return self.ranks / self.pool_speed

    @property
    def world(self) -> World:
        """The sizes that give every device its number."""
        return World(self.tp, self.pp, self.ranks)

    @cached_property
    def node_ranks(self) -> int:
        """Largest inner group that never leaves a node, in ranks."""
        return node_ranks(self.world, self.fit.devices_per_node)

    @cached_property
    def element_bytes(self) -> int:
        """Bytes of one activation element."""
        return DTYPE_BYTES[self.model.dtype]

    def shapes(self, degree: int) -> list[tuple[int, int]]:
        """Legal (ulysses_size, ring_size) of a degree: inner groups stay inside a node.

        An inner group starts at a multiple of its size, so it has to divide the degree.
        """
        limit = 1 if self.engine == "ring" else min(degree, self.node_ranks)
        sizes = legal_ulysses(self.num_heads, self.num_kv_heads, limit)
        return [(u, degree // u) for u in sizes if degree % u == 0]

    def attention_s(
        self,
        length_tokens: IntArray,
        ulysses_size: IntArray,
        ring_size: IntArray,
        bucket: IntArray | None = None,
    ) -> FloatArray:
        """Forward and backward seconds of one layer's attention with its communication.

        Backward includes the forward that is made again under `recompute` full.

        Args:
            bucket: Number (0, 1, ...) of the exchange each sequence takes part in: sequences on
                the same lanes in the same way share all-to-alls, hops and, where the kernel
                takes them in one call, calls. None: each sequence by itself, which is an upper
                bound of its share.

        Returns:
            Shape (2, num_buckets); every member of a group takes the same time.
        """
        parts = self.attention_parts(length_tokens, ulysses_size, ring_size, bucket)
        hidden = np.maximum(parts.step_s, parts.hop_s)
        times: FloatArray = parts.own_s + parts.hops * hidden + parts.home_s + parts.exchange_s
        if self.recompute == "full":
            times[1] = times[1] + times[0]
        return times

    def attention_parts(
        self,
        length_tokens: IntArray,
        ulysses_size: IntArray,
        ring_size: IntArray,
        bucket: IntArray | None = None,
    ) -> "AttentionParts":
        """What `attention_s` adds up, without what `recompute` makes again; arguments as there."""
        first, summed = _exchanges(bucket, len(length_tokens))

        u, r = ulysses_size.astype(float), ring_size.astype(float)
        degree = ulysses_size * ring_size
        length = length_tokens.astype(float)
        flops = 4 * length * (length + 1) / 2 * self.num_heads * self.model.head_dim / degree
        call_rows = np.maximum(1.0, np.where(ring_size > 1, length / (2 * r), length))
        rows = summed(length / degree)
        calls = np.where(degree[first] > 1, 1.0, 0.0)
        if not self.fit.segments_in_one_call:
            calls = summed(np.ones(len(length)))
        all_to_all_s = self._all_to_all_s(rows, u[first])
        hop_forward, hop_backward, hop_home = self._hops_s(rows, u[first], degree[first])
        hops = r[first] - 1
        own_s, each_s, home_s = [], [], []
        for rate, ratio, home in (
            (self.fit.attention_forward, 1.0, 0.0),
            (self.fit.attention_backward, BACKWARD_FLOPS_RATIO, hop_home),
        ):
            work_s = ratio * flops / r / rate.flops_per_s * rate.slowness(call_rows)
            square_s = summed(work_s * causal_waste(length / r, rate.causal_block_rows))
            own_s.append(square_s + calls * rate.call_s)
            each_s.append(summed(work_s) + calls * rate.call_s)
            home_s.append(np.where(hops > 0, home, 0.0))
        hop_s = np.stack([hop_forward, hop_backward])
        parts = (np.stack(own_s), np.stack(each_s), hop_s, np.stack(home_s))
        return AttentionParts(*parts, all_to_all_s, hops)

    def _all_to_all_s(self, rows: FloatArray, u: FloatArray) -> FloatArray:
        """Both all-to-alls of one direction: q, k, v in and o out, or their gradients."""
        kv_heads = np.maximum(self.num_kv_heads, u)
        elements = rows * self.model.head_dim * (u - 1) / u * 2 * (self.num_heads + kv_heads)
        link = self.fit.node_all_to_all
        seconds = elements * self.element_bytes / link.bytes_per_s + 2 * link.latency_s
        return np.where(u > 1, seconds, 0.0)

    def _hops_s(
        self, rows: FloatArray, u: FloatArray, degree: IntArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """One ring hop forward, one backward (keys, values and their gradients), the one home."""
        accumulator = ACCUMULATOR_BYTES[self.model.dtype]
        elements = 2 * rows * self.model.head_dim * np.maximum(self.num_kv_heads, u)
        per_s, latency = self._hop_links[:, np.searchsorted(legal_degrees(self.ranks), degree)]
        forward = elements * self.element_bytes / per_s + latency
        backward = elements * (self.element_bytes + accumulator) / per_s + latency
        home = elements * accumulator / per_s + latency
        return forward, backward, home

    @cached_property
    def _hop_links(self) -> FloatArray:
        """Rate (bytes/s) and latency (s) of the ring hops of each level's groups, (2, levels)."""
        links = [group_link(self.fit, self.world, int(d)) for d in legal_degrees(self.ranks)]
        return np.array([[x.bytes_per_s for x in links], [x.latency_s for x in links]])

    @cached_property
    def row_s(self) -> FloatArray:
        """Seconds one row adds to each op of each chunk's linear work, (3, stages, chunks)."""
        flops = 2 * self.model.layer_parameters / self.tp
        fits = (self.fit.linear_forward, self.fit.linear_input, self.fit.linear_weight)
        per_layer = np.array([flops / fit.flops_per_s for fit in fits])
        per_layer[:2] += self._tensor_parallel_row_s
        per_layer[INPUT_GRADIENT] += self._remade_row_s(float(per_layer[FORWARD]))
        times: FloatArray = per_layer[:, None, None] * np.array(self.layers, float)[None]
        begins, ends = self.route.ends()
        for stage, chunk in begins:
            times[:, stage, chunk] += embedding_s(self.fit, self.model)[0]
        for stage, chunk in ends:
            times[:, stage, chunk] += loss_s(self.fit, self.model, self.tp)[0]
        return times

    def _remade_row_s(self, forward_s: float) -> float:
        """What B makes again of a row in one layer: all of F, or what F reads and writes of it.

        Selective: two norms and SwiGLU's product move 4 C + 3 F elements at least.
        """
        if self.recompute == "full":
            return forward_s
        if self.recompute == "none":
            return 0.0
        moved = 4 * self.model.hidden_size + 3 * self.model.ffn_hidden_size
        return moved * self.element_bytes / self.tp / self.fit.memory_bytes_per_s

    @cached_property
    def _tensor_parallel_row_s(self) -> float:
        """Gather and scatter of one row around attention and MLP, sequence parallelism on."""
        share = (self.tp - 1) / self.tp
        moved = 4 * share * self.model.hidden_size * self.element_bytes
        return moved / rank_link(self.fit, self.world).bytes_per_s

    @cached_property
    def call_s(self) -> FloatArray:
        """Fixed seconds of each op of each chunk, rows or not, shape (3, stages, chunks)."""
        fits = (self.fit.linear_forward, self.fit.linear_input, self.fit.linear_weight)
        per_layer = np.array([fit.call_s for fit in fits])
        if self.fit.segments_in_one_call:
            per_layer[FORWARD] += self.fit.attention_forward.call_s
            per_layer[INPUT_GRADIENT] += self.fit.attention_backward.call_s
        if self.tp > 1:
            per_layer[:2] += 4 * rank_link(self.fit, self.world).latency_s
        if self.recompute == "full":
            per_layer[INPUT_GRADIENT] += per_layer[FORWARD]
        fixed: FloatArray = per_layer[:, None, None] * np.array(self.layers, float)[None]
        begins, ends = self.route.ends()
        for stage, chunk in begins:
            fixed[:, stage, chunk] += embedding_s(self.fit, self.model)[1]
        for stage, chunk in ends:
            fixed[:, stage, chunk] += loss_s(self.fit, self.model, self.tp)[1]
        return fixed

    @cached_property
    def least(self) -> "CostModel":
        """What a sequence adds at the very least, sharing its exchanges with others.

        No call and no latency is its own, and hops hide behind compute. Sums of these never
        exceed what a bucket costs, as a lower bound needs.
        """
        free = LinkFit(bytes_per_s=MAX_RATE, latency_s=0.0)
        fit = self.fit
        return replace(
            self,
            fit=fit.model_copy(
                update={
                    "attention_forward": fit.attention_forward.model_copy(update={"call_s": 0.0}),
                    "attention_backward": fit.attention_backward.model_copy(update={"call_s": 0.0}),
                    "node_all_to_all": fit.node_all_to_all.model_copy(update={"latency_s": 0.0}),
                    "node_p2p": free,
                    "fabric_p2p": free,
                    "pod_p2p": None if fit.pod_p2p is None else free,
                }
            ),
        )

    def sequence_s(
        self,
        length_tokens: IntArray,
        ulysses_size: IntArray,
        ring_size: IntArray,
        num_chunks: int | None = None,
    ) -> FloatArray:
        """Seconds each sequence adds to a member's ops, shape (3, stages, num_sequences).

        The first `num_chunks` of each stage are summed, None for all; rows are the mean L / d,
        fixed call times are not included.
        """
        attention = self.attention_s(length_tokens, ulysses_size, ring_size)
        rows = length_tokens / (ulysses_size * ring_size)
        layers = np.array(self.layers, float)[:, :num_chunks].sum(axis=1)
        times: FloatArray = self.row_s[..., :num_chunks].sum(axis=2)[:, :, None] * rows
        times[:2] += layers[None, :, None] * attention[:, None, :]
        return times


def _exchanges(
    bucket: IntArray | None, num_sequences: int
) -> tuple[IntArray | slice, Callable[[FloatArray], FloatArray]]:
    """One sequence of every bucket, and the sum over each; every sequence its own if None."""
    if bucket is None:
        return slice(num_sequences), lambda values: values
    first = np.unique(bucket, return_index=True)[1]
    return first, lambda values: np.bincount(bucket, values, len(first)).astype(float)
