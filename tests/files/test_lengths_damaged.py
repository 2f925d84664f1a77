"""Damaged files of every kind: one line on stderr and exit 2, or lengths; never a traceback."""

import json

import numpy as np
import pytest

from hydraplan.cli.app import run
from tests.files.damaged_files import SOUND, damaged, main, refusal

BY_LENGTHS = [name for name in SOUND if name not in ("stdin", "a.profile.parquet")]


@pytest.mark.parametrize("name", BY_LENGTHS)
def test_a_sound_file_is_read(tmp_path, name, capsys):
    (tmp_path / name).write_bytes(SOUND[name])
    assert run(["lengths", str(tmp_path / name), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_tokens"] > 0


@pytest.mark.parametrize("name", BY_LENGTHS)
def test_a_damaged_file_is_one_line_and_exit_2(tmp_path, name, capsys):
    rng, codes = np.random.default_rng(1), []
    for _ in range(8):
        (tmp_path / name).write_bytes(damaged(SOUND[name], rng))
        codes.append(run(["lengths", str(tmp_path / name), "--json"]))
        out, err = capsys.readouterr()
        message = err.split("\n\nhint: ")[0].rstrip("\n")
        assert codes[-1] in (0, 2)
        assert (out == "") == (codes[-1] == 2)
        assert (message == "") == (codes[-1] == 0)
        assert "\n" not in message
        assert codes[-1] == 0 or str(tmp_path / name) in message
    assert 2 in codes


@pytest.mark.parametrize("name", SOUND)
def test_forty_damaged_files_of_each_kind_are_read_or_refused(tmp_path, name):
    rng, refused = np.random.default_rng(2), 0
    (tmp_path / name).write_bytes(SOUND[name])
    assert refusal(name, tmp_path / name) is None
    for _ in range(40):
        (tmp_path / name).write_bytes(damaged(SOUND[name], rng))
        refused += refusal(name, tmp_path / name) is not None
    assert refused > 8


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_five_thousand_damaged_files_of_each_kind_are_read_or_refused(capsys):
    main(5_000)
    assert len(capsys.readouterr().out.splitlines()) == len(SOUND)
