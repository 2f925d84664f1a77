"""Token ids and labels of the rows a rank holds.

Ids come from a Megatron `.bin` beside its `.idx`, or from a generator seeded by
(seed, sequence_id). Positions come from the kernels' layout alone; the label of a row is the
id at its position + 1 in the whole sequence, the last token has none, and nothing is ever
taken from a neighbouring row or shard. Ids are checked against the vocabulary before a run.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hydraplan.errors import InputError, StalePlan
from hydraplan.files.lengths import digest
from hydraplan.files.megatron_idx import check_bin, document_lengths, read_index, sequence_tokens
from hydraplan.kernels.packing import RankLayout
from hydraplan.model import IntArray, Sequences
from hydraplan.planheader import PlanHeader

NO_LABEL = -1
CPU = torch.device("cpu")

Tokens = Callable[[int, int], IntArray]
"""(sequence_id, length_tokens) -> the first ids of that input row, shape (length_tokens,)."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What one rank works on in one microbatch: its rows' ids, labels and positions, (T,)."""

    layout: RankLayout
    ids_T: Tensor
    labels_T: Tensor
    positions_T: Tensor

    @property
    def rows(self) -> int:
        """Rows of this rank, possibly none."""
        return len(self.ids_T)


def generated_tokens(seed: int, vocab_size: int) -> Tokens:
    """Uniform ids, the same for a sequence wherever and whenever it is asked for."""

    def tokens(sequence_id: int, length_tokens: int) -> IntArray:
        return np.random.default_rng([seed, sequence_id]).integers(vocab_size, size=length_tokens)

    return tokens


def indexed_tokens(path: Path, header: PlanHeader) -> Tokens:
    """Ids from a Megatron indexed dataset whose lengths are those the plan was made from.

    Raises:
        StalePlan: The dataset's lengths are not the plan's.
        InputError: The files are damaged or hold no integers.
    """
    if path.suffix not in (".idx", ".bin"):
        raise InputError(f"{path} is neither .idx nor .bin", "--data takes a Megatron dataset")
    index_path = path.with_suffix(".idx")
    if not index_path.is_file():
        raise InputError(f"{index_path} is not a file", "--data takes a Megatron .idx or .bin")
    index = read_index(index_path)
    unit = header.lengths_unit
    lengths = index.lengths
    if unit == "documents":
        lengths = document_lengths(index.lengths, index.documents)
    found = digest(lengths)
    if found != header.lengths_digest:
        raise StalePlan(
            f"{index_path} has lengths digest {found[:16]}, the plan was made from"
            f" {header.lengths_name} with {header.lengths_digest[:16]}",
            "make a new plan from this dataset, or give the one the plan was made from",
        )
    ids = check_bin(index, index_path.with_suffix(".bin"))

    def tokens(sequence_id: int, length_tokens: int) -> IntArray:
        return sequence_tokens(ids, index, sequence_id, unit)[:length_tokens]

    return tokens


def check_ids(tokens: Tokens, batches: Iterable[Sequences], vocab_size: int, path: Path) -> None:
    """Refuse ids outside the vocabulary, naming sequence and value."""
    for placed in batches:
        for sequence_id, length in _pairs(placed):
            ids = tokens(sequence_id, length)
            wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
            if len(wrong):
                raise InputError(
                    f"{path}: sequence {sequence_id} holds id {ids[wrong[0]]} at position"
                    f" {wrong[0]}, the model's vocabulary is 0..{vocab_size - 1}",
                    "plan with a model whose vocab_size covers the data",
                )


def count_labels(placed: Sequences, batch: int) -> int:
    """Tokens of a batch that carry a label; none at all is an error, not a division by zero."""
    total = int(placed.valid_tokens.sum())
    if total == 0:
        raise InputError(f"batch {batch} holds no token with a label: no sequence has two tokens")
    return total


def load_slot(
    layout: RankLayout, placed: Sequences, tokens: Tokens, device: torch.device = CPU
) -> Slot:
    """Ids and labels of the rows that `layout` gives this rank."""
    length = dict(_pairs(placed))
    ids = np.zeros(layout.rows, np.int64)
    labels = np.full(layout.rows, NO_LABEL, np.int64)
    for sequence_id in np.unique(layout.sequence).tolist():
        rows = np.flatnonzero(layout.sequence == sequence_id)
        whole = tokens(sequence_id, length[sequence_id])
        positions = layout.positions[rows]
        ids[rows] = whole[positions]
        follows = positions + 1 < len(whole)
        labels[rows[follows]] = whole[positions[follows] + 1]
    held = (ids, labels, layout.positions)
    return Slot(layout, *(torch.from_numpy(array).to(device) for array in held))


def _pairs(placed: Sequences) -> list[tuple[int, int]]:
    return list(zip(placed.sequence_id.tolist(), placed.length_tokens.tolist(), strict=True))
