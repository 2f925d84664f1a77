"""Verdicts of a gate in every form that somebody reads: terminal, JSON, GitHub, Markdown, JUnit."""

import math
from collections.abc import Sequence
from xml.etree import ElementTree

from hydraplan.errors import many, printable
from hydraplan.gate import Verdict
from hydraplan.views import console

TITLE = "hydraplan check"


def gate_object(plan: object, baseline: object, found: Sequence[Verdict]) -> dict[str, object]:
    """Verdicts for `--json`."""
    return {
        "plan": plan,
        "baseline": baseline,
        "passed": all(verdict.is_kept for verdict in found),
        "limits": [
            {
                "kind": v.limit.kind,
                "figure": v.limit.figure,
                "limit": v.limit.value,
                "value": v.value,
                "baseline": v.baseline,
                "worse": _worse(v),
                "passed": v.is_kept,
            }
            for v in found
        ],
    }


def _worse(verdict: Verdict) -> float | None:
    return None if math.isnan(verdict.baseline) else verdict.worse


def print_gate(found: Sequence[Verdict]) -> None:
    """A row a limit and one countable last line."""
    console.print_table(
        ["figure", "value", "baseline", "worse by", "limit", "verdict"],
        [list(_cells(verdict)) for verdict in found],
        title="limits (figures are simulated, noise-free)",
    )
    failed = sum(not verdict.is_kept for verdict in found)
    console.emit(f"Check: {many(len(found), 'limit')}, {failed} broken")


def _cells(verdict: Verdict) -> tuple[object, ...]:
    share = _worse(verdict)
    is_share = verdict.limit.kind == "max-regress"
    sign = {"max-regress": "+", "max": "<= ", "min": ">= "}[verdict.limit.kind]
    bound = f"{verdict.limit.value:.2%}" if is_share else f"{verdict.limit.value:.6g}"
    return (
        verdict.limit.figure,
        verdict.value,
        "-" if share is None else verdict.baseline,
        "-" if share is None else f"{share:+.2%}",
        f"{sign}{bound}",
        "ok" if verdict.is_kept else "! broken",
    )


def github_lines(found: Sequence[Verdict]) -> list[str]:
    """Workflow commands, one a limit: `::error ...` for a broken one, `::notice ...` for others."""
    return [
        f"::{'notice' if v.is_kept else 'error'} title={_property(f'{TITLE}: {v.limit.figure}')}"
        f"::{_data(v.text())}"
        for v in found
    ]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(plan: object, found: Sequence[Verdict]) -> str:
    """A table for the summary of a job."""
    lines = [
        f"### {TITLE}: {'passed' if all(v.is_kept for v in found) else 'failed'}",
        "",
        f"`{printable(str(plan)).replace('`', '')}`, figures simulated, noise-free",
        "",
        "| figure | value | baseline | worse by | limit | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for verdict in found:
        cells = [f"{c:.6g}" if isinstance(c, float) else str(c) for c in _cells(verdict)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def junit(plan: object, found: Sequence[Verdict]) -> str:
    """A test suite of a test a limit, as JUnit writes them."""
    failed = str(sum(not verdict.is_kept for verdict in found))
    counts = {"tests": str(len(found)), "failures": failed, "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": TITLE, **counts})
    suite = ElementTree.SubElement(
        root, "testsuite", {"name": printable(str(plan)), **counts, "skipped": "0", "time": "0"}
    )
    for verdict in found:
        name = f"{verdict.limit.kind} {verdict.limit.figure}"
        case = ElementTree.SubElement(
            suite, "testcase", {"name": name, "classname": "hydraplan.check", "time": "0"}
        )
        if not verdict.is_kept:
            failure = {"message": verdict.text(), "type": verdict.limit.kind}
            ElementTree.SubElement(case, "failure", failure).text = verdict.text()
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"
