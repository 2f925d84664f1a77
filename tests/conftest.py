"""One thread everywhere: tests fork worker processes, and threads do not survive a fork."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
