import pytest

from hydraplan.activations import Recompute, forward_bytes, held_shares, waiting_bytes
from hydraplan.config import ModelShape, load_model


def test_what_waits_for_w_is_both_factors_of_every_weights_gradient() -> None:
    """One linear after the other: columns that go in, and those whose gradients come out."""
    model = load_model("llama-8b")  # hidden 4096, 32 and 8 heads of 128, ffn 14336, 2 bytes
    went_in = [4096, 4096, 4096, 14336]  # of q, k, v together; output; gate, up; down
    came_out = [4096, 1024, 1024, 4096, 14336, 14336, 4096]
    assert waiting_bytes(model) == 2 * sum(went_in + came_out) == 139_264


def test_a_plain_mlp_would_leave_what_the_zero_bubble_paper_counts() -> None:
    """32 C of 16-bit elements: 14 C of inputs and 18 C of gradients, with ffn 4 C in one matrix."""
    model = ModelShape(
        num_layers=1, hidden_size=64, num_heads=8, num_kv_heads=8, head_dim=8,
        ffn_hidden_size=256, vocab_size=8, dtype="float16",
    )  # fmt: skip
    gate = 2 * 256  # the gradient of the matrix that SwiGLU has besides
    assert waiting_bytes(model) - gate == 32 * 64


@pytest.mark.parametrize(
    ("name", "dtype", "share"),
    [
        ("llama-8b", "bfloat16", 0.3589),
        ("llama-8b", "float32", 0.2447),
        ("llama-70b", "bfloat16", 0.3623),
        ("tiny", "float32", 0.2201),
    ],
)
def test_b_frees_a_quarter_to_two_fifths(name: str, dtype: str, share: float) -> None:
    model = load_model(name).model_copy(update={"dtype": dtype})
    assert held_shares(model).after_forward == 1.0
    assert 1 - held_shares(model).after_input == pytest.approx(share, abs=5e-5)
    assert 0 < waiting_bytes(model) < forward_bytes(model)


@pytest.mark.parametrize(
    ("recompute", "columns"),
    [  # of 2 bytes: hidden 4096, q 4096, k 1024, ffn 14336; a log-sum-exp of 4 bytes a head
        ("full", 4096),
        ("selective", 2 * 4096 + 2 * 4096 + 2 * 1024 + 2 * 14336 + 2 * 32),
    ],
)
def test_what_is_made_again_is_not_kept_and_w_needs_what_it_needs(
    recompute: Recompute, columns: int
) -> None:
    model = load_model("llama-8b")
    kept, waits = held_shares(model, recompute)
    assert forward_bytes(model, recompute) == 2 * columns
    assert kept == 2 * columns / forward_bytes(model) < waits
    assert waits == held_shares(model).after_input
