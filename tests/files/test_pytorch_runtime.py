"""Our CSVs run in PyTorch's own pipelining runtime, with the gradients of one process; we read its.

Each rank is a forked gloo process with a time-out. The runtime, its CSV loader and nothing of our
executor do the work.
"""

import csv
import io
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from hydraplan.errors import InputError
from hydraplan.files.pytorch_csv import compute_rows, csv_text, parse, write_csv
from hydraplan.model import Op
from hydraplan.planner.pipeline.lowering import lower
from hydraplan.planner.pipeline.pytorch_form import lowered_rows
from hydraplan.planner.pipeline.pytorch_proof import file_deadlock
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.route import route
from tests.planner.test_pytorch_proof import CROSSED, LATE
from tests.processes import RankFailed, run_ranks

WIDTH, ROWS = 8, 3


def layers(number):
    """A stage for every number below `number`, the same weights in every process."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(number):
        stage = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        stage.double()
        with torch.no_grad():
            for p in stage.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / 3)
        made.append(stage)
    return made


def inputs(count):
    generator = torch.Generator().manual_seed(8)
    shape = (count * ROWS, WIDTH)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))


def loss_of(output, target):
    return (output - target).square().sum()


def one_process(number, count):
    """Gradients of every stage, mean over the microbatches, as PyTorch scales them."""
    model = nn.Sequential(*layers(number))
    value, target = inputs(count)
    (loss_of(model(value), target) / count).backward()
    return [[p.grad for p in stage.parameters()] for stage in model]


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("kind", ["compute_only", "compute_comms"])
@pytest.mark.parametrize(
    ("name", "ranks", "count"),
    [("1f1b", 4, 6), ("zb-h1", 4, 6), ("zb-v", 4, 6), ("zb-v", 3, 2), ("interleaved", 3, 5)],
)
def test_a_csv_runs_in_pytorch_with_the_gradients_of_one_process(
    name, ranks, count, kind, tmp_path
):
    pipeline = SCHEDULES[name]
    chunks = pipeline.chunks or 2
    way = route(pipeline.route, ranks, chunks)
    schedule = pipeline.make(ranks, count, chunks)
    path = tmp_path / "x.csv"
    if kind == "compute_only":
        write_csv(path, compute_rows(schedule, way))
    else:
        write_csv(path, lowered_rows(lower(schedule, way, count), way))
    assert any(op == Op("W", 0) for op in schedule[0]) == name.startswith("zb")
    number = ranks * chunks
    on_rank = [[] for _ in range(ranks)]
    for stage, row in enumerate(on_rank):
        row += [stage, number - 1 - stage] if name == "zb-v" else range(stage, number, ranks)
    found = gradients(path, kind, on_rank, count)
    expected = one_process(number, count)
    assert sorted(found) == list(range(number))
    for i, stage in enumerate(expected):
        for grad, wanted in zip(found[i], stage, strict=True):
            torch.testing.assert_close(grad, wanted, rtol=1e-12, atol=1e-12)


def gradients(path, kind, on_rank, count, timeout_s=60.0):
    """Gradients of every stage, as PyTorch's runtime makes them from a file on gloo."""
    number = sum(map(len, on_rank))

    def worker(rank):
        warnings.simplefilter("ignore")  # what torch says of itself is not ours
        mine = {i: stage for i, stage in enumerate(layers(number)) if i in on_rank[rank]}
        cpu = torch.device("cpu")
        stages = [PipelineStage(mine[i], i, number, cpu) for i in on_rank[rank]]
        runtime = _PipelineScheduleRuntime(stages, count, loss_fn=loss_of)
        runtime._load_csv(str(path), format=kind)
        value, target = inputs(count)
        runtime.step(
            *([value] if 0 in mine else []), **({"target": target} if number - 1 in mine else {})
        )
        return {i: [p.grad.tolist() for p in stage.parameters()] for i, stage in mine.items()}

    answers = run_ranks(worker, len(on_rank), timeout_s=timeout_s)
    return {
        int(i): [torch.tensor(grad, dtype=torch.float64) for grad in grads]
        for answer in answers
        for i, grads in answer.items()
    }


@pytest.mark.slow
@pytest.mark.dist
def test_what_is_said_of_a_file_is_what_becomes_of_it_in_pytorch_on_gloo(tmp_path):
    """Right gradients, gradients of mixed up messages without a word, or no end."""
    path = tmp_path / "x.csv"
    expected = one_process(2, 2)

    def run_in_pytorch(text):
        first, second = text.splitlines()
        path.write_text(f"{first},0REDUCE_GRAD\n{second},1REDUCE_GRAD\n")
        found = gradients(path, "compute_comms", [[0], [1]], 2, timeout_s=10.0)
        return max(
            float((grad - wanted).abs().max())
            for i, stage in enumerate(expected)
            for grad, wanted in zip(found[i], stage, strict=True)
        )

    assert "though gloo does" in file_deadlock(parse(CROSSED, "x.csv"))
    assert run_in_pytorch(CROSSED) < 1e-12
    mixed = CROSSED.replace("1RECV_F0,1F0,1B0,1RECV_F1", "1RECV_F1,1RECV_F0,1F0,1B0")
    with pytest.raises(
        InputError, match=r"1RECV_F1 .* takes what row 1 sends in column 2, 0SEND_F0"
    ):
        parse(mixed, "x.csv")
    assert run_in_pytorch(mixed) > 1e-3
    assert "neither gloo nor NCCL" in file_deadlock(parse(LATE, "x.csv"))
    with pytest.raises(RankFailed):
        run_in_pytorch(LATE)


@pytest.mark.parametrize("with_messages", [False, True])
@pytest.mark.parametrize(
    ("name", "route_name"),
    [("Interleaved1F1B", "loop"), ("LoopedBFS", "loop"), ("InterleavedZeroBubble", "loop"),
     ("ZBVZeroBubble", "v"), ("DualPipeV", "v")],
)  # fmt: skip
def test_what_pytorch_dumps_is_read_action_for_action(name, route_name, with_messages):
    theirs = get_schedule_ops(name, 4, 8, 2, with_comms=with_messages)
    file = io.StringIO(newline="")
    csv.writer(file).writerows(theirs)
    found = parse(file.getvalue(), "x.csv")
    assert (found.route, found.num_chunks, found.num_microbatches) == (route_name, 2, 8)
    assert file_deadlock(found) == ""
    texts = [[str(action or "") for action in row] for row in theirs]
    ours = csv_text(found.rows)
    assert ours == "".join(",".join(row) + "\n" for row in texts)
    again = [[_Action.from_str(cell) for cell in line.split(",")] for line in ours.split()]
    assert again == theirs


def test_what_we_write_pytorch_parses_action_for_action():
    way = route("v", 3, 2)
    rows = compute_rows(SCHEDULES["dualpipe-v"].make(3, 6, 2), way)
    for line, row in zip(csv_text(rows).splitlines(), rows, strict=True):
        parsed = [_Action.from_str(cell) for cell in line.split(",")]
        flat = [a for action in parsed for a in action.sub_actions or (action,)]
        told = [(a.computation_type.value, a.stage_index, a.microbatch_index) for a in flat]
        assert told == [tuple(action) for cell in row for action in cell]
