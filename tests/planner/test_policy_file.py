"""Policies to a file and back; what is not one is refused."""

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hydraplan.errors import InputError
from hydraplan.planner.policy.features import NAMES
from hydraplan.planner.policy.network import Policy, new_weights
from hydraplan.planner.policy.policy_file import ACTIONS, SHIPPED, load_policy, save_policy


def policy(hidden: int = 8) -> Policy:
    return Policy(new_weights(np.random.default_rng(0), hidden), {"command": "hydraplan train"})


def saved(path: Path, **changed: object) -> Path:
    """A file like `save_policy`'s, but for what is changed; None leaves an array out."""
    about = {"schema_version": 1, "features": NAMES, "actions": ACTIONS}
    arrays = {"about": np.array(json.dumps(about)), **policy().weights._asdict(), **changed}
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})  # type: ignore[arg-type]
    return path


def test_a_policy_comes_back_and_the_same_policy_gives_the_same_bytes(tmp_path: Path):
    save_policy(policy(), tmp_path / "a.npz")
    save_policy(policy(), tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    found = load_policy(tmp_path / "a.npz")
    assert found.about == {"command": "hydraplan train"}
    for one, other in zip(found.weights, policy().weights, strict=True):
        assert one.dtype == np.float32
        assert (one == other).all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_the_shipped_policy_loads_and_says_how_it_was_made():
    assert "hydraplan train-policy" in load_policy().about["command"]
    assert SHIPPED.parent.name == "data"  # what package-data of pyproject.toml takes along


ABOUT = {"schema_version": 1, "features": [*NAMES], "actions": [*ACTIONS]}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bias_1": np.zeros(9, np.float32)}, r"into_1 has shape \(51, 8\), not \(51, 9\)"),
        ({"bias_3": np.zeros(5, np.float32)}, r"bias_3 has shape \(5,\), not \(6,\)"),
        ({"bias_2": np.zeros((), np.float32)}, "into_2 has shape"),
        ({"into_1": np.zeros((51, 0), np.float32), "bias_1": np.zeros(0, np.float32)}, "into_1"),
        ({"bias_1": np.zeros(8)}, "bias_1 is float64, not float32"),
        ({"bias_1": np.zeros(8, ">f4")}, "bias_1 is >f4, not float32"),
        ({"bias_1": np.full(8, np.nan, np.float32)}, "bias_1 has numbers that are not finite"),
        ({"into_2": None}, "holds about, bias_1, bias_2, bias_3, head_start, into_1, into_3, not"),
        ({"more": np.zeros(3)}, "more, not"),
        ({"about": np.array("{")}, "about is no JSON"),
        ({"about": np.array("[1]")}, "about is list, no object"),
        ({"about": np.array(json.dumps(ABOUT | {"schema_version": 2}))}, "schema_version is 2"),
        ({"about": np.array(json.dumps(ABOUT | {"features": ["f_time"]}))}, "features is"),
        ({"about": np.array(json.dumps(ABOUT | {"actions": ["F", "B"]}))}, "actions is"),
        ({"about": np.array(json.dumps(ABOUT | {"seed": 3}))}, "something other than texts"),
        ({"about": np.array("[" * 100_000)}, "about is no JSON"),
        ({"about": np.zeros(3)}, "about is float64, not text"),
        ({"bias_1": np.array([{}] * 8)}, "is no .npz of arrays"),
    ],
)
def test_what_is_not_as_it_should_be_is_named(tmp_path: Path, changed, said: str):
    path = saved(tmp_path / "changed.npz", **changed)
    with pytest.raises(InputError, match=said) as found:
        load_policy(path)
    assert str(path) in str(found.value)


def test_files_that_are_no_npz_are_refused(tmp_path: Path):
    path = tmp_path / "x.npz"
    with pytest.raises(InputError, match="does not exist"):
        load_policy(path)
    whole = saved(tmp_path / "whole.npz").read_bytes()
    for content in (b"", b"PK", pickle.dumps({"into_1": 1}), whole[:-40], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"is no \.npz"):
            load_policy(path)
    broken = bytearray(whole)
    broken[200] ^= 0xFF
    path.write_bytes(broken)
    with pytest.raises(InputError, match=r"x\.npz"):
        load_policy(path)


def test_an_array_that_claims_to_be_huge_is_refused(tmp_path: Path):
    path = saved(tmp_path / "x.npz")
    with zipfile.ZipFile(path) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    head = parts["bias_1.npy"].replace(b"(8,), ", b"(99999999999,), ")
    with zipfile.ZipFile(path, "w") as new:
        for name, content in (parts | {"bias_1.npy": head}).items():
            new.writestr(name, content)
    with pytest.raises(InputError, match=r"is no \.npz"):
        load_policy(path)
