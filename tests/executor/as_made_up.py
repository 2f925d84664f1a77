"""The command on workers whose times are made up, for launchers that start it by themselves.

    torchrun ... -m tests.executor.as_made_up STAGE LANE FACTOR FIRST LAST DONE execute PLAN ...

`trained.make_up_times` for one rank in steps FIRST to LAST of a run that has DONE steps already.
"""

import sys

import pytest

from hydraplan.cli.app import run
from tests.executor.trained import make_up_times

if __name__ == "__main__":
    stage, lane, factor, first, last, done = map(int, sys.argv[1:7])
    with pytest.MonkeyPatch.context() as patch:
        make_up_times(patch, (stage, lane), range(first, last + 1), factor)[0] = done
        sys.exit(run(sys.argv[7:]))
