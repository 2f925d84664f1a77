import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.config import Config
from hydraplan.errors import InputError
from hydraplan.files.parquet import with_footer
from hydraplan.files.trialsfile import TRIALS_SCHEMA, Trials, read_trials, write_trials


class Header(Config):
    """A footer."""

    name: str = "x"


STEPS = [
    Trials(
        np.array([3.0, 5.0]),
        2.0,
        {"compute": np.array([2.0, 2.0]), "jitter": np.array([1.0, 3.0])},
        {"jitter": np.array([2.0, 2.5])},
    ),
    Trials(
        np.array([4.0, 7.0]),
        3.0,
        {"compute": np.array([3.0, 3.0]), "jitter": np.array([1.0, 4.0])},
        {"jitter": np.array([3.0, 3.5])},
    ),
]


def test_trials_come_back_as_means_over_the_steps(tmp_path):
    path = tmp_path / "trials.parquet"
    write_trials(path, Header(), STEPS)
    found = read_trials(path, 2)
    assert found.iteration_s.tolist() == [3.5, 6.0]
    assert found.nominal_s == 2.5
    assert {k: v.tolist() for k, v in found.lost_s.items()} == {
        "compute": [2.5, 2.5],
        "jitter": [1.0, 3.5],
    }
    assert {k: v.tolist() for k, v in found.without_s.items()} == {"jitter": [2.5, 3.0]}
    assert pq.read_table(path).num_rows == 2 * 2 * 2
    assert [p.name for p in tmp_path.iterdir()] == ["trials.parquet"]


def test_the_same_trials_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_trials(tmp_path / name, Header(), STEPS)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_run_without_trials_has_none(tmp_path):
    path = tmp_path / "trials.parquet"
    assert read_trials(path, 1) is None
    pq.write_table(with_footer(TRIALS_SCHEMA, Header()).empty_table(), path)
    assert read_trials(path, 1) is None


@pytest.mark.parametrize("damage", ["a row less", "another trial", "not a number", "other count"])
def test_rows_that_no_run_leaves_are_refused(tmp_path, damage):
    path = tmp_path / "trials.parquet"
    write_trials(path, Header(), STEPS)
    table = pq.read_table(path)
    rows = table.to_pylist()
    if damage == "a row less":
        del rows[-1]
    elif damage == "another trial":
        rows[1]["trial"] = 0
    elif damage == "not a number":
        rows[2]["lost_s"] = float("nan")
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    with pytest.raises(InputError, match=r"are not those of \d trials of every step"):
        read_trials(path, 3 if damage == "other count" else 2)
