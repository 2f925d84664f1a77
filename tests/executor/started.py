"""The command as a process of its own, and its workers."""

import os
import subprocess
import sys
from pathlib import Path


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "hydraplan", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def workers_of(parent):
    """Process ids of the living children of a process, by start."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, ppid = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(ppid) == parent and state != "Z":
                found.append(int(entry.name))
    return sorted(found)


def first_step(process):
    """Wait until the run has made a step; its workers."""
    for line in process.stderr:
        if line.startswith("step 1/"):
            return workers_of(process.pid)
    raise AssertionError(process.communicate())
