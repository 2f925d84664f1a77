"""Bytes the ranks of a run sent, counted and by the formulas, in a line and as JSON."""

from typing import Any

import numpy as np

from hydraplan.files.trafficfile import KINDS, Traffic
from hydraplan.views import console

LABELS = ("between stages", "inside groups", "to sum gradients")


def traffic_json(traffic: Traffic) -> dict[str, Any]:
    """Mean bytes of a step over all ranks by kind; those sent are null where nothing was."""
    found = {}
    names = ("sent_bytes", "predicted_sent_bytes")
    for name, values in zip(names, (traffic.measured, traffic.predicted), strict=True):
        steps = None if values is None or not len(values) else values.sum(axis=(2, 3))
        means = [None] * len(KINDS) if steps is None else steps.mean(axis=0).tolist()
        found[name] = dict(zip(KINDS, means, strict=True))
    return found


def print_traffic(traffic: Traffic) -> None:
    """One line: bytes of a step by kind, and whether every rank sent what was predicted."""
    said = traffic_json(traffic)
    shown = said["predicted_sent_bytes" if traffic.measured is None else "sent_bytes"]
    parts = [f"{shown[kind]:,.0f} {label}" for kind, label in zip(KINDS, LABELS, strict=True)]
    verdict = "predicted"
    if traffic.measured is not None:
        apart = int((traffic.measured != traffic.predicted).any(axis=(0, 1)).sum())
        ranks = int(np.prod(traffic.predicted.shape[2:]))
        verdict = "as predicted" if not apart else f"{apart} of {ranks} ranks not as predicted"
    console.emit(f"bytes sent a step: {', '.join(parts)} ({verdict})")
