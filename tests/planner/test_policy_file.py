"""Policies to a file and back; what is not one is refused."""

import json
import pickle
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import InputError, RunFailed
from hydraplan.planner.policy.features import NAMES
from hydraplan.planner.policy.network import Policy, new_weights
from hydraplan.planner.policy.policy_file import ACTIONS, SHIPPED, load_policy, save_policy
from tests.full_disk import no_file_beyond


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


def test_a_disk_that_is_full_is_named_and_leaves_what_stood_there(tmp_path: Path):
    save_policy(policy(), tmp_path / "a.npz")
    before = (tmp_path / "a.npz").read_bytes()
    with no_file_beyond(1000), pytest.raises(RunFailed, match=r"a\.npz: File too large"):
        save_policy(policy(), tmp_path / "a.npz")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [before]


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
        ({"bias_1": np.zeros(8)}, "bias_1 is <f8, not <f4"),
        ({"bias_1": np.zeros(8, ">f4")}, "bias_1 is >f4, not <f4"),
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
        ({"about": np.zeros(3)}, "about is <f8, not text"),
        ({"bias_1": np.array([{}] * 8)}, "bias_1 is |O, not <f4"),
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


def zipped(path: Path, parts: dict[str, bytes], packed: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", packed) as new:
        for name, content in parts.items():
            new.writestr(name, content)
    return path


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> dict[str, bytes]:
    path = saved(tmp_path_factory.mktemp("policy") / "x.npz")
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


HEAD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (8,), }"


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (HEAD.replace(b"8,", b"99999999999,"), r"of 32 bytes has not shape \(99999999999,\)"),
        (HEAD.replace(b"8,", b"4294967296, 4294967296"), "of 32 bytes has not shape"),
        (HEAD.replace(b"8,", b"-8, -1"), "is no .npy"),
        (HEAD.replace(b"8,", b"2**40,"), "is no .npy"),
        (HEAD.replace(b"8,", b"True,"), "is no .npy"),
        (HEAD.replace(b"False", b"True"), "is no .npy"),
        (HEAD.replace(b"'<f4'", b"[('a', '<f4', (9**9,))]"), "is no .npy"),
        (HEAD.replace(b"<f4", b"|O"), r"is \|O, not <f4"),
        (b"(" * 5000, "is no .npy"),
        (b"'\\d' \x00", "is no .npy"),
        (b"", "is no .npy"),
    ],
)
def test_a_header_of_another_form_is_refused_and_never_evaluated(tmp_path, parts, head, said):
    whole = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + b"\n" + bytes(32)
    path = zipped(tmp_path / "x.npz", parts | {"bias_1.npy": whole})
    with pytest.raises(InputError, match=f"bias_1 {said}"):
        load_policy(path)


@pytest.mark.parametrize("packed", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_is_compressed_is_not_unpacked(tmp_path: Path, parts, packed: int):
    bomb = parts | {"bias_1.npy": bytes(1 << 20)}
    with pytest.raises(InputError, match="compressed, encrypted or of more than"):
        load_policy(zipped(tmp_path / "x.npz", bomb, packed))


def test_names_and_numbers_that_no_network_has_are_refused_in_a_short_line(tmp_path: Path, parts):
    many = parts | {f"{i}\n.npy": b"" for i in range(2000)}
    with pytest.raises(InputError, match="characters"):
        load_policy(zipped(tmp_path / "x.npz", many))
    for name in ("into_1", "bias_3", "head_start"):
        large = getattr(policy().weights, name) * 0 + np.float32(1e10)  # preferences overflow
        with pytest.raises(InputError, match=rf"{name} has numbers .* beyond 1e\+06"):
            load_policy(saved(tmp_path / "y.npz", **{name: large}))


@settings(max_examples=120)
@given(st.data())
def test_bytes_that_change_are_refused_or_leave_a_network_of_its_size(parts, data):
    """Wherever the byte is: nothing but `InputError`, and no number that is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = zipped(Path(folder) / "x.npz", parts)
        whole = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(whole) - 1) | st.integers(-900, -1))
            whole[place] = data.draw(st.integers(0, 255))
        path.write_bytes(whole[: data.draw(st.integers(0, 3 * len(whole)))])
        found, said = policy().weights, ""
        try:
            found = load_policy(path).weights
        except InputError as error:
            said = str(error)
        assert len(said) < 600
        assert [a.shape for a in found] == [a.shape for a in policy().weights]
        assert all((np.abs(a) <= 1e6).all() for a in found)
