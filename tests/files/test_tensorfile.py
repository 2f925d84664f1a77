import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hydraplan.errors import InputError
from hydraplan.files.tensorfile import read_tensors, tensor_names, write_tensors

ARRAYS = {
    "head": np.arange(6, dtype=np.float32).reshape(2, 3),
    "head/step": np.array(3.0, np.float32),
    "none": np.zeros((0, 4)),
    "norm": np.array([1.5, -0.0, np.inf]),
}
ANY = st.dictionaries(
    st.text(max_size=8).filter(lambda name: name.isprintable()),
    hnp.arrays(
        st.sampled_from([np.float32, np.float64]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    max_size=4,
)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "a.safetensors"
    return path, write_tensors(path, ARRAYS)


@settings(max_examples=30)
@given(arrays=ANY)
def test_every_bit_comes_back(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("t") / "a.safetensors"
    found = read_tensors(path, write_tensors(path, arrays))
    assert list(found) == tensor_names(path) == list(arrays)
    for name, array in arrays.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        assert found[name].tobytes() == array.tobytes()


def test_the_bytes_are_those_of_safetensors(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"w": np.array([[1.0, 2.0]], np.float32)})
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert json.loads(raw[8 : 8 + length]) == {
        "w": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}
    }
    assert raw[8 + length :] == np.array([1.0, 2.0], "<f4").tobytes()
    assert length % 8 == 0


def test_a_file_that_exists_is_not_written_over(written):
    path, _ = written
    with pytest.raises(FileExistsError):
        write_tensors(path, {})


@pytest.mark.parametrize("place", [0, 8, 40, -1])
def test_any_changed_byte_is_refused(written, place):
    path, sha256 = written
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"a\.safetensors"):
        read_tensors(path, sha256)


def test_a_changed_byte_of_an_array_is_told_with_both_digests(written):
    path, sha256 = written
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(InputError, match=f"is damaged.*{sha256[:16]} was written"):
        read_tensors(path, sha256)


@pytest.mark.parametrize("kept", [0, 7, 8, 100, -1])
def test_a_file_that_was_cut_is_refused_from_its_header_alone(written, kept):
    path, _ = written
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"bytes|JSON"):
        tensor_names(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "I64"}, "dtype: must be"),
        ({"shape": [-1]}, "at least 0"),
        ({"shape": [3]}, r"'w' lies at 0\.\.8, 12 bytes from 0 on"),
        ({"data_offsets": [4, 12]}, r"'w' lies at 4\.\.12, 8 bytes from 0 on"),
        ({"more": 1}, "no key that is known"),
    ],
)
def test_a_header_that_does_not_describe_the_file_is_refused(tmp_path, changes, said):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes
    text = json.dumps({"w": entry}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(InputError, match=said):
        tensor_names(path)
