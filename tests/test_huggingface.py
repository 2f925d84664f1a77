"""Files of public models, as Hugging Face holds them, and what is changed in them.

Values: the `config.json` of meta-llama/Llama-3.1-8B, Qwen/Qwen2.5-32B, Qwen/Qwen3-32B,
mistralai/Mistral-7B-v0.1, mistralai/Mistral-Nemo-Base-2407, openai-community/gpt2-xl,
EleutherAI/gpt-neox-20b, Qwen/Qwen3-30B-A3B and deepseek-ai/DeepSeek-V3 (the last two in part).
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.config import load_model
from hydraplan.errors import InputError
from hydraplan.huggingface import REFUSED, find_model, read_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 27648,
    "max_position_embeddings": 131072,
    "max_window_layers": 64,
    "model_type": "qwen2",
    "num_attention_heads": 40,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN3 = QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "eos_token_id": 151645,
    "head_dim": 128,
    "intermediate_size": 25600,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "num_attention_heads": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "sliding_window": None,
    "vocab_size": 151936,
}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.34.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
NEMO = MISTRAL | {
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_size": 5120,
    "max_position_embeddings": 128000,
    "num_hidden_layers": 40,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "vocab_size": 131072,
}
GPT2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 1600,
    "n_head": 25,
    "n_layer": 48,
    "n_positions": 1024,
    "output_past": True,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
GPT2_DRY = GPT2 | {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0}
NEOX = {
    "architectures": ["GPTNeoXForCausalLM"],
    "attention_probs_dropout_prob": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu_fast",
    "hidden_dropout_prob": 0,
    "hidden_size": 6144,
    "initializer_range": 0.02,
    "intermediate_size": 24576,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 64,
    "num_hidden_layers": 44,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.19.0.dev0",
    "use_cache": True,
    "vocab_size": 50432,
}
MOE = QWEN3 | {"model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8}
DEEPSEEK = {
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "model_type": "deepseek_v3",
    "n_routed_experts": 256,
    "q_lora_rank": 1536,
}


def written(folder: Path, values: object) -> Path:
    path = folder / "config.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        # layers, hidden, heads, KV heads, head_dim, ffn, vocabulary
        (LLAMA, (32, 4096, 32, 8, 128, 14336, 128256)),
        (QWEN2, (64, 5120, 40, 8, 128, 27648, 152064)),
        (QWEN3, (64, 5120, 64, 8, 128, 25600, 151936)),
        (NEMO, (40, 5120, 32, 8, 128, 14336, 131072)),
        (GPT2_DRY, (48, 1600, 25, 25, 64, 4272, 50257)),
        (NEOX, (44, 6144, 64, 64, 96, 16384, 50432)),
    ],
    ids=["llama", "qwen2", "qwen3", "nemo", "gpt2", "neox"],
)
def test_the_file_of_a_public_model_gives_its_shape(
    values: dict[str, object], sizes: tuple[int, ...], tmp_path: Path
) -> None:
    shape = read_config(written(tmp_path, values)).shape
    assert tuple(shape.model_dump(exclude={"name", "dtype"}).values()) == sizes
    assert shape.dtype == values.get("torch_dtype", "bfloat16")
    assert shape.name == tmp_path.name


@pytest.mark.parametrize(("values", "name"), [(LLAMA, "llama-8b"), (QWEN2, "qwen-32b")])
def test_a_built_in_model_is_that_of_its_public_file(
    values: dict[str, object], name: str, tmp_path: Path
) -> None:
    shape = find_model(str(written(tmp_path, values))).shape
    assert shape.model_copy(update={"name": name}) == load_model(name)


@pytest.mark.parametrize(
    ("values", "width"), [(GPT2_DRY, 6400), (NEOX, 24576), (GPT2_DRY | {"n_inner": 999}, 999)]
)
def test_an_mlp_of_two_matrices_does_the_products_of_its_stand_in(
    values: dict[str, object], width: int, tmp_path: Path
) -> None:
    shape, notes = read_config(written(tmp_path, values))
    own = 4 * shape.hidden_size**2 + 2 * shape.hidden_size * width
    more = 3 * 8 * shape.hidden_size
    assert own <= shape.layer_parameters < own + more
    assert any(f"MLP of two matrices of width {width}" in note for note in notes)


def test_a_folder_and_its_file_are_the_same_model_and_a_built_in_name_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    written(folder, LLAMA)
    assert find_model(str(folder)).shape == find_model(str(folder / "config.json")).shape
    monkeypatch.chdir(tmp_path)
    assert find_model("tiny").shape.num_layers == 4
    assert find_model("./tiny").shape.num_layers == 32


def test_a_folder_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no config"):
        find_model(str(tmp_path))
    with pytest.raises(InputError, match="is no file"):
        find_model(str(tmp_path / "absent.json"))


def test_what_is_costed_otherwise_or_not_known_is_told(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, LLAMA)).notes == ()
    said = "\n".join(read_config(written(tmp_path, GPT2_DRY | {"colour": "red"})).notes)
    for part in ("third more activations", "learned positions", "two matrices", "bfloat16 is assu"):
        assert part in said
    assert "without effect: colour" in said
    said = "\n".join(read_config(written(tmp_path, QWEN2 | {"tie_word_embeddings": True})).notes)
    assert "tie_word_embeddings" in said
    assert "biases of q, k and v" in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (DEEPSEEK, "kv_lora_rank 512 asks for multi-head latent attention"),
        (MOE, "num_experts 128 asks for a mixture of experts"),
        (LLAMA | {"num_local_experts": 8}, "num_local_experts 8 asks for a mixture of experts"),
        (GPT2, "attn_pdrop 0.1 asks for dropout in attention"),
        (MISTRAL, "sliding_window 4096 asks for sliding-window attention"),
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": 32, "sliding_window": 4096},
         "sliding_window 4096 asks for"),
        (QWEN3 | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (LLAMA | {"quantization_config": {"bits": 4}}, "quantization_config"),
        (LLAMA | {"model_type": "gemma2"}, "model_type 'gemma2' is not one that can be costed"),
        (LLAMA | {"model_type": ["llama"]}, "model_type"),
        (LLAMA | {"hidden_act": "relu"}, "hidden_act: must be 'silu' .value 'relu'"),
        (LLAMA | {"hidden_size": 4096.5}, "hidden_size: must be a whole number .value 4096.5"),
        (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers: must be a whole number"),
        (LLAMA | {"num_attention_heads": 0}, "num_attention_heads: must be at least 1 .value 0"),
        (LLAMA | {"num_attention_heads": 33}, "hidden size 4096 is not a multiple of its 33 heads"),
        (LLAMA | {"num_key_value_heads": 5}, "num_heads 32 is not a multiple of num_kv_heads 5"),
        (LLAMA | {"torch_dtype": "int8"}, "torch_dtype: must be 'float64'"),
        (LLAMA | {"dtype": "float32"}, "dtype float32 and torch_dtype bfloat16 differ"),
        ({k: v for k, v in LLAMA.items() if k != "vocab_size"}, "vocab_size: is missing"),
        ({k: v for k, v in QWEN3.items() if k != "head_dim"}, "head_dim: is missing"),
        (MISTRAL | {"sliding_window": "wide"}, "sliding_window 'wide'"),
        ("[1, 2]", "holds no JSON object but list"),
        ('{"model_type": "llama", "model_type": "gpt2"}', "'model_type' stands twice"),
        ('{"rope_theta": NaN}', "NaN is no number"),
        ('{"hidden_size": ' + "9" * 5_000 + "}", "is not JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"a": "' + "x" * (1 << 20) + '"}', "at most 1,048,576 are read"),
        ("", "is not JSON"),
    ],
)  # fmt: skip
def test_what_would_be_costed_wrong_is_refused_by_field_on_one_line(
    values: object, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read_config(written(tmp_path, values))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_window_that_cuts_nothing_is_no_reason_to_refuse(tmp_path: Path) -> None:
    wide = read_config(written(tmp_path, MISTRAL | {"sliding_window": 32768}))
    assert any("attention is full" in note for note in wide.notes)
    above = QWEN2 | {"use_sliding_window": True, "sliding_window": 4096}
    assert read_config(written(tmp_path, above)).shape.num_layers == 64


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_a_refused_feature_that_is_off_is_no_reason_to_refuse(key: str, tmp_path: Path) -> None:
    for off in (None, False, 0, 0.0):
        read_config(written(tmp_path, LLAMA | {key: off}))
    with pytest.raises(InputError, match=f"{key} 1 asks for"):
        read_config(written(tmp_path, LLAMA | {key: 1}))


@given(
    st.sampled_from(sorted(LLAMA)),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=4,
    ),
)
def test_any_value_in_any_field_gives_a_model_or_one_refusal(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    folder = tmp_path_factory.getbasetemp()
    try:
        shape = read_config(written(folder, LLAMA | {key: value})).shape
    except InputError:
        return
    assert shape.num_layers >= 1
