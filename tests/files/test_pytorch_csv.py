"""PyTorch's CSV: the same bytes after a round trip, and nothing but the exact format is read."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import InputError
from hydraplan.files.pytorch_csv import (
    compute_rows,
    csv_text,
    parse,
    read_csv,
    stage_indices,
    write_csv,
)
from hydraplan.model import Op, Schedule
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.route import RouteName, route

ONE_F_ONE_B = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
SPLIT = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1W0,1I1,1W1\n"
V = "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"
LOOP = "0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n"
WITH_MESSAGES = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
    "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n"
)
V_WITH_MESSAGES = (
    "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3B0,3RECV_F1,3SEND_B0,3F1,3B1,3SEND_B1,"
    "0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,2F0,1RECV_F1,2SEND_F0,1F1,2F1,2SEND_F1,2RECV_B0,2B0,1B0,1SEND_B0,"
    "2RECV_B1,2B1,1B1,1SEND_B1\n"
)


def test_a_schedule_is_read_as_it_stands():
    found = parse(SPLIT, "x.csv")
    assert (found.route, found.num_chunks, found.num_microbatches) == ("loop", 1, 2)
    assert found.schedule[1] == (
        Op("F", 0), Op("B", 0), Op("F", 1), Op("W", 0), Op("B", 1), Op("W", 1),
    )  # fmt: skip


@pytest.mark.parametrize(("text", "name", "chunks"), [(V, "v", [0, 1, 1, 0]), (LOOP, "loop", None)])
def test_the_way_through_the_chunks_is_told_from_who_holds_what(text, name, chunks):
    found = parse(text, "x.csv")
    assert (found.route, found.num_chunks) == (name, 2)
    assert [op.chunk for op in found.schedule[1]] == (chunks or [0, 1, 1, 0])
    assert csv_text(compute_rows(found.schedule, route(found.route, 2, 2))) == text


def test_stages_are_numbered_in_the_order_forward_passes_them():
    assert stage_indices(route("loop", 3, 2)) == [[0, 3], [1, 4], [2, 5]]
    assert stage_indices(route("v", 3, 2)) == [[0, 5], [1, 4], [2, 3]]
    with pytest.raises(InputError, match="two copies"):
        stage_indices(route("both", 2, 2))


def test_an_overlapped_pair_is_one_cell():
    text = "(0F0;1F0)OVERLAP_F_B\n"
    with pytest.raises(InputError, match=r"row 1, column 1: .* is not an action"):
        parse(text, "x.csv")
    text = "0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0I1)OVERLAP_F_B,0W1,0B2\n"
    found = parse(text, "x.csv")
    assert found.schedule[0][1:4] == (Op("F", 1, joined=True), Op("BW", 0), Op("F", 2, joined=True))
    assert csv_text(compute_rows(found.schedule, route("loop", 1, 1))) == text


@pytest.mark.parametrize(
    "text",
    [
        ONE_F_ONE_B.replace("\n", "\r\n"),
        "\ufeff" + ONE_F_ONE_B,
        ONE_F_ONE_B[:-1],
        ONE_F_ONE_B.replace("1F0", ",,1F0,"),
        ONE_F_ONE_B.replace(",", " , "),
    ],
)
def test_idle_cells_and_what_spreadsheets_add_change_nothing(text):
    assert parse(text, "x.csv").schedule == parse(ONE_F_ONE_B, "x.csv").schedule


def test_messages_survive_a_round_trip_byte_for_byte(tmp_path: Path):
    found = parse(WITH_MESSAGES, "x.csv")
    assert found.schedule == parse(ONE_F_ONE_B.replace("1F0,1B0", "1F0,1B0"), "x").schedule
    write_csv(tmp_path / "x.csv", found.rows)
    assert (tmp_path / "x.csv").read_bytes() == WITH_MESSAGES.encode()
    assert read_csv(tmp_path / "x.csv") == found
    assert csv_text(parse(V_WITH_MESSAGES, "x.csv").rows) == V_WITH_MESSAGES


@pytest.mark.parametrize(
    ("text", "row", "column", "said"),
    [
        ("0F0junk,0B0", 1, 1, "'0F0junk' is not an action"),
        ("0F0,0B0 x", 1, 2, "not an action"),
        ("00F0,0B0", 1, 1, "not an action"),
        ("0f0,0B0", 1, 1, "not an action"),
        ("0F0,0X0", 1, 2, "not an action"),
        ("0F0,0B0,(0F1;0B0)OVERLAP_F_Bx", 1, 3, "not an action"),
        ("0F0,0B0,(0F1;0B0;0W0)OVERLAP_F_B", 1, 3, "not an action"),
        ("0F0,0B0,(0B1;0F0)OVERLAP_F_B", 1, 3, "not an action"),
        ("0F\u0661,0B1", 1, 1, "not an action"),
        ("=1+1,0B0", 1, 1, "not an action"),
        ('"0F0",0B0', 1, 1, "not an action"),
        ("0F0;0B0", 1, 1, "not an action"),
        ("0F0,0B", 1, 2, "not an action"),
        ("0F0,0RESHARD1", 1, 2, "not an action"),
        ("", 1, 1, "no action"),
        (",,\n", 1, 1, "no action"),
        ("0F0,0B0\n\n", 2, 1, "no action"),
        (
            "0F0,0F0,0B0",
            1,
            2,
            "stands twice, as 0F0 in column 1",
        ),
        ("0F0,0B0,0B0", 1, 3, "stands twice, as 0B0 in column 2"),
        ("0F0,0I0,0B0", 1, 3, "stands twice, as 0I0 in column 2"),
        ("0F0,0I0,0W0,0W0", 1, 4, "stands twice"),
        ("0B0,0F0", 1, 1, "stands before 0F0"),
        ("0F0,0W0,0I0", 1, 2, "stands before 0I0"),
        (
            "0F0,(0F1;0B1)OVERLAP_F_B,0B0",
            1,
            2,
            "before 0F1 (forward of microbatch 1, stage 0), which",
        ),
        ("0F0,0F1,0B0", 1, 4, "ends without 0I1 or 0B1 (input gradient of microbatch 1, stage 0)"),
        ("0F0,0I0", 1, 3, "ends without 0W0 (weight gradient of microbatch 0, stage 0)"),
        ("0F0,0F2,0B0,0B2", 1, 5, "ends without 0F1"),
        ("0F0,0B0\n1F0", 2, 2, "ends without 1I0"),
        ("0F0,0B0\n2F0,2B0", 2, 1, "stage 2 makes 3 stages"),
        ("0F0,0B0,1F0,1B0\n", 1, 2, "stands before 1I0 or 1B0"),
        ("0F0,0B0,1F0\n1B0", 1, 3, "stands on the wrong row, stage 1 is on row 2"),
        ("0F0,0F65536", 1, 2, "beyond 65536"),
        ("0F0,99999999F0", 1, 2, "beyond 65536"),
        ("0F99999999", 1, 1, "beyond 65536"),
        ("0F0,9999999999F0", 1, 2, "not an action"),
        (WITH_MESSAGES.replace("0SEND_F1,", ""), 1, 9, "ends without 0SEND_F1"),
        (
            WITH_MESSAGES.replace("1RECV_F1,", ""),
            2,
            5,
            "before 1RECV_F1 (activations received of",
        ),
        (WITH_MESSAGES.replace("0F0,0SEND_F0", "0SEND_F0,0F0"), 1, 1, "stands before 0F0"),
        (WITH_MESSAGES.replace("1SEND_B0", "1SEND_B0,1SEND_B0"), 2, 6, "stands twice"),
        (WITH_MESSAGES.replace("1SEND_B0", "1SEND_B0,1SEND_F0"), 2, 6, "moves nothing"),
        (WITH_MESSAGES.replace("0F1", ",0F1"), 1, 3, "an empty cell"),
        (
            WITH_MESSAGES.replace("1RECV_F0,1F0,1RECV_F1", "1RECV_F1,1RECV_F0,1F0"),
            2,
            1,
            "1RECV_F1 (activations received of microbatch 1, stage 1) takes what row 1 sends in"
            " column 2, 0SEND_F0 (activations sent of microbatch 0, stage 0)",
        ),
        (
            WITH_MESSAGES.replace("0RECV_B0,0B0,0RECV_B1", "0RECV_B1,0RECV_B0,0B0"),
            1,
            5,
            "0RECV_B1 (gradient received of microbatch 1, stage 0) takes what row 2 sends in"
            " column 5, 1SEND_B0",
        ),
        (
            V_WITH_MESSAGES.replace(",0RECV_B0", "").replace("3RECV_F1", "0RECV_B0,3RECV_F1"),
            1,
            8,
            "0RECV_B0 (gradient received of microbatch 0, stage 0) takes what row 2 sends in"
            " column 8, 2SEND_F1 (activations sent of microbatch 1, stage 2)",
        ),
        (WITH_MESSAGES.replace("0B1,0REDUCE_GRAD", "0REDUCE_GRAD,0B1"), 1, 8, "stands before 0W1"),
    ],
)
def test_every_fault_is_refused_with_its_row_and_column(text, row, column, said):
    with pytest.raises(InputError) as caught:
        parse(text, "x.csv")
    assert str(caught.value).startswith(f"x.csv: row {row}, column {column}: ")
    assert said in str(caught.value)
    assert caught.value.hint


def test_files_that_are_no_text_are_refused(tmp_path: Path):
    path = tmp_path / "x.csv"
    with pytest.raises(InputError, match="not a file"):
        read_csv(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        read_csv(path)
    path.write_bytes(b"0F0,0B0\n1F0,\xff1B0\n")
    with pytest.raises(InputError, match="row 2, column 2: byte 0xff is not UTF-8"):
        read_csv(path)
    with path.open("wb") as file:
        file.truncate((1 << 24) + 1)
    with pytest.raises(InputError, match=r"has 16,777,217 bytes, beyond 16,777,216"):
        read_csv(path)


def test_a_file_of_more_cells_than_any_schedule_has_is_refused_before_they_are_looked_at():
    assert parse("0F0,0B0" + "," * 1000, "x.csv").num_microbatches == 1
    with pytest.raises(InputError, match=r"^x\.csv has 1,048,577 cells, beyond 1,048,576$"):
        parse("0F0,0B0" + "," * ((1 << 20) - 1), "x.csv")
    with pytest.raises(InputError, match=r"^x\.csv has 1,048,577 cells"):
        parse("0F0,0B0\n" * (1 << 19) + "0F0", "x.csv")


def legal_order(seed: int, name: RouteName, stages: int, chunks: int, count: int) -> Schedule:
    """A random order that can run: ops become free one by one, backward split or not at random."""
    rng = random.Random(seed)
    way = [(s, c) for c in range(chunks) for s in range(stages)]
    if name == "v":
        way = [(s, 0) for s in range(stages)] + [(s, 1) for s in reversed(range(stages))]
    open_ops = [(0, m, "F") for m in range(count)]
    lists: list[list[Op]] = [[] for _ in range(stages)]
    while open_ops:
        at, m, kind = open_ops.pop(rng.randrange(len(open_ops)))
        stage, chunk = way[at]
        lists[stage].append(Op(kind, m, chunk))
        if kind == "F":
            open_ops.append(
                (at + 1, m, "F") if at + 1 < len(way) else (at, m, rng.choice(["B", "BW"]))
            )
        elif kind != "W":
            if kind == "B":
                open_ops.append((at, m, "W"))
            if at:
                open_ops.append((at - 1, m, rng.choice(["B", "BW"])))
    return tuple(map(tuple, lists))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    shape=st.sampled_from(
        [("loop", 1, 1), ("loop", 4, 1), ("loop", 3, 3), ("v", 3, 2), ("v", 2, 2)]
    ),
    count=st.integers(1, 6),
)
def test_any_legal_order_comes_back_and_gives_the_same_bytes(seed, shape, count):
    name, stages, chunks = shape
    schedule = legal_order(seed, name, stages, chunks, count)
    text = csv_text(compute_rows(schedule, route(name, stages, chunks)))
    found = parse(text, "x.csv")
    assert found.schedule == schedule
    assert (found.route, found.num_chunks, found.num_microbatches) == (name, chunks, count)
    assert csv_text(found.rows) == text


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_file_with_one_action_lost_or_doubled_or_changed_is_never_read_as_another(seed):
    rng = random.Random(seed)
    schedule = legal_order(seed, "loop", 3, 1, 4)
    lines = [
        line.split(",") for line in csv_text(compute_rows(schedule, route("loop", 3, 1))).split()
    ]
    row = rng.choice(lines)
    at = rng.randrange(len(row))
    match rng.randrange(3):
        case 0:
            del row[at]
        case 1:
            row.insert(at, row[at])
        case 2:
            row[at] += rng.choice(["x", "0F0", ";", "'", "-", "\x00"])
    with pytest.raises(InputError, match=r"x\.csv: row \d+, column \d+: "):
        parse("\n".join(map(",".join, lines)), "x.csv")


CELLS = ["0F0", "0B0", "0I0", "0W0", "1F0", "1B0", "1RECV_F0", "0SEND_F0", "0REDUCE_GRAD", "", "("]


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.text(max_size=30),
        st.lists(st.sampled_from([*CELLS, ",", ",", "\n", "\r\n", ")", ";"]), max_size=12).map(
            "".join
        ),
    )
)
def test_any_text_is_a_schedule_or_an_error_of_ours(text):
    try:
        found = parse(text, "x.csv")
    except InputError as error:
        told = str(error)
    else:
        again = parse(csv_text(found.rows), "x.csv")
        assert again == found
        told = "x.csv: row "
    assert told.startswith("x.csv: row ")


@pytest.mark.parametrize("name", [n for n, p in SCHEDULES.items() if p.route != "both"])
@pytest.mark.parametrize(("stages", "count"), [(1, 1), (2, 4), (4, 3), (4, 9)])
def test_every_schedule_comes_back(name, stages, count):
    pipeline = SCHEDULES[name]
    chunks = pipeline.chunks or 2
    schedule = pipeline.make(stages, count, chunks)
    text = csv_text(compute_rows(schedule, route(pipeline.route, stages, chunks)))
    found = parse(text, "x.csv")
    assert found.schedule == schedule
    assert csv_text(found.rows) == text
