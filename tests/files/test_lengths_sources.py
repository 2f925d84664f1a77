"""Several files, globs, folders and stdin are read one after another, sorted by name."""

import io
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.errors import InputError
from hydraplan.files.lengths_sources import read_sources


@pytest.fixture
def shards(tmp_path):
    for i, rows in enumerate([[1, 2], [3], [4, 5, 6]]):
        pq.write_table(pa.table({"length": rows}), tmp_path / f"shard_{i}.parquet")
    (tmp_path / "README.md").write_text("not lengths")
    (tmp_path / "_metadata.parquet").write_text("not lengths")
    (tmp_path / "nested").mkdir()
    return tmp_path


def stdin(monkeypatch, raw):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(raw)))


def test_globs_folders_and_several_files_are_read_in_their_order(shards):
    for name, sources in (
        ("shard_*.parquet", [f"{shards}/shard_*.parquet"]),
        (shards.name, [str(shards)]),
        ("shard_0.parquet and 2 more", [f"{shards}/shard_{i}.parquet" for i in range(3)]),
    ):
        found = read_sources(sources)
        assert found.length_tokens.tolist() == [1, 2, 3, 4, 5, 6]
        assert found.name == name
    found = read_sources([f"{shards}/shard_2.parquet", f"{shards}/shard_[0].parquet"])
    assert found.length_tokens.tolist() == [4, 5, 6, 1, 2]


def test_one_file_keeps_its_name_even_if_it_looks_like_a_glob(tmp_path):
    (tmp_path / "a[0].txt").write_text("5\n")
    assert read_sources([str(tmp_path / "a[0].txt")]).name == "a[0].txt"


def test_stdin_is_of_any_kind(shards, monkeypatch):
    for raw in (
        b"1\n2\n",
        b'{"length":1}\n{"length":2}',
        (shards / "shard_0.parquet").read_bytes(),
    ):
        stdin(monkeypatch, raw)
        found = read_sources(["-"])
        assert (found.name, found.length_tokens.tolist()) == ("stdin", [1, 2])


def test_what_is_wrong_with_stdin_is_said_of_stdin(monkeypatch):
    stdin(monkeypatch, b'{"length":1}\n{"length":-1}')
    with pytest.raises(InputError, match=r"^stdin: row 1, byte 13: length is -1"):
        read_sources(["-"])
    stdin(monkeypatch, b"")
    with pytest.raises(InputError, match=r"^stdin is empty"):
        read_sources(["-"])


def test_sources_without_files_and_folders_of_several_kinds_are_refused(shards):
    with pytest.raises(InputError, match=r"no file matches .*/other_\*"):
        read_sources([f"{shards}/other_*"])
    with pytest.raises(InputError, match="does not exist"):
        read_sources([f"{shards}/other"])
    with pytest.raises(InputError, match="nested holds no length files"):
        read_sources([f"{shards}/nested"])
    (shards / "a.jsonl").write_text('{"length":1}\n')
    with pytest.raises(InputError, match=r"several kinds: a\.jsonl, shard_2\.parquet"):
        read_sources([str(shards)])


def test_a_bad_file_among_several_is_named(shards):
    (shards / "shard_1.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"shard_1\.parquet is not Parquet"):
        read_sources([str(shards)])


def test_sums_beyond_64_bits_are_refused_over_all_files(tmp_path):
    (tmp_path / "a.txt").write_text(f"{2**62}\n")
    path = str(tmp_path / "a.txt")
    with pytest.raises(InputError, match=r"files of a\.txt and 1 more sum to more than"):
        read_sources([path, path])
