"""The profile of this device, made by the command, and how well its coefficients explain it."""

import json
from collections.abc import Iterator
from pathlib import Path

from budget import Left, Row
from command import told
from devices import OTHER, known
from scale import Scale

PART = "profile"
SECONDS_SHARE = 0.75
"""Of the part's time; the last point and the warm-ups of a profile take some more."""


def profile_rows(scale: Scale, path: Path, left: Left) -> Iterator[Row]:
    """Write the profile to `path`; a row for every coefficient that was fitted."""
    words = ["profile", "--device", scale.target.type, "--model", scale.model]
    note = "links measured, too"
    if scale.is_cuda:
        gpu = known(scale.device_name)
        cluster = OTHER if gpu is None else gpu.cluster
        words += ["--cluster", cluster]
        note = f"links are those of {cluster}, not measured"
    seconds = SECONDS_SHARE * min(left.seconds(), scale.shares_s["profile"])
    told_json = told(*words, "--seconds", seconds, "-o", path, "--json")
    profile = json.loads(told_json)
    yield Row(PART, "measurements", profile["num_measurements"], "points", note=note)
    for component in profile["components"]:
        worst = f"worst {component['worst_error']:.0%} of {component['num_points']} points"
        name = f"{component['name']}: {rate_of(profile['fit'][component['name']])}"
        yield Row(PART, name, 100 * component["median_error"], "% median error", note=worst)


def rate_of(fit: object) -> str:
    """A fitted coefficient in words."""
    if not isinstance(fit, dict):
        return f"{float(str(fit)) / 1e9:,.1f} GB/s"
    if "flops_per_s" in fit:
        return f"{fit['flops_per_s'] / 1e12:,.4g} TFLOP/s, call {1e6 * fit['call_s']:.0f} us"
    return f"{fit['bytes_per_s'] / 1e9:,.1f} GB/s, latency {1e6 * fit['latency_s']:.0f} us"
