"""Sequence lengths from JSON Lines: one object a line, read line by line.

The first row decides what every row is counted by: `length` (`length_tokens`, `seqlen`), else
the number of `input_ids`; with a tokenizer, the tokens of `text` or of `messages`. Those of
messages are the contents, each by itself: no chat template, no special tokens. Only one line
(with a tokenizer, a few hundred) is held at a time.
"""

import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hydraplan.errors import InputError, MissingDependency, first_line, printable
from hydraplan.files.lengths_columns import (
    ID_COLUMNS,
    LENGTH_COLUMNS,
    MAX_TOTAL_TOKENS,
    TEXT_COLUMNS,
    counted_column,
)
from hydraplan.model import IntArray

ROWS_AT_A_TIME = 256
"""Rows tokenized together, so that the tokenizer can use its threads. Our choice."""


class _Row(NamedTuple):
    """A line of the file, and the byte at which it begins."""

    row: int
    byte: int
    held: dict[str, Any]


def read_jsonl(path: Path, tokenizer: Path | None = None) -> IntArray:
    """Tokens of every row.

    Args:
        tokenizer: A `tokenizer.json`, to count text or messages.

    Raises:
        InputError: A line is no row with a count; it is named by row and byte.
        MissingDependency: A tokenizer is given and the package `tokenizers` is not there.
    """
    rows = _rows(path)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{path} is empty")
    where = f"{path}: row 0"
    again = chain([first], rows)
    if tokenizer is not None:
        key = counted_column(where, first.held, TEXT_COLUMNS)
        return np.fromiter(_tokenized(path, again, key, _load(tokenizer)), np.int64)
    key = counted_column(where, first.held, LENGTH_COLUMNS, ID_COLUMNS)
    count = _ids if key in ID_COLUMNS else _length
    return np.fromiter((count(path, row, key) for row in again), np.int64)


def _rows(path: Path) -> Iterator[_Row]:
    byte = 0
    with path.open("rb") as file:
        for number, line in enumerate(file):
            yield _Row(number, byte, _parsed(path, number, byte, line))
            byte += len(line)


def _parsed(path: Path, number: int, byte: int, line: bytes) -> dict[str, Any]:
    at = byte
    try:
        text = line.decode("utf-8-sig" if byte == 0 else "utf-8")
        held = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        at += len(text[: error.pos].encode())
        why = error.msg if text.strip() else "the line is empty"
    except UnicodeDecodeError as error:
        at += error.start
        why = f"not UTF-8 ({error.reason})"
    except (ValueError, RecursionError) as error:  # a key twice, or a number of 5,000 digits
        why = first_line(error)
    else:
        if isinstance(held, dict):
            return held
        why = f"a row is an object, this is {_short(held)}"
    raise InputError(f"{path}: row {number}, byte {at}: {why}", "JSONL has one object a line")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    if len(held) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {_short(twice)} stands twice")
    return held


def _length(path: Path, row: _Row, key: str) -> int:
    value = row.held.get(key)
    if type(value) is not int or not 0 <= value <= MAX_TOTAL_TOKENS:
        raise _wrong(path, row, key, "a count of tokens")
    return value


def _ids(path: Path, row: _Row, key: str) -> int:
    ids = row.held.get(key)
    if type(ids) is not list or not set(map(type, ids)) <= {int}:
        raise _wrong(path, row, key, "a list of integers")
    return len(ids)


def _texts(path: Path, row: _Row, key: str) -> list[str]:
    """What is tokenized of a row: its text, or the contents of its messages."""
    held = row.held.get(key)
    if key == "text":
        if type(held) is not str:
            raise _wrong(path, row, key, "a text")
        return [held]
    if type(held) is not list:
        raise _wrong(path, row, key, "a list of messages")
    texts: list[str] = []
    for message in held:
        content = message.get("content") if type(message) is dict else None
        parts = content if type(content) is list else [{"type": "text", "text": content}]
        for part in parts:
            if type(part) is not dict or part.get("type") != "text":
                raise _wrong(path, row, key, "messages of text alone")
            if type(part.get("text")) is not str:
                raise _wrong(path, row, key, "messages whose content is a text")
            texts.append(part["text"])
    return texts


def _tokenized(path: Path, rows: Iterator[_Row], key: str, tokenizer: Any) -> Iterator[int]:
    while some := list(islice(rows, ROWS_AT_A_TIME)):
        texts = [_texts(path, row, key) for row in some]
        flat = list(chain.from_iterable(texts))
        # Sequences of a text get what the tokenizer adds (BOS), parts of a conversation do not.
        found = iter(tokenizer.encode_batch(flat, add_special_tokens=key == "text"))
        for row_texts in texts:
            yield sum(len(encoded) for encoded in islice(found, len(row_texts)))


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  (an extra)
    except ImportError:
        raise MissingDependency(
            "--tokenizer needs the package tokenizers", "pip install 'hydraplan[tokenizers]'"
        ) from None
    if not path.is_file():
        raise InputError(f"tokenizer {path} is not a file", "give a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise InputError(
            f"{path} is not a tokenizer: {printable(first_line(error))}",
            "give a tokenizer.json, as Hugging Face tokenizers saves it",
        ) from None
    tokenizer.no_truncation()  # a saved one may cut or fill up, and all lengths were alike
    tokenizer.no_padding()
    return tokenizer


def _wrong(path: Path, row: _Row, key: str, what: str) -> InputError:
    found = f"is {_short(row.held[key])}" if key in row.held else "is absent"
    return InputError(
        f"{path}: row {row.row}, byte {row.byte}: {key} {found}, not {what}",
        "every row is counted by what the first row has",
    )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
