from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")

from hydraplan.config import load_model  # noqa: E402
from hydraplan.cost import CostModel  # noqa: E402
from hydraplan.errors import Infeasible, MissingDependency  # noqa: E402
from hydraplan.executor.profile_parts import ABOVE  # noqa: E402
from hydraplan.files.profilefile import (  # noqa: E402
    Measurement,
    WholeCheck,
    read_profile,
    write_profile,
)
from hydraplan.kernels.attention import choose_kernel  # noqa: E402
from hydraplan.profiler import profile  # noqa: E402
from hydraplan.profiler.attention_points import attention_flops, attention_points  # noqa: E402
from hydraplan.profiler.fit import COMPONENTS, rows_of  # noqa: E402
from hydraplan.profiler.profile import check_memory, profile_cpu  # noqa: E402


class Timed(Exception):
    """Raised where the attention would be timed, with the name of its kernel."""


@pytest.mark.parametrize(
    ("given", "timed"), [({}, "cpu"), ({"attention": "reference"}, "reference")]
)
def test_the_named_attention_kernel_is_timed(monkeypatch, given, timed) -> None:
    def stop(model, kernel, device):
        raise Timed(kernel.name)

    monkeypatch.setattr(profile, "measure_links", lambda seconds: LINKS)
    monkeypatch.setattr(profile, "attention_points", stop)
    with pytest.raises(Timed, match=timed):
        profile.profile_cpu(load_model("tiny"), 2.0, lambda text: None, ABOVE, **given)


def test_an_attention_kernel_that_does_not_work_is_refused_before_anything_is_timed(
    monkeypatch,
) -> None:
    monkeypatch.setattr(profile, "measure_links", lambda seconds: pytest.fail("timed"))
    with pytest.raises(MissingDependency, match="kernel cuda cannot be used"):
        profile.profile_cpu(load_model("tiny"), 2.0, lambda text: None, ABOVE, "cuda")


LINK = Measurement("p2p", "send", bytes=1e3, p10_s=1e-3)
LINKS = [
    LINK._replace(component=name, bytes=size)
    for name in ("p2p", "all_to_all")
    for size in (1e3, 1e4)
]


def measured(names: set[str]) -> list[Measurement]:
    """Rows of growing work for these coefficients."""
    sizes = [float(4**i) for i in range(1, 7)]
    return [
        Measurement(
            *COMPONENTS[name][:2], query_rows=int(x), key_rows=int(x),
            flops=1e9 * x, bytes=1e6 * x, p10_s=1e-3 * x,
        )
        for name in names
        for x in sizes
    ]  # fmt: skip


@pytest.mark.parametrize("missing", profile.NEEDED)
def test_a_part_that_no_memory_is_left_for_is_named(monkeypatch, missing: str) -> None:
    monkeypatch.setattr(profile, "measure_links", lambda seconds: LINKS)
    rows = measured(set(profile.NEEDED) - {missing})
    monkeypatch.setattr(profile, "sweep", lambda *args: rows)
    with pytest.raises(Infeasible, match=f"tiny: no memory to time {missing}"):
        profile.profile_cpu(load_model("tiny"), 2.0, lambda text: None, ABOVE)


def test_without_memory_for_whole_microbatches_a_profile_says_so(monkeypatch) -> None:
    monkeypatch.setattr(profile, "measure_links", lambda seconds: LINKS)
    monkeypatch.setattr(profile, "sweep", lambda *args: measured(set(profile.NEEDED)))
    notes: list[str] = []

    def check(*args: object) -> list[WholeCheck]:
        torch.empty(1 << 55, dtype=torch.uint8)
        return []

    above = ABOVE._replace(check=check)
    header, _ = profile.profile_cpu(load_model("tiny"), 2.0, notes.append, above)
    assert header.checks == ()
    assert notes[-1] == "there is no memory for whole microbatches"


@pytest.mark.dist
@pytest.mark.timeout(90)
def test_a_measured_cpu_profile_holds_every_component_and_sensible_costs(tmp_path: Path) -> None:
    model = load_model("tiny")
    threads = torch.get_num_threads()
    header, rows = profile_cpu(model, 2.0, lambda text: None, ABOVE)
    assert torch.get_num_threads() == threads
    assert (header.mode, header.cluster, header.model) == ("measured", None, model)
    assert set(header.versions) == {"hydraplan", "python", "torch"}

    timed = [name for name in COMPONENTS if not name.startswith("fabric")]
    for name in timed:
        assert len(rows_of(name, rows)) >= 1, name
    for row in rows:
        assert 0 < row.p10_s <= row.median_s <= row.p90_s
        assert row.flops > 0 or row.bytes > 0
    assert {(r.direction, r.causal) for r in rows if r.component == "attention"} == {
        ("forward", True),
        ("forward", False),
        ("backward", True),
        ("backward", False),
    }
    assert {r.num_heads for r in rows if r.component == "attention"} == {1, 2, 4, 8}
    terms = {term.name: term for term in header.terms}
    assert list(terms) == timed
    assert all(0 < term.smallest <= term.largest for term in terms.values())
    assert terms["linear_forward"].largest == max(
        r.query_rows for r in rows_of("linear_forward", rows)
    )
    assert all(row.num_samples >= 1 for row in rows)
    packed = [r for r in rows_of("attention_forward", rows) if r.calls > 1]
    assert {r.calls for r in packed} <= {8}
    assert header.fit.fabric_p2p == header.fit.node_p2p
    assert header.fit.segments_in_one_call is False

    cost = CostModel(header.fit, model, 1, 1, 8, ((4,),))
    length = np.array([16, 256, 4_096, 65_536])
    one = np.ones_like(length)
    assert (np.diff(cost.sequence_s(length, one, one), axis=2) > 0).all()

    path = tmp_path / "x.profile.parquet"
    write_profile(path, header, rows)
    assert read_profile(path).header == header
    assert [Measurement(*r.values()) for r in pq.read_table(path).to_pylist()] == rows


def test_attention_flops_are_those_the_cost_model_charges() -> None:
    assert attention_flops(3, 3, True, 2, 4) == 4 * 6 * 2 * 4
    assert attention_flops(3, 5, False, 2, 4) == 4 * 15 * 2 * 4
    cpu = torch.device("cpu")
    points = attention_points(load_model("tiny"), choose_kernel(cpu, torch.float32), cpu)
    forward, backward = min(points, key=lambda p: p.work).prepare()
    assert backward.row.flops == 2.5 * forward.row.flops


def test_a_model_of_which_one_layer_does_not_fit_is_refused_with_both_figures() -> None:
    model = load_model("llama-70b")
    head = 8192 * 128_256
    needed = 3 * 4 * head  # float32 weights and gradients, and casts
    check_memory(model, needed)
    with pytest.raises(Infeasible, match=r"llama-70b needs 11\.7 GiB to be timed, 11\.7 GiB are"):
        check_memory(model, needed - 1)
