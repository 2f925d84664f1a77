"""One thread everywhere: tests fork worker processes, and threads do not survive a fork.

Hypothesis draws the same cases in every run, has no deadline and never minds how long drawing
takes, since a test never judges wall time.
"""

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")
