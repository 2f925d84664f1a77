"""JSONL: lengths, ids, texts and conversations; a bad line is named by its row and byte."""

import json

import pytest

from hydraplan.errors import InputError
from hydraplan.files.lengths import read_lengths
from hydraplan.files.lengths_jsonl import read_jsonl


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def word_tokenizer(tmp_path):
    """One token a word, [BOS] before a text; saved so that it would cut and fill up."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra tokenizers")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[BOS]": 0, "[UNK]": 1, "a": 2}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", 0)]
    )
    made.enable_truncation(4)
    made.enable_padding(length=4)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize("name", ["length", "length_tokens", "seqlen"])
@pytest.mark.parametrize("file", ["a.jsonl", "a.ndjson", "a.data"])
def test_rows_are_counted_by_their_length(tmp_path, name, file):
    path = jsonl(tmp_path / file, *({name: n, "input_ids": [1]} for n in (5, 0, 2**40)))
    assert read_lengths(path).length_tokens.tolist() == [5, 0, 2**40]


def test_rows_without_a_length_are_counted_by_their_ids(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", *({"id": n, "input_ids": [7] * n} for n in (3, 0, 900)))
    assert read_lengths(path).length_tokens.tolist() == [3, 0, 900]


def test_line_ends_of_windows_a_byte_order_mark_and_no_last_line_end_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"length":1}\r\n {"length":2} ')
    (tmp_path / "a.data").write_bytes(b'\xef\xbb\xbf{"length":1}\r\n {"length":2} ')
    for name in ("a.jsonl", "a.data"):
        assert read_lengths(tmp_path / name).length_tokens.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n", "row 0, byte 1: the line is empty"),
        ('{"length":1}\n\n{"length":2}\n', "row 1, byte 14: the line is empty"),
        ('{"length":1}\n{"length":2', "row 1, byte 24: Expecting ',' delimiter"),
        ('{"length":1}\n{"length":}\n', "row 1, byte 23: Expecting value"),
        ('{"length":1}\n[1]\n', r"row 1, byte 13: a row is an object, this is \[1\]"),
        ('{"length":1}\n{"length":NaN}\n', "row 1, byte 13: length is NaN, not a count"),
        ('{"length":1}\n{"length":2.0}\n', "row 1, byte 13: length is 2.0, not a count"),
        ('{"length":1}\n{"length":true}\n', "row 1, byte 13: length is true, not a count"),
        ('{"length":1}\n{"length":"2"}\n', 'row 1, byte 13: length is "2", not a count'),
        ('{"length":1}\n{"length":-2}\n', "row 1, byte 13: length is -2, not a count"),
        ('{"length":1}\n{"length":9223372036854775808}\n', "row 1, byte 13: length is 92233"),
        ('{"length":1}\n{"seqlen":2}\n', "row 1, byte 13: length is absent, not a count"),
        ('{"length":1}\n{"length":1,"length":2}\n', 'row 1, byte 13: key "length" stands twice'),
        ('{"length":1,"seqlen":1}\n', "row 0 is ambiguous: each of the columns length, seqlen"),
        ('{"length":' + "9" * 5000 + "}\n", "row 0, byte 0: Exceeds the limit"),
        ('{"a":' * 100_000 + "\n", "row 0, byte 0: maximum recursion depth exceeded"),
        ('{"input_ids":[1,2]}\n{"input_ids":[1,null]}\n', r"row 1, byte 20: input_ids is \[1, nu"),
        ('{"input_ids":[1,2]}\n{"input_ids":3}\n', "row 1, byte 20: input_ids is 3, not a list"),
        ('{"input_ids":[true]}\n', r"row 0, byte 0: input_ids is \[true\], not a list of integers"),
        ('{"a":1}\n', "row 0 has no column length, length_tokens, seqlen or input_ids; it has a"),
        ('{"length":4611686018427387904}\n' * 2, "sums to 9.22e"),
    ],
)
def test_a_line_that_is_no_row_with_a_count_is_named(tmp_path, text, message):
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_lengths(tmp_path / "a.jsonl")
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_utf8_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"length":1}\n{"t":"\xff","length":1}\n')
    with pytest.raises(InputError, match="row 1, byte 19: not UTF-8"):
        read_lengths(tmp_path / "a.jsonl")


def test_a_file_cut_anywhere_is_read_as_whole_rows_or_refused(tmp_path):
    whole = b"".join(b'{"length":%d,"t":"\xc3\xa9"}\n' % n for n in (5, 70, 900))
    path = tmp_path / "a.jsonl"
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        rows = whole[:size].count(b"\n") + whole[:size].endswith(b"}")
        if rows and whole[size - 1 : size] in (b"\n", b"}"):
            assert read_lengths(path).length_tokens.tolist() == [5, 70, 900][:rows]
        else:
            with pytest.raises(InputError, match=f"row {rows}, byte |is empty"):
                read_lengths(path)


def test_texts_are_counted_whole_with_what_the_tokenizer_adds(tmp_path, word_tokenizer):
    rows = [{"text": "a " * n, "length": 1} for n in [0, 1, 600, *range(600)]]
    found = read_lengths(jsonl(tmp_path / "a.jsonl", *rows), tokenizer=word_tokenizer)
    assert found.length_tokens.tolist() == [1, 2, 601, *range(1, 601)]


def test_messages_are_counted_by_their_contents(tmp_path, word_tokenizer):
    parts = [{"type": "text", "text": "a a"}, {"type": "text", "text": "a"}]
    path = jsonl(
        tmp_path / "a.jsonl",
        {"messages": [{"role": "user", "content": "a a"}, {"role": "assistant", "content": "b"}]},
        {"messages": []},
        {"messages": [{"role": "user", "content": parts}]},
    )
    assert read_jsonl(path, word_tokenizer).tolist() == [3, 0, 3]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": 5}, "row 1, byte 14: text is 5, not a text"),
        ({"messages": []}, "row 1, byte 14: text is absent, not a text"),
    ],
)
def test_a_row_that_is_no_text_is_named(tmp_path, word_tokenizer, row, message):
    with pytest.raises(InputError, match=message):
        read_jsonl(jsonl(tmp_path / "a.jsonl", {"text": "a"}, row), word_tokenizer)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("a", 'messages is "a", not a list'),
        ([{"role": "user"}], "not messages whose content is a text"),
        ([{"content": None}], "not messages whose content is a text"),
        ([{"content": [{"type": "image", "url": "x"}]}], "not messages of text alone"),
        (["a"], "not messages whose content is a text"),
    ],
)
def test_messages_that_hold_more_than_text_are_refused(tmp_path, word_tokenizer, messages, message):
    with pytest.raises(InputError, match=message):
        read_jsonl(jsonl(tmp_path / "a.jsonl", {"messages": messages}), word_tokenizer)


def test_texts_ask_for_a_tokenizer_and_a_tokenizer_for_texts(tmp_path, word_tokenizer):
    with pytest.raises(InputError, match="has no column length") as caught:
        read_jsonl(jsonl(tmp_path / "a.jsonl", {"text": "a"}))
    assert "--tokenizer tokenizer.json" in caught.value.hint
    path = jsonl(tmp_path / "a.jsonl", {"length": 1})
    with pytest.raises(InputError, match="row 0 has no column text or messages; it has length"):
        read_jsonl(path, word_tokenizer)
    with pytest.raises(InputError, match="is not a tokenizer: "):
        read_jsonl(jsonl(tmp_path / "b.jsonl", {"text": "a"}), path)
    (tmp_path / "a.txt").write_text("5\n")
    with pytest.raises(InputError, match="--tokenizer is for texts of JSONL"):
        read_lengths(tmp_path / "a.txt", tokenizer=word_tokenizer)
