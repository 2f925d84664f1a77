from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.errors import InputError
from hydraplan.files.decisionsfile import Change, Decided, with_change
from hydraplan.files.memoryfile import Peaks
from hydraplan.files.opsfile import StepOps, simulated_waits
from hydraplan.files.planfile import open_plan, read_batch
from hydraplan.files.runfile import RunHeader, Step, append_steps, create_run, plan_digest
from hydraplan.files.speeds import read_speeds
from hydraplan.files.trafficfile import Traffic
from hydraplan.model import FloatArray
from hydraplan.places import Places
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.slots import slot_times
from tests.builders import Place
from tests.plans import write_test_plan

PLACES = [
    Place(40),
    Place(33, 1),
    Place(50, 0, 2, 1, 1),
    Place(16, 0, 1, 1, 2),
    Place(9, 1, 1, 1, 2),
]


def given(path: Path, content: str | bytes | dict[str, object]) -> Path:
    if isinstance(content, dict):
        pq.write_table(pa.table(content), path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "1\n0.5\n 2e0 \n"),
        ("a.txt", "\ufeff1.0\r\n.5\r\n2\r\n"),
        ("a.csv", "lane,speed\n0,1\n1,0.5\n2,2\n"),
        ("a.csv", 'host, factor ,note\n"a,b",1,\nc,0.5,slow\nd,"2",\n'),
        ("a", "speed\n1\n0.5\n2\n"),
        ("a.parquet", {"speed": [1.0, 0.5, 2.0]}),
        ("a.csv", "lane,speed\n2,2\n0,1\n1,0.5\n"),
        ("a.csv", "speed, rank\n0.5,1\n1,0\n2,2\n"),
        ("a.parquet", {"speed": [0.5, 2.0, 1.0], "rank": pa.array([1, 2, 0], pa.uint8())}),
        ("a", {"lane": [0, 1, 2], "factor": pa.array([1.0, 0.5, 2.0], pa.float32())}),
    ],
)
def test_speeds_are_read_in_lane_order(
    name: str, content: str | dict[str, object], tmp_path: Path
) -> None:
    assert read_speeds(given(tmp_path / name, content), 3) == (1.0, 0.5, 2.0)


def test_whole_numbers_in_parquet_are_speeds(tmp_path: Path) -> None:
    assert read_speeds(given(tmp_path / "a.parquet", {"speed": [1, 2]}), 2) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "", "a.txt is empty"),
        ("a.txt", "1\n1\n1\n", "holds 3 speeds, --ranks is 2"),
        ("a.txt", "1\n", "holds 1 speed, --ranks is 2"),
        ("a.txt", "1\n0\n", "lane 1 has speed 0, not from 0.001 to 1000"),
        ("a.txt", "-1\n1\n", "lane 0 has speed -1,"),
        ("a.txt", "1\nnan\n", "lane 1 has speed nan,"),
        ("a.txt", "1\ninf\n", "lane 1 has speed inf,"),
        ("a.txt", "1\n1001\n", "lane 1 has speed 1001,"),
        ("a.txt", "1\nfast\n", "line 2 has no speed: 'fast'"),
        ("a.txt", "1\n\n", "line 2 has no speed: ''"),
        ("a.txt", "fast\n1\n", "needs one column speed or factor"),
        ("a.txt", b"\xff\xfe1", "is not UTF-8 text"),
        ("a.csv", "speed,factor\n1,1\n1,1\n", "needs one column speed or factor"),
        ("a.csv", "lane,speed\n0,1\n1\n", "line 3 has no speed: ''"),
        ("a.csv", "speed\n", "holds 0 speeds"),
        ("a.csv", "lane,speed\n1,1\n1,1\n", "lane 1 stands twice"),
        ("a.csv", "lane,speed\n1,1\n2,1\n", "2 rows, none of them is of lane 0"),
        ("a.csv", "lane,speed\n0,1\n-1,1\n", "line 3 has no lane: '-1'"),
        ("a.csv", "speed,rank\n1,0\n1\n", "line 3 has no rank: ''"),
        ("a.csv", "lane,rank,speed\n0,0,1\n", "each of the columns lane, rank could be the lane"),
        ("a.csv", "lane,speed\n0,1\n", "holds 1 speed, --ranks is 2"),
        ("a.parquet", {"speed": [1.0, 1.0], "lane": [0.0, 1.0]}, "lanes are whole numbers"),
        ("a.parquet", {"speed": [1.0, 1.0], "lane": [0, None]}, "column lane holds empty cells"),
        ("a.parquet", {"speed": [1.0, 1.0], "lane": [3, 3]}, "lane 3 stands twice"),
        ("a.csv", "speed\n" + "1" * 200_000, "is not CSV: field larger than"),
        ("a.parquet", b"PAR1", "is not readable Parquet"),
        ("a.parquet", {"speed": ["1", "2"]}, "column speed holds string, speeds are numbers"),
        ("a.parquet", {"speed": [1.0, None]}, "column speed holds empty cells"),
        ("a.parquet", {"rate": [1.0, 1.0]}, "schema names 'rate'"),
    ],
)
def test_a_file_without_a_speed_for_every_lane_is_refused(
    name: str, content: str | bytes | dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        read_speeds(given(tmp_path / name, content), 2)


def test_nothing_at_the_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a file nor a run folder"):
        read_speeds(tmp_path / "x", 2)
    (tmp_path / "y").mkdir()
    with pytest.raises(InputError, match=r"y': a folder without steps.parquet is no run"):
        read_speeds(tmp_path / "y", 2)
    with pytest.raises(InputError, match=r"speeds '\.': a folder without steps.parquet is no run"):
        read_speeds(Path(""), 2)


def measured(
    folder: Path,
    slowness: FloatArray,
    *,
    steps: int = 3,
    noise: float = 0.0,
    places: Sequence[Place] = PLACES,
    change: Change | None = None,
) -> Path:
    """A run of a plan on 2 stages x 2 lanes whose ops took `slowness` (stages, lanes) too long."""
    path = write_test_plan(folder / "a.plan", [places], pp=2, ranks=2)
    plan = open_plan(path)
    batch = with_change(read_batch(plan, 0), change or Change())
    slots = slot_times(plan.header.cost_model(), batch.sequences.placed(), batch.num_microbatches)
    timeline = simulate(slots, batch.schedule)
    header = RunHeader(
        tool_version="0",
        mode="measured",
        device="cpu",
        dtype="float32",
        plan_name="a.plan",
        plan_digest=plan_digest(plan),
        plan=plan.header,
        steps=max(steps, 1),
        seed=0,
        learning_rate=1e-3,
        data="generated",
    )
    decided = change and Decided(0, 0, 1, change.kind, "", (), 1.0, 0.0, None, 0.0, change)
    rng = np.random.default_rng(0)
    create_run(folder / "a.run", header)
    for step in range(steps):
        busy = tuple(
            b * slowness[stage] * np.exp(rng.normal(0, noise, b.shape))
            for stage, b in enumerate(timeline.busy_s)
        )
        if step == 0 and steps > 1:
            busy = tuple(b * [1.0, 9.0] for b in busy)  # warming up
        took = replace(timeline, busy_s=busy)
        append_steps(
            folder / "a.run",
            [
                Step(
                    *(step, 0, 0, 3, 148, 143, 2.5),
                    *(StepOps(took, simulated_waits(took), timeline), Peaks(None, np.ones((2, 2)))),
                    Traffic(None, np.ones((3, 2, 2), np.int64)),
                    decided if step == 0 else None,
                )
            ],
        )
    return folder / "a.run"


def test_a_run_on_equal_ranks_gives_nominal_speeds_however_uneven_its_slots(tmp_path: Path) -> None:
    run = measured(tmp_path, np.full((2, 2), 3.0))
    assert read_speeds(run, 2) == (1.0, 1.0)


def test_a_lane_is_as_slow_as_its_slowest_rank_in_a_run(tmp_path: Path) -> None:
    # lanes of stage 0: 1 and 1; of stage 1: 1 and 3, the middle is 2
    run = measured(tmp_path, np.array([[1.0, 1.0], [1.0, 3.0]]))
    assert read_speeds(run, 2) == (1.0, 0.67)


def test_noise_of_a_tenth_hardly_moves_the_speeds_of_a_run(tmp_path: Path) -> None:
    run = measured(tmp_path, np.array([[1.0, 1.0], [1.0, 3.0]]), steps=17, noise=0.1)
    assert read_speeds(run, 2) == pytest.approx((1.0, 0.67), abs=0.04)


def test_a_run_of_one_step_counts_that_step(tmp_path: Path) -> None:
    assert read_speeds(measured(tmp_path, np.array([[1, 3], [1, 3]]), steps=1), 2) == (2.0, 0.67)


def test_a_step_that_ran_in_more_microbatches_than_planned_tells_by_its_own_places(
    tmp_path: Path,
) -> None:
    """Two microbatches by plan, three of them as decided; lane 1 takes twice as long."""
    planned = [Place(64, lane, 1, 1, m) for m in (0, 1, 1) for lane in (0, 1)]
    places = Places((0, 0, 1, 1, 2, 2), (0, 1) * 3, (1,) * 6, (1,) * 6)
    change = Change(SCHEDULES["1f1b"].make(2, 3, 1), places=places)
    slowness = np.array([[1.0, 2.0], [1.0, 2.0]])
    run = measured(tmp_path, slowness, places=planned, steps=2, change=change)
    assert read_speeds(run, 2) == (1.5, 0.75)


def test_a_run_that_cannot_tell_is_refused(tmp_path: Path) -> None:
    run = measured(tmp_path, np.ones((2, 2)))
    with pytest.raises(InputError, match=r"a\.run holds 2 speeds, --ranks is 4"):
        read_speeds(run, 4)
    (tmp_path / "a.plan").rename(tmp_path / "b.plan")
    with pytest.raises(InputError, match=r"the plan a\.plan of run .* lies neither beside it"):
        read_speeds(run, 2)
    write_test_plan(tmp_path / "a.plan", [[Place(7)]], pp=2, ranks=2)
    with pytest.raises(InputError, match="or is another one by now"):
        read_speeds(run, 2)
    empty = measured(tmp_path, np.ones((2, 2)), steps=0)
    with pytest.raises(InputError, match="has no finished step"):
        read_speeds(empty, 2)
    one_lane = measured(tmp_path, np.ones((2, 2)), places=[Place(40)])
    with pytest.raises(InputError, match="tells nothing of lane 1"):
        read_speeds(one_lane, 2)
    idle = measured(tmp_path, np.array([[1.0, 0.0], [1.0, 0.0]]))
    with pytest.raises(InputError, match="measured no time of its own on some lane"):
        read_speeds(idle, 2)


def test_a_run_that_lacks_rows_of_a_lane_is_refused(tmp_path: Path) -> None:
    run = measured(tmp_path, np.ones((2, 2)))
    file = pq.ParquetFile(run / "ops.parquet")
    table = file.read()
    kept = table.filter(pa.compute.not_equal(table.column("lane"), 1))
    pq.write_table(kept, run / "ops.parquet")
    with pytest.raises(InputError, match="step 1, stage 0 lacks rows of some lane"):
        read_speeds(run, 2)
