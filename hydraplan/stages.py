"""Cutting a model: its layers into stages and chunks, its heads and widths into tp devices."""

from hydraplan.config import ModelShape
from hydraplan.errors import InputError


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
