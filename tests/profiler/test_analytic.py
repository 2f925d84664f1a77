import json
from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hydraplan.config import builtin_names, load_cluster, load_model
from hydraplan.cost import CostModel
from hydraplan.costfit import LinkFit
from hydraplan.files.parquet import FOOTER_KEY
from hydraplan.files.profilefile import (
    PROFILE_SCHEMA,
    ProfileHeader,
    TermError,
    read_profile,
    write_profile,
)
from hydraplan.profiler.analytic import analytic_header
from hydraplan.profiler.report import as_text

CLUSTERS = ["a100-sxm", "b200-sxm", "h100-sxm", "h200-sxm"]


def header(cluster: str) -> ProfileHeader:
    return analytic_header(load_cluster(cluster), load_model("llama-8b"))


def test_the_four_clusters_are_built_in() -> None:
    assert builtin_names("cluster") == CLUSTERS


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_an_analytic_profile_reads_back_as_written_and_holds_no_measurement(
    tmp_path: Path, cluster: str
) -> None:
    path = tmp_path / "x.profile.parquet"
    write_profile(path, header(cluster), [])
    back = read_profile(path).header
    assert back == header(cluster)
    assert (back.mode, back.device) == ("analytic", f"analytic {cluster}")
    assert back.cluster == load_cluster(cluster)
    assert pq.read_table(path).num_rows == 0


def test_the_same_cluster_and_model_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.profile.parquet", tmp_path / "b.profile.parquet"
    write_profile(first, header("h100-sxm"), [])
    write_profile(second, header("h100-sxm"), [])
    assert first.read_bytes() == second.read_bytes()


def test_hopper_attention_follows_the_published_chart_within_its_causal_share() -> None:
    fit = header("h100-sxm").fit
    rows = np.array([512, 1024, 2048, 4096, 8192, 16384])
    forward = fit.attention_forward.flops_per_s / (1 + fit.attention_forward.half_rows / rows)
    chart = 0.95e12 * np.array([467, 565, 625, 638, 646, 648])
    np.testing.assert_allclose(forward, chart, rtol=0.05)
    backward = fit.attention_backward.flops_per_s / (1 + fit.attention_backward.half_rows / rows)
    chart = 0.95e12 * np.array([316, 424, 501, 542, 559, 561])
    np.testing.assert_allclose(backward, chart, rtol=0.06)


@pytest.mark.parametrize(("num_points", "shown"), [(1, "            -"), (2, "  100% / 100%")])
def test_an_error_left_out_needs_a_second_point(num_points: int, shown: str) -> None:
    term = TermError(
        name="memory_bytes_per_s", num_points=num_points, unit="bytes", median_error=0,
        worst_error=0, left_out_median=1, left_out_p90=1, smallest=8, largest=8,
    )  # fmt: skip
    made = header("h100-sxm").model_copy(update={"terms": (term,)})
    assert f"memory_bytes_per_s  {num_points:>7}   0.0%{shown}  2,850.00 GB/s" in as_text(made, [])


def test_a_third_tier_reads_from_toml_through_the_profile(tmp_path: Path) -> None:
    assert header("h100-sxm").fit.pod_p2p is None
    toml = (resources.files("hydraplan") / "data" / "cluster-h100-sxm.toml").read_text()
    (tmp_path / "pods.toml").write_text(
        f"devices_per_pod = 64\n{toml}\n[pod]\nbytes_per_s = 5e9\nlatency_s = 50e-6\n"
    )
    made = header(str(tmp_path / "pods.toml"))
    path = tmp_path / "x.profile.parquet"
    write_profile(path, made, [])
    fit = read_profile(path).header.fit
    assert fit == made.fit
    assert (fit.devices_per_node, fit.devices_per_pod) == (8, 64)
    assert fit.pod_p2p == LinkFit(bytes_per_s=5e9, latency_s=50e-6)
    assert "pod_p2p" in as_text(made, [])


def test_a_profile_from_before_the_third_tier_still_reads(tmp_path: Path) -> None:
    path, older = tmp_path / "x.profile.parquet", json.loads(header("h100-sxm").model_dump_json())
    for part in (older["fit"], older["cluster"]):
        for name in ("pod_p2p", "pod", "devices_per_pod"):
            part.pop(name, None)
    schema = PROFILE_SCHEMA.with_metadata({FOOTER_KEY: json.dumps(older).encode()})
    pq.write_table(schema.empty_table(), path)
    assert read_profile(path).header == header("h100-sxm")


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_longer_sequences_cost_more_on_every_cluster(cluster: str) -> None:
    cost = CostModel(header(cluster).fit, load_model("llama-8b"), 1, 1, 8, ((32,),))
    length = np.array([1, 100, 1_000, 10_000, 100_000, 1_000_000])
    one = np.ones_like(length)
    seconds = cost.sequence_s(length, one, one)
    assert (np.diff(seconds, axis=2) > 0).all()
