import pytest
import torch.distributed as dist

from hydraplan.errors import StalePlan
from hydraplan.executor.groups import World
from hydraplan.executor.plan_wire import encode_batch
from hydraplan.executor.prepare import prepare
from hydraplan.executor.same_step import batch_hash
from hydraplan.executor.settings import Settings
from hydraplan.executor.share_plan import share_plan
from hydraplan.files import planfile
from tests.builders import Place
from tests.plans import write_test_plan
from tests.processes import run_ranks

BATCHES = [
    [Place(33, 0, 2, 1), Place(8, 0, 1, 2, 1), Place(5, 1, 1, 1, 1)],
    [Place(20, 0, 1, 2), Place(0), Place(1, 1)],
]


@pytest.mark.dist
def test_under_torchrun_rank_0_alone_reads_batches_and_all_run_what_it_read(tmp_path, monkeypatch):
    plan = write_test_plan(tmp_path / "x.plan", BATCHES, pp=2, ranks=2)
    read = planfile._read_group
    monkeypatch.setenv("WORLD_SIZE", "4")

    def worker(rank):
        sent, groups, broadcast = [], [], dist.broadcast
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setattr(
            planfile, "_read_group", lambda *about: groups.append(about) or read(*about)
        )
        monkeypatch.setattr(
            dist, "broadcast", lambda x, source: sent.append(x.nbytes) or broadcast(x, source)
        )
        job = prepare(plan, [0, 1], Settings(timeout_s=9.0))
        assert job.is_shared
        assert len(groups) == (6 if rank == 0 else 0)
        job = share_plan(World(rank, 2, 2), job)
        assert len(groups) == (6 if rank == 0 else 0)
        hashes = [batch_hash(batch) for batch in job.batches]
        steps = [repr(job.steps[batch.batch]) for batch in job.batches]
        return [job.digest, hashes, steps, sent[2:]]

    found = run_ranks(worker, 4, timeout_s=60.0)
    assert found == found[:1] * 4
    monkeypatch.delenv("WORLD_SIZE")
    job = prepare(plan, [0, 1], Settings(timeout_s=9.0))
    assert not job.is_shared
    assert found[0][:2] == [job.digest, [batch_hash(batch) for batch in job.batches]]
    assert found[0][3] == [64 + sum(len(encode_batch(batch)) for batch in job.batches)]


@pytest.mark.dist
def test_a_host_whose_plan_folder_has_another_footer_refuses(tmp_path, monkeypatch):
    plans = [
        write_test_plan(tmp_path / f"{seed}", BATCHES, pp=1, ranks=2, lengths_digest=f"{seed}" * 64)
        for seed in range(2)
    ]
    monkeypatch.setenv("WORLD_SIZE", "2")

    def worker(rank):
        monkeypatch.setenv("RANK", str(rank))
        job = prepare(plans[rank], [0], Settings(timeout_s=9.0))
        try:
            share_plan(World(rank, 1, 2), job)
        except StalePlan as error:
            return str(error)
        return ""

    said = "the plan folder of rank 1 (stage 0, lane 1) has another footer than rank 0's"
    assert run_ranks(worker, 2, timeout_s=60.0) == ["", said]
