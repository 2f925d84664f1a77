"""Two profiles beside each other, as numbers and as the command prints them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.cli.app import run
from hydraplan.config import load_cluster, load_model
from hydraplan.errors import InputError
from hydraplan.files.profilefile import Profile, ProfileHeader, write_profile
from hydraplan.profiler.analytic import analytic_header
from hydraplan.profiler.drift import drift

HEADER = analytic_header(load_cluster("h100-sxm"), load_model("llama-8b"))


def changed(name: str, **fields: object) -> ProfileHeader:
    """The header with other coefficients in one component."""
    part = getattr(HEADER.fit, name).model_copy(update=fields)
    return HEADER.model_copy(update={"fit": HEADER.fit.model_copy(update={name: part})})


def profile(header: ProfileHeader) -> Profile:
    return Profile(header, "0" * 64)


def written(folder: Path, **headers: ProfileHeader) -> list[str]:
    paths = [folder / f"{name}.profile.parquet" for name in headers]
    for path, header in zip(paths, headers.values(), strict=True):
        write_profile(path, header, [])
    return list(map(str, paths))


def test_a_profile_has_not_drifted_from_itself() -> None:
    found = drift(profile(HEADER), profile(HEADER))
    assert {p.drift for p in found.predictions} == {0.0}
    assert found.settings == ()
    assert found.beyond(0.0) == ""
    assert {p.component for p in found.predictions} >= {
        "attention_forward", "attention_backward", "linear_forward", "linear_input",
        "linear_weight", "memory_bytes_per_s", "node_all_to_all", "fabric_p2p",
    }  # fmt: skip


def test_predicted_seconds_are_those_of_the_formulas() -> None:
    found = drift(profile(HEADER), profile(HEADER)).predictions
    seconds = {(p.component, p.size): p.old_s for p in found}
    # 4 * 1024 * 1025 / 2 * 32 * 128 flops at 620e12, half at 200 rows, and a call of 20 us
    pairs_flops = 4 * 1024 * 1025 / 2 * 32 * 128
    expected = 20e-6 + pairs_flops / 620e12 * (1 + 200 / 1024)
    assert seconds["attention_forward", 1024] == pytest.approx(expected, rel=1e-12)
    # 4096 * 128 * 80 + 3 * 4096 * 14336 = 218,103,808 weights
    assert seconds["linear_weight", 8192] == pytest.approx(
        40e-6 + 2 * 8192 * 218_103_808 / 600e12, rel=1e-12
    )
    assert seconds["fabric_p2p", 1 << 20] == pytest.approx(25e-6 + (1 << 20) / 45e9, rel=1e-12)
    assert seconds["memory_bytes_per_s", 1 << 26] == pytest.approx((1 << 26) / 2.85e12, rel=1e-12)


@given(st.floats(0.05, 20))
def test_a_component_that_became_slower_or_faster_drifts_alone_and_by_that_factor(
    factor: float,
) -> None:
    linear = HEADER.fit.linear_input
    new = changed(
        "linear_input", flops_per_s=linear.flops_per_s / factor, call_s=linear.call_s * factor
    )
    found = drift(profile(HEADER), profile(new))
    for p in found.predictions:
        expected = factor if p.component == "linear_input" else 1.0
        assert p.change == pytest.approx(expected - 1, abs=1e-9)
        assert p.drift == pytest.approx(max(expected, 1 / expected) - 1, abs=1e-9)
    back = drift(profile(new), profile(HEADER))
    assert [p.drift for p in back.predictions] == pytest.approx(
        [p.drift for p in found.predictions]
    )


def test_other_layouts_of_the_machine_are_beyond_any_limit_and_other_versions_within() -> None:
    fit = HEADER.fit.model_copy(update={"devices_per_node": 4})
    found = drift(profile(HEADER), profile(HEADER.model_copy(update={"fit": fit})))
    assert found.beyond(1e9) == "devices_per_node was 8 and is 4"
    newer = HEADER.model_copy(update={"versions": {"hydraplan": "9", "torch": "2.99"}})
    found = drift(profile(HEADER), profile(newer))
    assert found.beyond(0.0) == ""
    assert ("torch", "absent", "2.99", False) in found.settings


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (analytic_header(load_cluster("h100-sxm"), load_model("llama-70b")),
         "different models: num_layers of llama-8b is 32, of llama-70b 80"),
        (analytic_header(load_cluster("a100-sxm"), load_model("llama-8b")),
         "device is 'analytic h100-sxm' and 'analytic a100-sxm'"),
        (HEADER.model_copy(update={"mode": "measured"}), "mode is 'analytic' and 'measured'"),
    ],
)  # fmt: skip
def test_profiles_of_other_models_or_devices_are_refused_with_both_values(
    other: ProfileHeader, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        drift(profile(HEADER), profile(other))


def test_another_name_of_the_same_shape_is_the_same_model() -> None:
    model = HEADER.model.model_copy(update={"name": "mine"})
    assert drift(profile(HEADER), profile(HEADER.model_copy(update={"model": model})))


def test_the_command_shows_what_changed_and_exits_1_only_beyond_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = changed("attention_forward", flops_per_s=310e12)
    paths = written(tmp_path, old=HEADER, new=slow)
    assert run(["profile", "diff", *paths]) == 0
    out = capsys.readouterr().out
    assert "attention_forward.flops_per_s" in out
    assert "linear_input.flops_per_s" not in out
    assert run(["profile", "diff", *paths, "--limit", "1.0"]) == 0
    capsys.readouterr()
    assert run(["profile", "diff", *paths, "--limit", "0.1"]) == 1
    err = capsys.readouterr().err
    assert "beyond --limit 0.1: attention_forward at 65,536 rows" in err
    assert "Traceback" not in err


def test_json_is_one_object_with_the_version_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = written(tmp_path, old=HEADER, new=changed("node_p2p", latency_s=1.0))
    assert run(["profile", "diff", *paths, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert next(iter(values)) == "schema_version"
    assert (values["limit"], values["within"]) == (None, None)
    assert values["drift_max"] == max(p["drift"] for p in values["predictions"])
    assert run(["profile", "diff", *paths, "--json", "--limit", "0.5"]) == 1
    assert json.loads(capsys.readouterr().out)["within"] is False


@pytest.mark.parametrize("limit", ["-0.1", "nan", "inf", "many"])
def test_a_limit_that_is_no_share_is_exit_2(
    limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = written(tmp_path, old=HEADER, new=HEADER)
    assert run(["profile", "diff", *paths, "--limit", limit]) == 2
    assert capsys.readouterr().out == ""


def test_its_limit_may_stand_in_the_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = written(tmp_path, old=HEADER, new=changed("linear_input", flops_per_s=300e12))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hydraplan.toml").write_text("[profile-diff]\nlimit = 0.1\n")
    assert run(["profile", "diff", *paths]) == 1
    monkeypatch.setenv("HYDRAPLAN_PROFILE_DIFF_LIMIT", "2.0")
    assert run(["profile", "diff", *paths]) == 0


def test_the_profile_command_beside_it_works_as_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "p.profile.parquet")
    asked = ["--device", "analytic", "--cluster", "h100-sxm", "--model", "qwen-32b", "-o", path]
    assert run(["profile", *asked]) == 0
    assert "model qwen-32b" in capsys.readouterr().out
    assert run(["profile", "diff"]) == 2
    assert "hydraplan profile diff --help" in capsys.readouterr().err
    assert run(["profile"]) == 2
    assert "hydraplan profile --help" in capsys.readouterr().err
