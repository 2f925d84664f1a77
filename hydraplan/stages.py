"""Cutting a model: its layers into stages and chunks, its heads and widths into tp devices."""

from collections.abc import Sequence

from hydraplan.config import ModelShape
from hydraplan.errors import InputError
from hydraplan.route import RouteName, route


def split_layers(
    num_layers: int,
    num_stages: int,
    num_chunks: int = 1,
    extra_layers: Sequence[float] | None = None,
    route_name: RouteName = "loop",
) -> list[list[int]]:
    """Layers of every [stage][chunk], so that no part is costlier than whole layers make it.

    Every part gets a layer; each further one goes to the lightest part so far, among equals to
    that of the lightest stage, then to the one nearest the middle, since the ends hold the
    embedding and the loss. Our choice.

    Args:
        extra_layers: What each part holds besides, counted in layers, in the order of the model,
            (num_stages * num_chunks,); None for nothing, which splits evenly.
        route_name: The way of the model through the parts, `loop` or `v`.
    """
    parts = num_stages * num_chunks
    if num_layers < parts:
        raise InputError(
            f"{num_layers} layers cannot fill {num_stages} stages x {num_chunks} chunks",
            f"use --pp {num_layers // num_chunks} or fewer",
        )
    nodes, extra = route(route_name, num_stages, num_chunks).nodes(), extra_layers or [0.0] * parts
    counts, held = [1] * parts, [0.0] * num_stages
    for (stage, _), more in zip(nodes, extra, strict=True):
        held[stage] += 1 + more

    def weight(i: int) -> tuple[float, float, int, int]:
        return counts[i] + extra[i], held[nodes[i][0]], abs(2 * i - parts + 1), i

    for _ in range(num_layers - parts):
        lightest = min(range(parts), key=weight)
        counts[lightest] += 1
        held[nodes[lightest][0]] += 1
    found = dict(zip(nodes, counts, strict=True))
    return [[found[s, c] for c in range(num_chunks)] for s in range(num_stages)]


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
