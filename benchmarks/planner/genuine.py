"""CPU time of the genuine BalancedCPScheduler of megatron-core 0.16.1, in a process of its own.

    python -m pip install --no-deps --target PEERS megatron-core==0.16.1
    python benchmarks/planner/genuine.py RANKS CAP_TOKENS [PEERS] < LENGTHS.json

prints CPU seconds and the number of groups of one call. It needs torch, which the scheduler
imports, and nothing else of Megatron: its process group is only asked for its size. A process of
its own keeps torch out of the planner's, whose time is taken in the same run.
"""

import json
import subprocess
import sys
import time
from importlib import import_module

from hydraplan.model import IntArray

VERSION = "megatron-core 0.16.1"


class PoolSize:
    """All that the scheduler wants of a process group."""

    def __init__(self, ranks: int) -> None:
        """A pool of so many ranks."""
        self.ranks = ranks

    def size(self) -> int:
        """How many ranks there are."""
        return self.ranks


def genuine(
    length_tokens: IntArray, ranks: int, cap_tokens: int, peers: str | None
) -> tuple[float, int]:
    """CPU seconds and groups of the genuine scheduler on these lengths.

    Args:
        peers: Folder it was installed to; None where it is in the environment.
    """
    words = [sys.executable, "-W", "ignore", __file__, str(ranks), str(cap_tokens)]
    words += [] if peers is None else [peers]
    done = subprocess.run(
        words, input=json.dumps(length_tokens.tolist()), capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise SystemExit(f"{VERSION} did not run:\n{done.stderr[-2000:]}")
    seconds, groups = done.stdout.split()[-2:]
    return float(seconds), int(groups)


def main() -> None:
    """Schedule the lengths on stdin once."""
    ranks, cap_tokens = int(sys.argv[1]), int(sys.argv[2])
    sys.path += sys.argv[3:4]
    module = import_module("megatron.core.pipeline_parallel.hybrid_cp_schedule")
    samples = list(enumerate(json.load(sys.stdin)))
    scheduler = module.BalancedCPScheduler(cap_tokens, PoolSize(ranks))
    began_s = time.process_time()
    groups, _ = scheduler.get_groups_and_subsamples(samples, None)
    print(time.process_time() - began_s, len(groups))


if __name__ == "__main__":
    main()
