"""Profiles by all ranks: which device is slow, from what they timed and from torchrun's workers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hydraplan.cli.app import run  # noqa: E402
from hydraplan.config import Cluster, load_cluster, load_model  # noqa: E402
from hydraplan.errors import InputError  # noqa: E402
from hydraplan.files.profilefile import (  # noqa: E402
    DeviceFactor,
    Measurement,
    read_profile,
    write_profile,
)
from hydraplan.files.speeds import read_speeds  # noqa: E402
from hydraplan.profiler.all_ranks import _links, device_factors, timed_seconds  # noqa: E402
from hydraplan.profiler.analytic import analytic_header  # noqa: E402
from hydraplan.profiler.exchanges import Place  # noqa: E402
from hydraplan.profiler.profile import DEVICES_PER_MACHINE  # noqa: E402

SLOW_RANK_1 = """
import os
from hydraplan.cli.app import main
from hydraplan.profiler import measure

honest = measure.cpu_timer


def slow(run):
    found = honest(run)
    return found._replace(seconds=10.0 * found.seconds)


if os.environ["RANK"] == "1":
    measure.cpu_timer = slow
main()
"""


def test_a_device_is_as_slow_as_the_middle_of_its_calls_over_those_of_all() -> None:
    rng = np.random.default_rng(0)
    calls = {f"call {i}": float(s) for i, s in enumerate(rng.uniform(1e-4, 1e-1, 40))}
    true = [1.0, 1.0, 1.3, 1.0, 0.9]
    seconds = [
        {name: s * factor * rng.uniform(0.98, 1.02) for name, s in calls.items()} for factor in true
    ]
    for name in list(calls)[:5]:
        seconds[1][name] *= 10  # disturbed
    assert device_factors(seconds) == pytest.approx(true, abs=0.02)


def test_calls_that_one_rank_alone_timed_tell_nothing() -> None:
    seconds = [{"a": 1.0, "b": 7.0}, {"a": 1.0}, {"a": 2.0, "c": 3.0}, {"d": 1.0}]
    assert device_factors(seconds).tolist() == [1.0, 1.0, 2.0, 1.0]
    assert device_factors([{"a": 1.0}, {"b": 1.0}]).tolist() == [1.0, 1.0]


def test_what_tells_devices_apart_is_attention_and_linear_work_by_its_shape() -> None:
    rows = [
        Measurement("attention", "forward", 8, 8, 2, 1, True, p10_s=1.0),
        Measurement("attention", "forward", 8, 8, 2, 1, True, p10_s=2.0, calls=8),
        Measurement("attention", "forward", 8, 8, 2, 1, True, p10_s=2.5, flops=8e3),
        Measurement("linear", "input", 16, p10_s=3.0),
        Measurement("p2p", "send", bytes=1.0, p10_s=4.0),
    ]
    assert sorted(timed_seconds(rows).values()) == [1.0, 2.0, 2.5, 3.0]


def test_nodes_are_as_large_as_the_ranks_that_were_there_or_as_the_cluster_says() -> None:
    rows = [
        Measurement(component, "send", bytes=sent, ranks=2, p10_s=1e-5 + sent / 1e9)
        for component in ("all_to_all", "p2p", "fabric_all_to_all", "fabric_p2p")
        for sent in (1e3, 1e6)
    ]
    cluster, cpu = load_cluster("h100-sxm"), torch.device("cpu")

    def size(nodes: int, known: Cluster | None) -> object:
        here = Place(0, 4 * nodes, 4, cpu)
        return _links(rows[: 4 * nodes], here, known).fits["devices_per_node"]

    assert size(1, cluster) == cluster.devices_per_node == 8
    assert size(1, None) == DEVICES_PER_MACHINE
    assert size(2, cluster) == size(2, None) == 4


@pytest.fixture(scope="module")
def by_all(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A profile by two workers of torchrun, rank 1 ten times as slow, and what was printed."""
    folder = tmp_path_factory.mktemp("all")
    script, path = folder / "slow.py", folder / "all.profile.parquet"
    script.write_text(SLOW_RANK_1)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [
            *(sys.executable, *words, str(script), "profile", "--device", "cpu"),
            *("--model", "tiny", "--seconds", "4", "-o", str(path), "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("measuring on 2 ranks") == done.stderr.count("attention by") == 1
    return path, done.stdout


@pytest.mark.slow
@pytest.mark.dist
def test_torchruns_workers_write_one_profile_that_names_the_slow_one(by_all) -> None:
    path, printed = by_all
    said = json.loads(printed)  # one object, from rank 0 alone
    header = read_profile(path).header
    assert header.mode == said["mode"] == "measured"
    assert "2 ranks on 1 node" in header.device
    first, second = (device.factor for device in header.devices)
    assert second / first > 4  # 10, and two cores that other tests share are not equally fast
    assert {term.name for term in header.terms} >= {"node_all_to_all", "attention_forward"}
    assert header.fit.fabric_p2p == header.fit.node_p2p


@pytest.mark.slow
@pytest.mark.dist
def test_plan_takes_its_speeds_and_gives_the_slow_lane_less(by_all, tmp_path, capsys) -> None:
    path, _ = by_all
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("\n".join(str(100 + 7 * i % 400) for i in range(200)))
    code = run(
        [
            *("plan", str(lengths), "--profile", str(path), "--rank-speed", str(path)),
            *("--ranks", "2", "--pp", "1", "--max-tokens-per-rank", "4096"),
            *("--batch-sequences", "200", "-o", str(tmp_path / "x.plan"), "--json"),
        ]
    )
    assert code == 0
    assert json.loads(capsys.readouterr().out)["batches"]
    fast, slow = read_speeds(path, 2)
    assert slow / fast < 0.25


def test_a_lane_is_as_slow_as_the_slowest_device_of_all_its_stages(tmp_path) -> None:
    path = tmp_path / "p.profile.parquet"
    header = analytic_header(load_cluster("h100-sxm"), load_model("tiny"))
    write_profile(path, header, [])
    with pytest.raises(InputError, match="made by one device"):
        read_speeds(path, 2)
    factors = [1.0, 1.0, 1.0, 1.25, 1.0, 2.0, 1.0, 1.0]  # stage, lane, tp
    devices = [
        DeviceFactor(world_rank=i, device="x", factor=factor) for i, factor in enumerate(factors)
    ]
    write_profile(path, header.model_copy(update={"devices": tuple(devices)}), [])
    assert read_speeds(path, 2, pp=2, tp=2) == (0.5, 0.8)
    with pytest.raises(InputError, match="made by 8 devices, pp 1 x ranks 2 x tp 2 are 4"):
        read_speeds(path, 2, pp=1, tp=2)
