"""The cost model: seconds of forward, input gradient and weight gradient of a sequence.

A layer's time is an attention part, quadratic in length and falling with the degree, its
communication (inner all-to-all, outer ring hops hidden behind compute), and a linear part
proportional to the rows a rank holds. Each call and message adds a fixed time, once for all
sequences that are exchanged together. `CostFit` holds the
coefficients: measured by `hydraplan profile --device cpu|cuda`, or written from a cluster's
constants with `--device analytic`.

Symbols: L tokens, d = u * r (ulysses_size, ring_size), t = L / d rows, h and h_kv heads of
one rank (after tensor parallelism), D head_dim, b bytes an element, ba bytes an accumulator.

Source: causal work, all-to-all and ring volumes are counted from the algorithm (derived);
the saturation n / (n + half_rows) and one fixed time a call are our choice of shape. HyDra
publishes no formula.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, model_validator

from hydraplan.config import (
    ACCUMULATOR_BYTES,
    DTYPE_BYTES,
    MAX_RATE,
    Config,
    Count,
    ModelShape,
    Rate,
    Rows,
    Seconds,
    check_pods,
)
from hydraplan.errors import InputError
from hydraplan.layout import legal_degrees, legal_ulysses
from hydraplan.model import FloatArray, IntArray, Sequences

BACKWARD_FLOPS_RATIO = 2.5
"""Attention backward over forward: five matrix products to two (scores are recomputed)."""

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 0, 1, 2
"""First index of every array of op times."""


class RateFit(Config):
    """seconds = call_s + flops / flops_per_s * (1 + half_rows / rows of the call).

    Attention kernels skip masked keys in whole blocks, so a causal square takes
    `causal_waste(rows, causal_block_rows)` times its exact flops.
    """

    call_s: Seconds
    flops_per_s: Rate
    half_rows: Rows = 0.0
    causal_block_rows: Rows = 0.0
    relative_error: NonNegativeFloat = 0.0


class LinkFit(Config):
    """seconds = latency_s + bytes / bytes_per_s."""

    bytes_per_s: Rate
    latency_s: Seconds
    relative_error: NonNegativeFloat = 0.0


class CostFit(Config):
    """Fitted coefficients of one device and its links.

    `linear_*` are one decoder layer's matrices together with all element-wise work, per
    microbatch. `segments_in_one_call` tells whether the kernel takes all packed sequences in
    one call (CUDA varlen) or one call each (CPU). `pod_p2p` links devices in different pods,
    where the fabric has such a third tier. `relative_error` is the median of
    |fit - measured| / measured over the points fitted on, 0 if analytic.
    """

    attention_forward: RateFit
    attention_backward: RateFit
    linear_forward: RateFit
    linear_input: RateFit
    linear_weight: RateFit
    memory_bytes_per_s: Rate
    node_all_to_all: LinkFit
    node_p2p: LinkFit
    fabric_all_to_all: LinkFit
    fabric_p2p: LinkFit
    devices_per_node: Count
    segments_in_one_call: bool = Field(default=True)
    pod_p2p: LinkFit | None = None
    devices_per_pod: Count | None = None

    @model_validator(mode="after")
    def _pods_hold_nodes(self) -> Self:
        check_pods(self.devices_per_node, self.devices_per_pod, self.pod_p2p)
        return self


def _exchanges(
    bucket: IntArray | None, num_sequences: int
) -> tuple[IntArray | slice, Callable[[FloatArray], FloatArray]]:
    """One sequence of every bucket, and the sum over each; every sequence its own if None."""
    if bucket is None:
        return slice(num_sequences), lambda values: values
    first = np.unique(bucket, return_index=True)[1]
    return first, lambda values: np.bincount(bucket, values, len(first)).astype(float)


def causal_waste(rows: FloatArray, block_rows: float) -> FloatArray:
    """Work of a causal square over its exact work, at least 1; 1 everywhere if block_rows is 0.

    Row i computes all keys of its block instead of i + 1, half a block more on average, and
    never more than the whole square: min(n * n, n * (n + block) / 2) pairs for n rows.
    """
    result: FloatArray = np.maximum(1.0, np.minimum(2 * rows, rows + block_rows) / (rows + 1))
    return result


def split_layers(num_layers: int, num_stages: int, num_chunks: int = 1) -> list[list[int]]:
    """Layers of every [stage][chunk], as even as whole layers allow.

    The first and the last stage also hold the embedding and the loss, so extra layers go to
    the middle first. Our choice.
    """
    parts = num_stages * num_chunks
    if num_layers < parts:
        raise InputError(
            f"{num_layers} layers cannot fill {num_stages} stages x {num_chunks} chunks",
            f"use --pp {num_layers // num_chunks} or fewer",
        )
    base, extra = divmod(num_layers, parts)
    middle_first = sorted(range(parts), key=lambda i: (abs(2 * i - parts + 1), i))
    counts = [base] * parts
    for i in middle_first[:extra]:
        counts[i] += 1
    return [[counts[c * num_stages + s] for c in range(num_chunks)] for s in range(num_stages)]


@dataclass(frozen=True)
class CostModel:
    """Coefficients applied to one model cut into stages.

    `layers[stage][chunk]` counts decoder layers; the first chunk of stage 0 adds the
    embedding, the last chunk of the last stage the final norm, head and loss. Engine "ring"
    knows no inner groups. `rank_speed` has a factor a lane, None where all are nominal; all
    seconds here are those of a nominal rank; `slots` multiplies those of a lane by `slow`.
    """

    fit: CostFit
    model: ModelShape
    tp: int
    pp: int
    ranks: int
    layers: tuple[tuple[int, ...], ...]
    engine: Literal["nested", "ring"] = "nested"
    rank_speed: tuple[float, ...] | None = None

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
    def node_ranks(self) -> int:
        """Largest power of two of ranks whose aligned blocks, halves included, stay in a node."""
        size = 1
        while 2 * size <= self.ranks and self._stay_inside(self.fit.devices_per_node, 2 * size):
            size *= 2
        return size

    def _stay_inside(self, devices: int, degree: int) -> bool:
        """Whether no aligned block of `degree` ranks of any stage lies in two runs of `devices`.

        Blocks start at multiples of their size inside a pool, pools at multiples of
        ranks * tp devices, nodes and pods at multiples of their own size.
        """
        size = degree * self.tp
        pools = np.arange(self.pp, dtype=np.int64) * self.ranks * self.tp
        blocks = np.arange(self.ranks // degree, dtype=np.int64) * size
        first = np.add.outer(np.unique(pools % devices), np.unique(blocks % devices)) % devices
        return bool((first + size <= devices).all())

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

        Args:
            bucket: Number (0, 1, ...) of the exchange each sequence takes part in: sequences on
                the same lanes in the same way share all-to-alls, hops and, where the kernel
                takes them in one call, calls. None: each sequence by itself, which is an upper
                bound of its share.

        Returns:
            Shape (2, num_buckets); every member of a group takes the same time.
        """
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
        times = []
        for rate, ratio, hop, home in (
            (self.fit.attention_forward, 1.0, hop_forward, 0.0),
            (self.fit.attention_backward, BACKWARD_FLOPS_RATIO, hop_backward, hop_home),
        ):
            work_s = ratio * flops / r / rate.flops_per_s * (1 + rate.half_rows / call_rows)
            square_s = summed(work_s * causal_waste(length / r, rate.causal_block_rows))
            step_s = summed(work_s) + calls * rate.call_s
            ring = square_s + calls * rate.call_s + hops * np.maximum(step_s, hop)
            times.append(ring + np.where(hops > 0, home, 0.0) + all_to_all_s)
        return np.stack(times)

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
        """Rate (bytes/s) and latency (s) of the ring hops of each level's groups, (2, levels).

        Members hop together, so the slowest pair of any group of that degree counts.
        """
        links = [self._link_within(int(degree)) for degree in legal_degrees(self.ranks)]
        return np.array([[x.bytes_per_s for x in links], [x.latency_s for x in links]])

    def _link_within(self, degree: int) -> LinkFit:
        """Point-to-point link between the members of an aligned block of `degree` ranks."""
        return self._link(lambda devices: self._stay_inside(devices, degree))

    def _link(self, fits_in: Callable[[int], bool]) -> LinkFit:
        """Point-to-point link of those that `fits_in` a node, or a pod, of so many devices."""
        fit = self.fit
        if fits_in(fit.devices_per_node):
            return fit.node_p2p
        if fit.pod_p2p is None or fit.devices_per_pod is None or fits_in(fit.devices_per_pod):
            return fit.fabric_p2p
        return fit.pod_p2p

    @cached_property
    def row_s(self) -> FloatArray:
        """Seconds one row adds to each op of each chunk's linear work, (3, stages, chunks)."""
        flops = 2 * self.model.layer_parameters / self.tp
        fits = (self.fit.linear_forward, self.fit.linear_input, self.fit.linear_weight)
        per_layer = np.array([flops / fit.flops_per_s for fit in fits])
        per_layer[:2] += self._tensor_parallel_row_s
        times: FloatArray = per_layer[:, None, None] * np.array(self.layers, float)[None]
        moved = self.model.hidden_size * self.element_bytes / self.fit.memory_bytes_per_s
        times[FORWARD, 0, 0] += 2 * moved
        times[WEIGHT_GRADIENT, 0, 0] += 3 * moved
        head = 2 * self.model.hidden_size * self.model.vocab_size / self.tp
        logits = 4 * self.model.vocab_size / self.tp / self.fit.memory_bytes_per_s
        times[:, -1, -1] += [head / fit.flops_per_s for fit in fits]
        times[FORWARD, -1, -1] += 3 * logits
        times[INPUT_GRADIENT, -1, -1] += 3 * logits
        return times

    @cached_property
    def _tensor_parallel_row_s(self) -> float:
        """Gather and scatter of one row around attention and MLP, sequence parallelism on."""
        share = (self.tp - 1) / self.tp
        moved = 4 * share * self.model.hidden_size * self.element_bytes
        return moved / self._tensor_parallel_link.bytes_per_s

    @property
    def _tensor_parallel_link(self) -> LinkFit:
        """Link between the devices of a rank, of the fabric if some rank lies on two nodes."""
        inside = self._stay_inside(self.fit.devices_per_node, 1)
        return self.fit.node_all_to_all if inside else self.fit.fabric_all_to_all

    @cached_property
    def call_s(self) -> FloatArray:
        """Fixed seconds of each op of each chunk, rows or not, shape (3, stages, chunks)."""
        fits = (self.fit.linear_forward, self.fit.linear_input, self.fit.linear_weight)
        per_layer = np.array([fit.call_s for fit in fits])
        if self.fit.segments_in_one_call:
            per_layer[FORWARD] += self.fit.attention_forward.call_s
            per_layer[INPUT_GRADIENT] += self.fit.attention_backward.call_s
        if self.tp > 1:
            per_layer[:2] += 4 * self._tensor_parallel_link.latency_s
        fixed: FloatArray = per_layer[:, None, None] * np.array(self.layers, float)[None]
        fixed[:, -1, -1] += [fit.call_s for fit in fits]
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
        self, length_tokens: IntArray, ulysses_size: IntArray, ring_size: IntArray
    ) -> FloatArray:
        """Seconds each sequence adds to a member's ops, shape (3, stages, num_sequences).

        Chunks are summed; rows are the mean L / d, fixed call times are not included.
        """
        attention = self.attention_s(length_tokens, ulysses_size, ring_size)
        rows = length_tokens / (ulysses_size * ring_size)
        layers = np.array(self.layers, float).sum(axis=1)
        times: FloatArray = self.row_s.sum(axis=2)[:, :, None] * rows
        times[:2] += layers[None, :, None] * attention[:, None, :]
        return times

    def sent_bytes(self, placed: Sequences) -> FloatArray:
        """Bytes the members of each sequence's group send in one step, (num_sequences,).

        All layers, forward and backward, summed over members; counted from actual rows, since
        the members' rows add up to the length. Zero at degree 1.
        """
        u, r = placed.ulysses_size.astype(float), placed.ring_size.astype(float)
        kv_heads = np.maximum(self.num_kv_heads, u)
        row_elements = placed.length_tokens * float(self.model.head_dim)
        accumulator = ACCUMULATOR_BYTES[self.model.dtype]
        inner = 2 * self.element_bytes * (u - 1) / u * 2 * (self.num_heads + kv_heads)
        hops = (
            2 * kv_heads * (2 * self.element_bytes * (r - 1) + accumulator * np.where(r > 1, r, 0))
        )
        result: FloatArray = self.tp * self.model.num_layers * row_elements * (inner + hops)
        return result

    def boundary_s(self, rows: FloatArray) -> FloatArray:
        """Seconds to hand `rows` rows of activations to the next stage, over the slowest link."""
        link = self._link(lambda devices: self.tp * self.ranks * self.pp <= devices)
        moved = rows * self.model.hidden_size * self.element_bytes / self.tp
        result: FloatArray = link.latency_s + moved / link.bytes_per_s
        return result

    @cached_property
    def grad_sync_s(self) -> FloatArray:
        """Exposed all-reduce of each stage's gradients over its pool, shape (stages,).

        A ring all-reduce in accumulator precision after the last backward, as the executor
        does it.
        """
        if self.ranks == 1:
            return np.zeros(self.pp)
        link = self._link_within(self.ranks)
        parameters = np.array(self.layers, float).sum(axis=1) * self.model.layer_parameters
        parameters[0] += self.model.vocab_size * self.model.hidden_size
        parameters[-1] += self.model.vocab_size * self.model.hidden_size
        moved = 2 * (self.ranks - 1) / self.ranks * parameters / self.tp
        moved *= ACCUMULATOR_BYTES[self.model.dtype]
        result: FloatArray = moved / link.bytes_per_s + 2 * (self.ranks - 1) * link.latency_s
        return result


def check_tensor_parallel(model: ModelShape, tp: int, devices_per_node: int) -> None:
    """Refuse a tensor-parallel size that leaves the node or does not divide heads and widths."""
    if tp > devices_per_node:
        raise InputError(f"tp {tp} exceeds the {devices_per_node} devices of a node")
    sizes = {
        "num_heads": model.num_heads,
        "ffn_hidden_size": model.ffn_hidden_size,
        "vocab_size": model.vocab_size,
    }
    for name, size in sizes.items():
        if size % tp:
            raise InputError(f"tp {tp} does not divide {name} {size} of model {model.name}")
    if model.num_kv_heads % tp and tp % model.num_kv_heads:
        raise InputError(
            f"tp {tp} neither divides num_kv_heads {model.num_kv_heads} of model {model.name}"
            " nor is a multiple of it"
        )
