"""The model of a Hugging Face `config.json`, or a refusal that names the field.

Families whose matrices are those of `ModelShape`, or do the same products: Llama, Mistral, Qwen2
and Qwen3 (dense), GPT-NeoX, GPT-2. What would make a cost wrong is refused by field: latent
attention, experts, windows that cut attention, dropout, quantised weights. What leaves costs as
they are (positions, norms, biases, token ids) is passed over; what is costed by a stand-in, and
fields that are not known here, are told in notes. Weights are never read, and nothing is run.

Source: field names and what a missing field means are those of the transformers library.
"""

import json
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ConfigDict, ValidationError

from hydraplan.config import (
    UNSUPPORTED,
    Config,
    Count,
    DType,
    ModelShape,
    builtin_names,
    load_model,
    validation_text,
)
from hydraplan.errors import InputError

FILE = "config.json"
MOST_BYTES = 1 << 20
"""Genuine files have about a thousand bytes."""

FFN_MULTIPLE = 8
"""The stand-in of a two-matrix MLP is rounded up to it, so that tensor parallelism can cut it."""

REFUSED = {
    "kv_lora_rank": UNSUPPORTED["kv_lora_rank"],
    "q_lora_rank": UNSUPPORTED["q_lora_rank"],
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts"), UNSUPPORTED["num_experts"]
    ),
    **dict.fromkeys(
        ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop"),
        UNSUPPORTED["attention_dropout"],
    ),
    **dict.fromkeys(
        ("hidden_dropout", "hidden_dropout_prob", "resid_pdrop", "embd_pdrop"), "dropout"
    ),
    "attention_chunk_size": "attention inside chunks",
    "quantization_config": "quantised weights",
    "text_config": "a model of several parts, of which this file describes one inside another",
    "is_encoder_decoder": "an encoder",
    "add_cross_attention": "cross-attention",
    "num_nextn_predict_layers": "prediction of several tokens at once",
    "auto_map": "a model by code of its own",
}
"""Fields that change what a layer costs, unless null, false, 0 or empty."""

PASSED_OVER = {
    "architectures", "model_type", "transformers_version", "_name_or_path", "use_cache",
    "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
    "max_position_embeddings", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon",
    "rope_theta", "rope_scaling", "rope_parameters", "rotary_pct", "rotary_emb_base",
    "partial_rotary_factor", "use_mrope", "attention_bias", "mlp_bias", "pretraining_tp",
    "use_parallel_residual", "classifier_dropout", "n_positions", "n_ctx", "n_special",
    "predict_special_tokens", "output_past", "task_specific_params", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn",
    "gradient_checkpointing", "sliding_window", "use_sliding_window", "max_window_layers",
    "layer_types",
}  # fmt: skip
"""Fields without a say in costs, or looked at elsewhere in this file."""


class _File(Config):
    """What all families have; fields of no interest are ignored."""

    model_config = ConfigDict(extra="ignore")

    vocab_size: Count
    torch_dtype: DType | None = None
    dtype: DType | None = None
    tie_word_embeddings: bool = False


class _Gated(_File):
    """Llama, Mistral, Qwen: RMSNorm, RoPE, grouped queries and SwiGLU, as `ModelShape`."""

    num_hidden_layers: Count
    hidden_size: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: Count
    hidden_act: Literal["silu"] = "silu"


class _NeoX(_File):
    """GPT-NeoX: every query head has its key, the MLP two matrices."""

    num_hidden_layers: Count
    hidden_size: Count
    num_attention_heads: Count
    intermediate_size: Count
    hidden_act: str = "gelu"

    @property
    def mlp_width(self) -> int:
        """Between the two matrices."""
        return self.intermediate_size


class _Gpt2(_File):
    """GPT-2: as GPT-NeoX, under names of its own."""

    n_layer: Count
    n_embd: Count
    n_head: Count
    n_inner: Count | None = None
    activation_function: str = "gelu_new"
    tie_word_embeddings: bool = True

    @property
    def mlp_width(self) -> int:
        """Between the two matrices; null stands for four times the hidden size."""
        return self.n_inner or 4 * self.n_embd


FAMILIES: dict[str, tuple[type[_File], tuple[str, ...], str]] = {
    "llama": (_Gated, (), ""),
    "mistral": (_Gated, ("num_key_value_heads",), ""),
    "qwen2": (_Gated, ("num_key_value_heads",), "biases of q, k and v"),
    "qwen3": (_Gated, ("num_key_value_heads", "head_dim"), "norms of q and k"),
    "gpt_neox": (_NeoX, (), "biases, LayerNorm for RMSNorm, parallel residual"),
    "gpt2": (_Gpt2, (), "biases, LayerNorm for RMSNorm, learned positions"),
}
"""By `model_type`: the fields; those that must be there, since left out they mean a number that is
not the model's; what the costed model is without."""


class DescribedModel(NamedTuple):
    """A model and what people should know of how its file was taken, a line each."""

    shape: ModelShape
    notes: tuple[str, ...]


def find_model(name: str) -> DescribedModel:
    """The built-in model, the TOML file, or the `config.json` (or its folder) of that name.

    Raises:
        InputError: There is no such file, a field is wrong, or asks for what is not supported.
    """
    path = Path(name)
    if name not in builtin_names("model") and (path.is_dir() or path.suffix == ".json"):
        return read_config(path)
    return DescribedModel(load_model(name), ())


def read_config(path: Path) -> DescribedModel:
    """The model of a Hugging Face `config.json`, or of the folder that holds one.

    Raises:
        InputError: Names the file, the field and its value.
    """
    folder = path.is_dir()
    path = path / FILE if folder else path
    if not path.is_file():
        raise InputError(
            f"model folder {path.parent} holds no {FILE}" if folder else f"{path} is no file",
            f"give a {FILE}, the folder that holds it, a TOML file, or one of"
            f" {', '.join(builtin_names('model'))}",
        )
    values = _read_json(path)
    _refuse_unsupported(path, values)
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise InputError(
            f"model file {path}: model_type {kind!r:.60} is not one that can be costed",
            f"known: {', '.join(FAMILIES)}; or write its shape into a TOML file",
        )
    form, needed, without = FAMILIES[kind]
    for key in needed:
        if values.get(key) is None:
            raise InputError(f"model file {path}: {key}: is missing")
    try:
        read = form.model_validate(values)
        stem = path.resolve().parent.name if path.name == FILE else path.stem
        shape = ModelShape(name=stem or kind, dtype=_dtype(read), **_sizes(read))
    except ValidationError as error:
        raise InputError(f"model file {path}: {validation_text(error)}") from None
    except ValueError as error:
        raise InputError(f"model file {path}: {error}") from None
    window = _window_note(path, kind, values, shape.num_layers)
    notes = (window, _mlp_note(read, shape), *_other_notes(read, without, values.keys()))
    return DescribedModel(shape, tuple(f"{path}: {note}" for note in notes if note))


def _read_json(path: Path) -> dict[str, object]:
    """The object in the file; a key that stands twice, NaN and infinity are refused."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise InputError(f"model file {path} has {size:,} bytes, at most {MOST_BYTES:,} are read")
    try:
        values = json.loads(
            path.read_text(encoding="utf-8"), object_pairs_hook=_once, parse_constant=_no_number
        )
    except RecursionError:
        raise InputError(f"model file {path} is nested too deeply") from None
    except ValueError as error:  # of the text, of JSON, or a number of thousands of digits
        raise InputError(f"model file {path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"model file {path} holds no JSON object but {type(values).__name__}")
    return values


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"{twice!r:.60} stands twice")
    return values


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _refuse_unsupported(path: Path, values: dict[str, object]) -> None:
    for key, meaning in REFUSED.items():
        if values.get(key):
            hint = "it was trained with it; set it to 0 in a copy if you train without"
            raise InputError(
                f"model file {path}: {key} {values[key]!r:.60} asks for {meaning}, not supported",
                hint if "dropout" in meaning else "take a model that does without",
            )
    types = values.get("layer_types")
    if types is not None and (
        not isinstance(types, list) or any(kind != "full_attention" for kind in types)
    ):
        raise InputError(
            f"model file {path}: layer_types {types!r:.60} asks for layers that attend to less than"
            " all tokens before, not supported"
        )


def _window_note(path: Path, kind: str, values: dict[str, object], num_layers: int) -> str:
    """What to say of a sliding window that cuts nothing; one that does is refused.

    Qwen windows the layers from `max_window_layers` on, and only if `use_sliding_window` is set.
    """
    window = values.get("sliding_window")
    if kind.startswith("qwen"):
        first = values.get("max_window_layers")
        all_full = isinstance(first, int) and first >= num_layers
        if window is None or not values.get("use_sliding_window") or all_full:
            return ""
    positions = values.get("max_position_embeddings")
    if window is None:
        return ""
    if isinstance(window, int) and isinstance(positions, int) and window >= positions:
        return f"sliding_window {window} is all of max_position_embeddings: attention is full"
    raise InputError(
        f"model file {path}: sliding_window {window!r:.60} asks for"
        f" {UNSUPPORTED['sliding_window']}, not supported",
        "set it to null in a copy if you train with full attention",
    )


def _other_notes(read: _File, without: str, keys: Set[str]) -> Iterator[str]:
    if without:
        yield f"costed without {without}: they are no matrix products"
    if read.tie_word_embeddings:
        yield "tie_word_embeddings: embedding and head are costed as two matrices"
    if read.dtype is None and read.torch_dtype is None:
        yield f"no torch_dtype in the file: {_dtype(read)} is assumed"
    unknown = keys - PASSED_OVER - type(read).model_fields.keys() - REFUSED.keys()
    if unknown:
        yield f"not known here, so without effect: {', '.join(sorted(unknown)):.200}"


def _dtype(read: _File) -> DType:
    if read.dtype is not None and read.torch_dtype not in (None, read.dtype):
        raise ValueError(f"dtype {read.dtype} and torch_dtype {read.torch_dtype} differ")
    return read.dtype or read.torch_dtype or "bfloat16"


def _sizes(read: _File) -> dict[str, int]:
    """The numbers of `ModelShape`."""
    match read:
        case _Gated():
            head = read.head_dim or _head_dim(read.hidden_size, read.num_attention_heads)
            layers, hidden = read.num_hidden_layers, read.hidden_size
            heads, ffn = read.num_attention_heads, read.intermediate_size
            kv_heads = read.num_key_value_heads or heads
        case _NeoX():
            layers, hidden = read.num_hidden_layers, read.hidden_size
            heads = kv_heads = read.num_attention_heads
            head, ffn = _head_dim(hidden, heads), _three_matrices(read.mlp_width)
        case _Gpt2():
            layers, hidden, heads, kv_heads = read.n_layer, read.n_embd, read.n_head, read.n_head
            head, ffn = _head_dim(hidden, heads), _three_matrices(read.mlp_width)
        case _:
            raise AssertionError(type(read))
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head,
        "ffn_hidden_size": ffn,
        "vocab_size": read.vocab_size,
    }


def _head_dim(hidden_size: int, num_heads: int) -> int:
    if hidden_size % num_heads:
        raise ValueError(f"hidden size {hidden_size} is not a multiple of its {num_heads} heads")
    return hidden_size // num_heads


def _three_matrices(width: int) -> int:
    """Width at which three matrices do the products of two of `width`, rounded up."""
    return -(-2 * width // (3 * FFN_MULTIPLE)) * FFN_MULTIPLE


def _mlp_note(read: _File, shape: ModelShape) -> str:
    """How an MLP of two matrices is costed. SwiGLU keeps 4 F of a row, the other two widths."""
    if not isinstance(read, _NeoX | _Gpt2):
        return ""
    more = 3 * shape.ffn_hidden_size / (2 * read.mlp_width) - 1
    return (
        f"MLP of two matrices of width {read.mlp_width}, costed as SwiGLU of three of"
        f" {shape.ffn_hidden_size}: {more:.2%} more products, a third more activations"
    )
