"""`hydraplan doctor`: what works on this machine, and why the rest does not.

Everything is tried, not looked up: libraries are imported, gloo opens a group, numba finds
its cache. Nothing is measured and nothing is changed.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import typer

State = Literal["ok", "limited", "absent"]


class Finding(NamedTuple):
    """One part of the machine: its state, what was seen, and what needs it."""

    part: str
    state: State
    detail: str
    needed_for: str


PLANNING = ("numpy", "pyarrow", "numba", "pydantic", "rich")
OTHERS = {
    "pandas": "tables in notebooks",
    "ortools": "strategy and schedule exact (CP-SAT)",
}
TOKENIZERS = "--tokenizer: texts and messages of JSONL"
UNTAKEN = {
    "reference": "tried; slow, so auto takes it only where no other serves",
    "flash2": "tried; auto takes torch's own; by name: --attention flash2",
    "flash4": "tried; auto takes torch's own; by name: --attention flash4",
}
"""Why auto leaves a kernel that works."""

ENOUGH_FILES = 1024
"""Open files of a process; a worker holds a socket pair to every other worker."""


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what works on this machine and why not. Exit 3 if planning does not."""
    from hydraplan.errors import MissingDependency
    from hydraplan.views import console

    findings = [*_libraries(), *_torch(), *_machine()]
    broken = [f.part for f in findings if f.needed_for == "planning" and f.state == "absent"]
    if json:
        console.emit_json(
            {"can_plan": not broken, "findings": [finding._asdict() for finding in findings]}
        )
    else:
        console.print_table(["part", "state", "detail", "needed for"], findings)
    if broken:
        raise MissingDependency(
            f"planning does not work here: {', '.join(broken)}", "pip install hydraplan"
        )


def _libraries() -> Iterator[Finding]:
    import platform

    yield Finding("python", "ok", platform.python_version(), "planning")
    for name in PLANNING:
        yield _library(name, "planning")
    for name, purpose in OTHERS.items():
        yield _library(name, purpose)
    found = _library("tokenizers", TOKENIZERS)
    hint = "" if found.state == "ok" else "; pip install 'hydraplan[tokenizers]'"
    yield found._replace(detail=found.detail + hint)


def _library(name: str, purpose: str) -> Finding:
    import importlib
    from importlib import metadata

    try:
        importlib.import_module(name)
    except ImportError as error:
        return Finding(name, "absent", str(error), purpose)
    return Finding(name, "ok", metadata.version(name), purpose)


def _torch() -> Iterator[Finding]:
    found = _library("torch", "profile, execute, verify")
    yield found
    if found.state == "absent":
        return
    import torch

    yield _try("gloo", "execute on CPU", _gloo)
    built = (
        f"torch is built for CUDA {torch.version.cuda}"
        if torch.version.cuda
        else ("torch is built for CPU only")
    )
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("CUDA", "ok", f"{len(names)} x {names[0]}; {built}", "execute on GPU")
    else:
        yield Finding("CUDA", "absent", f"no device; {built}", "execute on GPU")
    yield from _kernels()


def _kernels() -> Iterator[Finding]:
    """The attention kernel that auto takes on each kind of device, and why not each other."""
    from hydraplan.kernels.attention import auto_choices, kernel_report
    from hydraplan.kernels.glue import glue_report

    choices = auto_choices()
    for device, dtype, name in choices:
        detail = f"auto takes kernel {name} for {str(dtype).removeprefix('torch.')}"
        state: State = "limited" if name == "reference" else "ok"
        yield Finding(f"attention on {device.type}", state, detail, "profile, execute, verify")
    taken = {name for _, _, name in choices}
    for name, works, reason in kernel_report():
        if works and name not in taken:
            reason = UNTAKEN.get(name, "tried")
        yield Finding(f"kernel {name}", "ok" if works else "absent", reason or "tried", "attention")
    name, works, reason = glue_report()
    detail = reason or "tried"
    yield Finding(f"kernel {name}", "ok" if works else "absent", detail, "merge, head moves on GPU")


def _machine() -> Iterator[Finding]:
    import os
    import resource

    from hydraplan.host import usable_cores

    yield _try("numba cache", "planning", _numba_cache)
    cores = usable_cores()
    yield Finding("cores", "ok", f"{cores} of {os.cpu_count()} usable", "execute on CPU")
    pages, free = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_AVPHYS_PAGES")
    gib = os.sysconf("SC_PAGE_SIZE") / 2**30
    yield Finding("memory", "ok", f"{pages * gib:.1f} GiB, {free * gib:.1f} GiB free", "execute")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= ENOUGH_FILES
    yield Finding(
        "open files",
        "ok" if enough else "limited",
        f"{soft} of at most {hard}" + ("" if enough else f"; ulimit -n {ENOUGH_FILES}"),
        "execute with many ranks",
    )


def _try(part: str, purpose: str, attempt: Callable[[], str]) -> Finding:
    """The finding of an attempt: what it returns, or why it failed."""
    from hydraplan.errors import first_line

    try:
        return Finding(part, "ok", attempt(), purpose)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        return Finding(part, "absent", first_line(error), purpose)


def _gloo() -> str:
    import tempfile

    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        raise RuntimeError("torch is built without gloo")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        dist.destroy_process_group()
    return "a group of one opens"


def _numba_cache() -> str:
    from hydraplan.planner.compiled import compiled

    dispatcher: Any = compiled(_probe)
    return f"in {dispatcher.stats.cache_path}"


def _probe(number: int) -> int:
    """Stand-in of a compiled function; numba chooses the cache of its file."""
    return number
