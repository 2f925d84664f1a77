"""A run folder has one writer, and its runs are made one at a time."""

import fcntl
import os

import pytest

from hydraplan.errors import InputError
from hydraplan.executor.folder import one_at_a_time, sole_writer
from hydraplan.files.runfile import recorder
from tests.executor.trained import BATCHES, train
from tests.plans import write_test_plan

pytestmark = pytest.mark.dist


def test_runs_are_made_in_a_folder_one_at_a_time(tmp_path):
    other = os.open(tmp_path, os.O_RDONLY)
    try:
        with one_at_a_time(tmp_path), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)


def test_a_run_is_held_from_its_first_step_on(tmp_path):
    """Rank 0 is the one that writes; here it asks for its own run a second time."""
    plan = write_test_plan(tmp_path / "x.plan", BATCHES, pp=1, ranks=2)
    output = tmp_path / "x.run"

    def again(path):
        with pytest.raises(InputError, match="is being written"), sole_writer(path):
            pass
        return recorder(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydraplan.executor.run.recorder", again)
        assert len(train(plan, output=output, steps=1).steps) == 1
