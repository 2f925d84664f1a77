import re
from importlib import resources
from pathlib import Path

import pytest

from hydraplan.config import UNSUPPORTED, builtin_names, load_cluster, load_model
from hydraplan.errors import InputError

DATA = resources.files("hydraplan") / "data"
SOURCE = re.compile(r"config\.json|arXiv|[Aa]ssumed|[Vv]endor|[Pp]ublished|our choice|one NIC of")

TINY = """
num_layers = 2
hidden_size = 8
num_heads = 2
num_kv_heads = 1
head_dim = 4
ffn_hidden_size = 8
vocab_size = 11
"""


def test_every_built_in_model_and_cluster_loads() -> None:
    assert {"tiny", "llama-8b"} <= set(builtin_names("model"))
    assert {"a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm"} == set(builtin_names("cluster"))
    for name in builtin_names("model"):
        assert load_model(name).name == name
    for name in builtin_names("cluster"):
        assert load_cluster(name).devices_per_node == 8


@pytest.mark.parametrize("key", sorted(UNSUPPORTED))
def test_what_hydraplan_would_do_wrong_is_refused_by_name(key: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(TINY + f"{key} = 4\n")
    with pytest.raises(InputError, match=f"{key} asks for {UNSUPPORTED[key]}"):
        load_model(str(path))


def test_a_model_whose_bytes_no_integer_counts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    wide = TINY.replace("head_dim = 4", f"head_dim = {1 << 40}")
    path.write_text(wide.replace("num_layers = 2", f"num_layers = {1 << 20}"))
    with pytest.raises(InputError, match=r"it would hold .* weights, at most 2\^50 can"):
        load_model(str(path))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("num_heads = 3", "TOML"),
        ("colour = 1", "colour: is no key that is known here .value 1."),
        ("dtype = 'int8'", "dtype: must be 'float64', 'float32', 'bfloat16' or 'float16' "),
        ("name = 7", "name: must be text in quotes .value 7."),
    ],
)
def test_a_wrong_key_or_value_is_named(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(TINY + line + "\n")
    with pytest.raises(InputError, match=said):
        load_model(str(path))


@pytest.mark.parametrize(
    ("pods", "tier", "said"),
    [
        ("devices_per_pod = 64", "", "go together, one is missing"),
        ("", "[pod]\nbytes_per_s = 1e9\nlatency_s = 0.0", "go together, one is missing"),
        (
            "devices_per_pod = 12",
            "[pod]\nbytes_per_s = 1e9\nlatency_s = 0.0",
            "devices_per_pod 12 is not a multiple of devices_per_node 8",
        ),
        ("devices_per_pod = 0", "[pod]\nbytes_per_s = 1e9\nlatency_s = 0.0", "devices_per_pod"),
        ("devices_per_pod = 64", "[pod]\nbytes_per_s = 1e9", "pod.latency_s: is missing"),
    ],
)
def test_a_pod_that_cannot_be_is_refused(pods: str, tier: str, said: str, tmp_path: Path) -> None:
    toml = (resources.files("hydraplan") / "data" / "cluster-h100-sxm.toml").read_text()
    path = tmp_path / "c.toml"
    path.write_text(f"{pods}\n{toml}\n{tier}\n")
    with pytest.raises(InputError, match=said):
        load_cluster(str(path))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("num_kv_heads = 1", "num_kv_heads = 3", "num_heads 2 is not a multiple"),
        ("head_dim = 4", "head_dim = 5", "head_dim 5 is odd"),
        ("num_layers = 2", "num_layers = 0", "num_layers: must be at least 1 .value 0."),
        ("num_layers = 2", "num_layers = 2.5", "num_layers: must be a whole number .value 2.5."),
        ("num_layers = 2", "", "num_layers: is missing"),
    ],
)
def test_shapes_that_cannot_be_are_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(TINY.replace(old, new))
    with pytest.raises(InputError, match=said):
        load_model(str(path))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a = " + "[" * 100_000, "is nested too deeply"),
        (f"num_layers = {10**30}", "num_layers: must be at most 1099511627776 "),
        ("num_layers = true", r"num_layers: must be a whole number \(value True\)"),
        ("num_layers = nan", r"num_layers: must be a whole number \(value nan\)"),
    ],
)
def test_a_hostile_model_file_is_one_refusal(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(TINY.replace("num_layers = 2", line))
    with pytest.raises(InputError, match=said):
        load_model(str(path))


@pytest.mark.parametrize("name", sorted(p.name for p in DATA.iterdir() if p.name[-5:] == ".toml"))
def test_every_constant_of_a_built_in_file_says_where_it_is_from_or_that_it_is_assumed(
    name: str,
) -> None:
    about, block, is_open = "", "", True
    for line in (DATA / name).read_text().splitlines():
        if line.startswith("#"):
            block = f"{block} {line}" if is_open else line
            is_open = True
        elif "=" in line:
            about = about or block  # of the whole file
            said = f"{about} {block}" if name.startswith("model") else block
            assert SOURCE.search(said) or line.startswith("devices_per_node"), f"{name}: {line}"
            is_open = False
