"""64 workers on one machine: one step of a tiny model, a clean end, open files as allowed for."""

import json
import os

import pytest

from hydraplan.executor.launch import FILES_A_WORKER, FILES_BASE, run_workers
from hydraplan.executor.prepare import prepare
from hydraplan.executor.settings import Settings
from hydraplan.executor.worker import run_step, set_up
from tests.builders import Place
from tests.executor.started import workers_of
from tests.plans import write_test_plan

PP, RANKS, TIMEOUT_S = 2, 32, 300.0
PLACES = [
    Place(700, 0, 8, 4), Place(300, 0, 1, 32), Place(90, 0, 8, 1), Place(64, 8, 4, 2),
    *(Place(20 + lane, lane) for lane in range(16, 32)),
    Place(500, 0, 2, 16, 1), Place(77, 0, 4, 4, 1), Place(41, 16, 2, 1, 1), Place(3, 31, 1, 1, 1),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(300)
def test_64_workers_take_a_step_end_cleanly_and_keep_to_their_open_files(tmp_path):
    plan = write_test_plan(tmp_path / "x.plan", [PLACES], pp=PP, ranks=RANKS)
    job = prepare(plan, [0], Settings(timeout_s=TIMEOUT_S))
    before, children = len(os.listdir("/proc/self/fd")), workers_of(os.getpid())

    def entry(world):
        measured = run_step(set_up(world, job), job, job.batches[0])
        said = {"files": len(os.listdir("/proc/self/fd"))}
        if measured is not None:
            said |= {"loss": measured.loss, "sent": measured.sent_bytes.tolist()}
        (tmp_path / f"{world.rank}.json").write_text(json.dumps(said))

    assert run_workers(entry, PP, RANKS, TIMEOUT_S)
    said = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(PP * RANKS)]
    assert 3 < said[0]["loss"] < 6  # ln 64 is 4.2
    assert min(map(min, said[0]["sent"][1])) > 0  # every rank is in a group
    most = max(each["files"] for each in said)
    assert PP * RANKS < most <= before + FILES_BASE + FILES_A_WORKER * PP * RANKS
    assert workers_of(os.getpid()) == children
    left = len(os.listdir("/proc/self/fd"))
    assert left <= before + 2  # Python keeps a pipe from its first start of a process on
