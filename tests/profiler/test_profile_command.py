"""The profile command as people call it; in a process of its own where torch must be absent."""

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from hydraplan.cli.app import run
from hydraplan.cli.options import Attention
from hydraplan.files.profilefile import read_profile

ANALYTIC = ["--device", "analytic", "--cluster", "h100-sxm", "--model", "llama-8b"]
NO_TORCH = """
import sys
sys.modules["torch"] = None
from hydraplan.cli.app import main
main()
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Command:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Done:
        code = run([str(a) for a in arguments])
        return Done(code, *self.capsys.readouterr())


@pytest.fixture
def hydraplan(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def without_torch(*arguments: object) -> Done:
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_an_analytic_profile_says_that_nothing_was_measured(
    tmp_path: Path, hydraplan: Command
) -> None:
    path = tmp_path / "h100.profile.parquet"
    done = hydraplan("profile", *ANALYTIC, "-o", path)
    assert done.code == 0, done.err
    assert "analytic, not measured" in done.out
    assert read_profile(path).header.mode == "analytic"


def test_json_is_one_object_with_the_version_first(tmp_path: Path, hydraplan: Command) -> None:
    done = hydraplan("profile", *ANALYTIC, "-o", tmp_path / "p.parquet", "--json")
    values = json.loads(done.out)
    assert next(iter(values)) == "schema_version"
    assert (values["mode"], values["num_measurements"]) == ("analytic", 0)
    assert (values["components"], values["checks"], values["devices"]) == ([], [], [])
    assert values["fit"]["devices_per_node"] == 8


def test_a_float_model_on_a_built_in_cluster_is_accepted_with_a_note_and_on_a_file_without(
    tmp_path: Path, hydraplan: Command
) -> None:
    done = hydraplan("profile", *ANALYTIC[:-1], "tiny", "-o", tmp_path / "p.parquet")
    assert done.code == 0
    assert "bfloat16" in done.err
    own = tmp_path / "own.toml"
    own.write_text((resources.files("hydraplan") / "data/cluster-h100-sxm.toml").read_text())
    asked = [str(own) if part == "h100-sxm" else part for part in ANALYTIC[:-1]]
    done = hydraplan("profile", *asked, "tiny", "-o", tmp_path / "own.parquet")
    assert done.code == 0
    assert "bfloat16" not in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "tpu", "--model", "tiny"], "analytic, cpu, cuda"),
        (["--device", "analytic", "--model", "tiny"], "a100-sxm, b200-sxm, h100-sxm, h200-sxm"),
        ([*ANALYTIC[:2], "--cluster", "z9", "--model", "tiny"], "a100-sxm"),
        ([*ANALYTIC[:-1], "gpt9"], "gpt3-14.6b, llama-70b, llama-8b, qwen-32b, tiny"),
        ([*ANALYTIC, "--seconds", "3"], "no use with --device analytic"),
        ([*ANALYTIC, "--attention", "flash2"], "no use with --device analytic"),
        (["--device", "cpu", "--model", "tiny", "--attention", "fast"], "'fast' is not one of"),
        (["--device", "cpu", "--model", "tiny", "--seconds", "0"], "--seconds 0"),
        (["--device", "cpu", "--model", "tiny", "--seconds", "nan"], "--seconds nan"),
        (["--device", "cpu", "--model", "tiny", "--seconds", "9", "--quick"], "exclude"),
        (["--device", "cpu", "--model", "tiny", "--cluster", "h100-sxm"], "--cluster"),
    ],
)
def test_bad_usage_is_exit_2_names_what_is_known_and_writes_nothing(
    tmp_path: Path, hydraplan: Command, arguments: list[str], said: str
) -> None:
    done = hydraplan("profile", *arguments, "-o", tmp_path / "p.parquet")
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_stays_unless_forced(tmp_path: Path, hydraplan: Command) -> None:
    path = tmp_path / "p.parquet"
    path.write_text("mine")
    done = hydraplan("profile", *ANALYTIC, "-o", path)
    assert (done.code, path.read_text()) == (2, "mine")
    assert "--force" in done.err
    assert hydraplan("profile", *ANALYTIC, "-o", path, "--force").code == 0
    assert read_profile(path).header.device == "analytic h100-sxm"


def test_an_attention_kernel_that_does_not_work_here_is_exit_3_with_its_reason(
    tmp_path: Path, hydraplan: Command
) -> None:
    done = hydraplan(
        *("profile", "--device", "cpu", "--model", "tiny", "-o", tmp_path / "p.parquet"),
        *("--attention", "flash2"),
    )
    assert done.code == 3
    assert "attention kernel flash2 cannot be used for torch.float32 on cpu: " in done.err
    assert "hydraplan doctor" in done.err
    assert list(tmp_path.iterdir()) == []


def test_the_option_takes_every_attention_kernel() -> None:
    attention = pytest.importorskip("hydraplan.kernels.attention")
    named = get_args(get_args(get_args(Attention)[0])[0])
    assert sorted(named) == sorted(attention.NAMES)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_without_torch_a_measured_profile_is_exit_3_with_the_install_line(
    tmp_path: Path, device: str
) -> None:
    done = without_torch("profile", "--device", device, "--model", "tiny", "-o", tmp_path / "p")
    assert done.code == 3
    assert "pip install 'hydraplan[torch]'" in done.err
    assert list(tmp_path.iterdir()) == []


def test_analytic_profiles_need_no_torch(tmp_path: Path) -> None:
    done = without_torch("profile", *ANALYTIC, "-o", tmp_path / "p.parquet")
    assert done.code == 0, done.err


def test_cuda_without_a_cuda_device_is_exit_3(tmp_path: Path, hydraplan: Command) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    done = hydraplan(*["profile", "--device", "cuda", "--model", "tiny"], "-o", tmp_path / "p")
    assert done.code == 3
    assert "CUDA" in done.err
    assert list(tmp_path.iterdir()) == []
