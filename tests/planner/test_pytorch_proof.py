"""The proof of a file's own sends and receives, against its cells really played."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.files.pytorch_csv import compute_rows, csv_text, parse
from hydraplan.planner.pipeline.lowering import lower, receive_at_use
from hydraplan.planner.pipeline.pytorch_form import lowered_rows
from hydraplan.planner.pipeline.pytorch_proof import file_deadlock, file_steps, has_messages
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.route import RouteName, route
from tests.planner.csv_player import Player
from tests.planner.orders import made, random_order

NAMES = [name for name, pipeline in SCHEDULES.items() if pipeline.route != "both"]
SHAPES: list[tuple[RouteName, int, int]] = [("loop", 2, 1), ("loop", 4, 1), ("loop", 3, 2),
                                            ("loop", 2, 2), ("v", 3, 2), ("v", 2, 2)]  # fmt: skip


def judged(text: str) -> str:
    """What we say of a file: that it ends, whom it hangs on, or that it is no file at all."""
    try:
        found = parse(text, "x.csv")
    except InputError:
        return "refused"
    said = file_deadlock(found)
    return {"": "ends", "neither": "hangs on both", "NCCL": "hangs on NCCL"}[said.partition(" ")[0]]


def played(text: str) -> str:
    """The same, of the file really run."""
    gloo, nccl = (Player(text).verdict(backend) for backend in ("gloo", "nccl"))  # type: ignore[arg-type]
    if gloo == "hangs":
        return "hangs on both"
    if gloo == "ends":
        return "ends" if nccl == "ends" else "hangs on NCCL"
    return "refused"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("stages", "count"), [(1, 2), (2, 1), (2, 5), (4, 3), (4, 9)])
def test_every_schedule_written_with_its_messages_is_proven(
    name: str, stages: int, count: int
) -> None:
    schedule, way = made(name, stages, count)
    steps = lower(schedule, way, count)
    found = parse(csv_text(lowered_rows(steps, way)), "x.csv")
    assert has_messages(found) == (stages > 1)
    assert file_deadlock(found) == ""
    assert file_steps(found)[0] == steps
    assert Player(csv_text(found.rows)).verdict("nccl") == "ends"


@settings(max_examples=60)
@given(st.sampled_from(SHAPES), st.integers(1, 6), st.integers(0, 1 << 30))
def test_whatever_order_is_exported_with_its_messages_is_proven_and_keeps_its_bytes(
    shape: tuple[RouteName, int, int], count: int, seed: int
) -> None:
    way = route(*shape)
    text = csv_text(lowered_rows(lower(random_order(*shape, count, seed), way, count), way))
    found = parse(text, "x.csv")
    assert file_deadlock(found) == ""
    again = lower(found.schedule, route(found.route, shape[1], found.num_chunks), count)
    assert csv_text(found.rows) == csv_text(lowered_rows(again, way)) == text


def test_files_without_messages_have_none_to_prove() -> None:
    schedule, way = made("1f1b", 4, 6)
    found = parse(csv_text(compute_rows(schedule, way)), "x.csv")
    assert not has_messages(found)
    assert file_deadlock(found) == ""


CROSSED = (
    "0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1\n"
)
LATE = (
    "0F0,0F1,0SEND_F0,0RECV_B0,0B0,0SEND_F1,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"
)


def test_a_crossed_pair_is_told_with_rows_and_columns() -> None:
    """Both receive before they send: only tags or streams of their own let either go first."""
    assert file_deadlock(parse(CROSSED, "x.csv")).splitlines() == [
        "NCCL does not get through, though gloo does, these sends and receives; ranks wait for"
        " each other in a circle (ordered: one message of a rank after the other, as NCCL on one"
        " stream):",
        "  row 2 sends the gradients of microbatch 0 to row 1 (1SEND_B0, column 5) only after it"
        " has received the activations of microbatch 1 from row 1 (1RECV_F1, column 4)",
        "  row 1 sends the activations of microbatch 1 to row 2 (0SEND_F1, column 5) only after it"
        " has received the gradients of microbatch 0 from row 2 (0RECV_B0, column 4)",
    ]
    assert [Player(CROSSED).verdict(b) for b in ("gloo", "nccl")] == ["ends", "hangs"]  # type: ignore[arg-type]


def test_a_send_behind_the_answer_to_it_hangs_on_every_transport() -> None:
    assert file_deadlock(parse(LATE, "x.csv")).splitlines() == [
        "neither gloo nor NCCL gets through these sends and receives; ranks wait for each other in"
        " a circle (fifo: non-blocking in the order of a pair, without tags):",
        "  row 2 sends the gradients of microbatch 0 to row 1 (1SEND_B0, column 6) only after it"
        " has received the activations of microbatch 1 from row 1 (1RECV_F1, column 3)",
        "  row 1 sends the activations of microbatch 1 to row 2 (0SEND_F1, column 6) only after it"
        " has received the gradients of microbatch 0 from row 2 (0RECV_B0, column 4)",
    ]
    assert [Player(LATE).verdict(b) for b in ("gloo", "nccl")] == ["hangs", "hangs"]  # type: ignore[arg-type]


def test_receives_right_before_their_use_hang_on_nccl_but_for_gpipe() -> None:
    """What newcomers write; as `test_deadlock` has it of our own steps."""
    for name in NAMES:
        schedule, way = made(name, 4, 8)
        text = csv_text(lowered_rows(receive_at_use(schedule, way), way))
        assert judged(text) == played(text)
        assert (judged(text) == "ends") == (name == "gpipe"), name


def moved_about(seed: int) -> str:
    """A file with some sends and receives swapped, or sends put off and receives put earlier.

    Begins from our own order or from receives right before their use.
    """
    rng = random.Random(seed)
    name, stages, chunks = rng.choice(SHAPES)
    count = rng.randint(1, 4)
    if rng.random() < 0.3:
        schedule, way = made(rng.choice(NAMES), stages, count)
    else:
        schedule, way = random_order(name, stages, chunks, count, seed), route(name, stages, chunks)
    begin = rng.choice([lower(schedule, way, count), receive_at_use(schedule, way)])
    rows = [line.split(",") for line in csv_text(lowered_rows(begin, way)).splitlines()]
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        row = rng.choice(rows)
        messages = [i for i, cell in enumerate(row) if "SEND" in cell or "RECV" in cell]
        i, j = rng.choice(messages), rng.choice(messages)
        if rng.random() < 0.4:
            row[i], row[j] = row[j], row[i]
        else:
            cell = row.pop(i)
            near = rng.choice([1, 2, 3, len(row)])
            early = "RECV" in cell
            row.insert(max(0, i - near) if early else min(len(row), i + near), cell)
    return "\n".join(map(",".join, rows)) + "\n"


@pytest.mark.parametrize("seeds", [range(600), pytest.param(range(5000), marks=pytest.mark.slow)])
def test_the_proof_says_of_every_permuted_file_what_playing_it_shows(seeds: range) -> None:
    """Of all four kinds there are many, so that none is said for lack of another."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        text = moved_about(seed)
        said, shown = judged(text), played(text)
        # data that are mixed up are told first, whether or not the file hangs as well
        if said != "refused" or shown == "ends":
            assert said == shown, (seed, text)
        else:
            assert shown in ("refused", "hangs on both", "hangs on NCCL")
        seen[said] += 1
    assert set(seen) == {"ends", "hangs on both", "hangs on NCCL", "refused"}
    assert min(seen.values()) > len(seeds) // 60, seen
