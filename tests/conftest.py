"""One thread everywhere: tests fork worker processes, and threads do not survive a fork.

Hypothesis draws the same cases in every run, has no deadline and never minds how long drawing
takes, since a test never judges wall time.
"""

import inspect
import os
import signal
from functools import partial

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
for size in ("COLUMNS", "LINES"):  # readline leaves them to the processes of pytest-xdist
    os.environ.pop(size, None)

signal.signal(signal.SIGINT, signal.default_int_handler)
"""What shells start in the background ignores SIGINT, and tests send it."""

inspect.stack = partial(inspect.stack, context=0)
"""Without lines of source: torch's launcher asks for it 18 times a run just to name its caller,
which costs 1.5 s of CPU at the depth that tests are called from."""

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")
