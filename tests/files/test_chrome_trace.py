"""A trace holds every op at its own time, and arrows with both ends on slices."""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hydraplan.files.chrome_trace import MOST_EVENTS, PARTS, lane_events, trace_events, write_trace
from hydraplan.model import Timeline
from hydraplan.planner.pipeline.alone import StageTimes, slot_times_alone
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.route import route

LANES, COUNT = 3, 5


def drawn(name, stages, seed=0, lanes=LANES):
    """A run with times that differ everywhere, groups, and slots without rows; and its rows."""
    pipeline = SCHEDULES[name]
    chunks = pipeline.chunks or 2
    slots = slot_times_alone(StageTimes(comm=3e-6), pipeline.route, stages, chunks, COUNT)
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 3, (lanes, COUNT)).astype(np.int64)
    slots = replace(
        slots,
        op_s=rng.uniform(1e-6, 5e-3, (3, stages, chunks, lanes, COUNT)),
        rows=rows,
        component=np.tile(np.array([[0], [0], [2]])[:lanes], COUNT),
        boundary_s=np.full((lanes, COUNT), 3e-6),
        grad_sync_s=rng.uniform(0, 1e-3, stages),
    )
    timeline = simulate(slots, pipeline.make(stages, COUNT, chunks))
    return timeline, route(pipeline.route, stages, chunks), rows


def check_trace(events):
    """What the trace event format asks of complete and flow events."""
    tracks = defaultdict(list)
    ends = defaultdict(dict)
    for event in events:
        assert {"name", "ph", "pid", "tid"} <= set(event)
        assert event["ph"] in "MXsf"
        if event["ph"] == "M":
            assert event["args"]["name"]
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(event)
        else:
            assert event["cat"] == "message"
            assert event["ph"] not in ends[event["id"]], "an arrow begins and ends once"
            ends[event["id"]][event["ph"]] = event
    for track in tracks.values():
        track.sort(key=lambda event: (event["ts"], event["dur"]))
        for one, other in pairwise(track):
            assert one["ts"] + one["dur"] <= other["ts"]
    for both in ends.values():
        assert set(both) == {"s", "f"}, "every arrow has both ends"
        leaves, taken = both["s"], both["f"]
        assert leaves["name"] == taken["name"]
        assert leaves["pid"] != taken["pid"]
        assert leaves["tid"] == taken["tid"]
        assert leaves["ts"] <= taken["ts"]
        for end in (leaves, taken):
            track = tracks[end["pid"], end["tid"]]
            assert any(e["ts"] <= end["ts"] <= e["ts"] + e["dur"] for e in track)
        assert any(e["ts"] == taken["ts"] for e in tracks[taken["pid"], taken["tid"]])
        assert taken["bp"] == "e"
    return tracks, ends


@pytest.mark.parametrize("name", SCHEDULES)
def test_slices_never_overlap_and_arrows_have_both_ends_on_slices(name):
    timeline, way, rows = drawn(name, 4)
    tracks, ends = check_trace(trace_events(timeline, way, rows))
    assert len(tracks) == 4 * LANES
    crossings = sum(
        int(node) // way.num_chunks != stage
        for side in (way.before, way.after)
        for stage in range(4)
        for node in side[stage]
        if node >= 0
    )
    passes = crossings if way.num_chunks == 1 or name != "dualpipe" else crossings / 2
    assert len(ends) == passes * (rows > 0).sum()


@pytest.mark.parametrize("name", SCHEDULES)
def test_events_are_counted_lane_by_lane_before_any_is_made(name):
    timeline, way, rows = drawn(name, 4)
    timeline = replace(timeline, grad_sync_s=np.array([0.0, 1e-9, 1e-3, 2e-3]))
    of_lane = lane_events(timeline, way, rows)
    assert of_lane.shape == (LANES,)
    for shown in (range(LANES), range(1), range(1, 3), range(2, 3)):
        events = list(trace_events(timeline, way, rows, shown))
        assert len(events) == 4 + of_lane[shown].sum()
        assert {event["tid"] for event in events if event["name"] != "process_name"} == set(shown)
        check_trace(events)


def test_events_of_some_lanes_are_those_of_all_without_the_others():
    timeline, way, rows = drawn("zb-v", 3)
    some = list(trace_events(timeline, way, rows, range(1, 3)))
    every = list(trace_events(timeline, way, rows))
    kept = [e for e in every if e["tid"] > 0 or e["name"] == "process_name"]
    without_ids = [[{k: v for k, v in e.items() if k != "id"} for e in es] for es in (some, kept)]
    assert without_ids[0] == without_ids[1]


def test_as_many_events_as_are_taken_stay_below_what_chrome_reads(tmp_path):
    """The longest names and, of ops of many seconds, the longest numbers."""
    timeline, way, rows = drawn("dualpipe-v", 4, lanes=LANES)
    late = [tuple(t * 3e3 for t in side) for side in (timeline.start_s, timeline.end_s)]
    timeline = replace(timeline, start_s=late[0], end_s=late[1])
    number = write_trace(tmp_path / "t.json", trace_events(timeline, way, rows), {})
    assert (tmp_path / "t.json").stat().st_size / number * MOST_EVENTS < 256 << 20


def test_slices_last_as_long_as_their_ops_and_carry_their_waiting():
    timeline, way, rows = drawn("zb-h1", 2)
    tracks, _ = check_trace(trace_events(timeline, way, rows))
    for stage, ops in enumerate(timeline.schedule):
        for lane in range(LANES):
            *slices, sync = tracks[stage, lane]
            assert [s["name"] for s in slices] == [f"{op.kind}{op.microbatch}" for op in ops]
            start, end = timeline.start_s[stage][:, lane], timeline.end_s[stage][:, lane]
            taken = np.array([s["dur"] for s in slices])
            assert taken == pytest.approx(1e6 * (end - start), abs=1 / PARTS)
            busy = np.array([s["args"]["busy_us"] for s in slices])
            assert busy == pytest.approx(1e6 * timeline.busy_s[stage][:, lane], abs=1 / PARTS)
            waited = np.array([s["args"]["waiting_us"] for s in slices])
            assert waited == pytest.approx(taken - busy, abs=2 / PARTS)
            assert sync["name"] == "gradient sync"
            assert sync["dur"] == pytest.approx(1e6 * timeline.grad_sync_s[stage], abs=1 / PARTS)


def test_a_joined_pair_is_one_slice_that_both_arrows_reach():
    timeline, way, rows = drawn("dualpipe-v", 2, lanes=1)
    tracks, _ = check_trace(trace_events(timeline, way, rows))
    pairs = [s for track in tracks.values() for s in track if s["cat"] == "joined"]
    assert len(pairs) == sum(op.joined for ops in timeline.schedule for op in ops) > 0
    assert all(" + " in pair["name"] for pair in pairs)


def test_the_file_is_json_with_an_event_a_line(tmp_path):
    path = tmp_path / "t.json"
    timeline, way, rows = drawn("1f1b", 2)
    events = list(trace_events(timeline, way, rows))
    assert write_trace(path, iter(events), {"plan": 'a "b"'}) == len(events)
    text = path.read_text()
    assert json.loads(text)["traceEvents"] == events
    assert len(text.splitlines()) == len(events) + 4


def test_what_is_no_time_leaves_no_file(tmp_path):
    timeline, way, rows = drawn("1f1b", 2)
    start = tuple(s * np.nan for s in timeline.start_s)
    broken = Timeline(timeline.schedule, start, *list_of(timeline))
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_trace(tmp_path / "t.json", trace_events(broken, way, rows), {})
    assert not list(tmp_path.iterdir())


def list_of(timeline):
    return timeline.end_s, timeline.busy_s, timeline.grad_sync_s
