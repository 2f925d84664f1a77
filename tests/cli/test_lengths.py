"""`hydraplan lengths` on the bundled corpus, against published figures of the data notes."""

import json
from importlib import resources
from pathlib import Path

import pytest

from hydraplan.cli.app import run

BUNDLED = str(resources.files("hydraplan") / "data" / "lengths_cpython_stdlib.parquet")


def test_json_of_the_bundled_lengths_holds_the_known_figures(capsys):
    assert run(["lengths", BUNDLED, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert next(iter(found)) == "schema_version"
    assert (found["num_sequences"], found["num_tokens"], found["num_empty"]) == (1641, 7992913, 25)
    assert list(found["percentiles"].values()) == [
        *(0, 18, 393, 1727, 5613, 13391, 19672, 42965, 69253, 164112),
    ]
    shares = [[t["sequences_share"], t["tokens_share"], t["squares_share"]] for t in found["tail"]]
    assert shares[0] == pytest.approx([0.157, 0.654, 0.933], abs=5e-4)
    assert shares[1] == pytest.approx([0.0213, 0.216, 0.583], abs=5e-4)
    assert shares[2] == pytest.approx([0.0006, 0.021, 0.152], abs=6e-4)
    assert shares[3] == [0, 0, 0]


def test_text_names_the_file_and_its_totals(capsys):
    assert run(["lengths", BUNDLED]) == 0
    text = capsys.readouterr().out
    first = "lengths_cpython_stdlib.parquet: 1,641 sequences, 7,992,913 tokens, 25 empty"
    assert text.splitlines()[0] == first
    assert max(map(len, text.splitlines())) <= 80


def test_documents_of_an_index_are_rows(capsys):
    index = str(Path(__file__).parents[1] / "data" / "megatron_tiny.idx")
    assert run(["lengths", index, "--unit", "documents", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_sequences"], found["unit"]) == (18, "documents")
