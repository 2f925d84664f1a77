"""What a message says of itself, sent before it where messages are checked (`--debug-messages`).

A header is a few whole numbers, so it can be received before anything is known of the message:
which one it is, its shape and dtype, and from which plan. A receiver knows what it waits for and
refuses anything else before it takes the message, since a buffer that is too small would end the
process, one that is too large be filled in part, and another dtype be read as it stands.
"""

from typing import Final

import torch
from torch import Tensor

from hydraplan.planner.pipeline.lowering import Message

WAYS: Final = ("forward", "backward")

DTYPES: Final = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

FIELDS: Final = ("way", "microbatch", "chunk", "rows", "hidden size", "dtype", "plan")


def header(
    message: Message, rows: int, hidden_size: int, dtype: torch.dtype, plan_digest: str
) -> Tensor:
    """The header of a message, int64 of shape (7,), in the order of `FIELDS`."""
    return torch.tensor(
        [
            WAYS.index(message.way),
            message.microbatch,
            message.to_chunk,
            rows,
            hidden_size,
            DTYPES.index(dtype),
            int(plan_digest[:15], 16),
        ]
    )


def difference(found: Tensor, wanted: Tensor) -> str:
    """What the sender says of the message and what was waited for; "" if they agree."""
    pairs = zip(FIELDS, found.tolist(), wanted.tolist(), strict=True)
    apart = [(name, said, known) for name, said, known in pairs if said != known]
    return "; ".join(
        f"its {name} is {_word(name, said)}, {_word(name, known)} was waited for"
        for name, said, known in apart
    )


def _word(name: str, value: int) -> str:
    words: dict[str, tuple[object, ...]] = {"way": WAYS, "dtype": DTYPES}
    if name == "plan":
        return f"{value:015x}"
    if name in words and 0 <= value < len(words[name]):
        return str(words[name][value]).removeprefix("torch.")
    return str(value)
