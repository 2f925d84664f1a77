from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydraplan.errors import Infeasible
from hydraplan.metrics import shares
from hydraplan.model import FloatArray, Op, Schedule
from hydraplan.planner.pipeline import noisy_run as module
from hydraplan.planner.pipeline.causes import CAUSES, causes_s, planned_s
from hydraplan.planner.pipeline.noise import (
    SOURCES,
    SPELL_SOURCES,
    Draws,
    Noise,
    draw,
    parse_noise,
    shape_of,
)
from hydraplan.planner.pipeline.noisy_run import (
    noisy_run,
    noisy_timeline,
    trial_s,
    with_pool_barrier,
)
from hydraplan.planner.pipeline.schedules import SCHEDULES
from hydraplan.planner.pipeline.simulator import simulate
from hydraplan.planner.pipeline.spells import NONE, sorted_spells, stretched_s
from hydraplan.route import route
from hydraplan.slots import SlotTimes

EVERYTHING = parse_noise(
    "jitter=0.3,straggler=1.4,moving=1.4,transient=2,heavytail=0.3,link=0.2,preempt=0.3,window=0.5"
)
NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipe-v")


class Case(tuple[SlotTimes, Schedule]):
    """Slots and an op order."""


def case(name: str, stages: int, microbatches: int, lanes: int, seed: int) -> Case:
    """Random slots, some without rows, some lanes connected, under a schedule of the table."""
    pipeline = SCHEDULES[name]
    chunks = pipeline.chunks or 2
    rng = np.random.default_rng(seed)
    connected = rng.random((lanes, microbatches)) < 0.4
    connected[0] = False
    way = route(pipeline.route, stages, chunks)
    slots = SlotTimes(
        op_s=rng.uniform(0.5, 2, (3, stages, chunks, lanes, microbatches)),
        rows=rng.integers(0, 9, (lanes, microbatches)),
        component=np.maximum.accumulate(np.where(connected, 0, np.arange(lanes)[:, None]), axis=0),
        boundary_s=rng.uniform(0, 0.5, (lanes, microbatches)),
        grad_sync_s=rng.uniform(0, 1, stages),
        route=way,
        joined=0.8,
    )
    return Case((slots, pipeline.make(stages, microbatches, chunks)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(NAMES))
    stages = draw(st.sampled_from([2, 4] if name.startswith("dualpipe") else [1, 2, 3]))
    microbatches = 2 * stages if name == "dualpipe" else stages * draw(st.integers(1, 2))
    return case(name, stages, microbatches, draw(st.integers(1, 4)), draw(st.integers(0, 999)))


def tiny(boundary_s: float = 0.0, lanes: int = 1) -> SlotTimes:
    """Two stages, two microbatches; F, B, W take 1, 2, 3 s; gradient sync 5 s."""
    op_s = np.ones((3, 2, 1, lanes, 2)) * np.array([1.0, 2.0, 3.0]).reshape(3, 1, 1, 1, 1)
    return SlotTimes(
        op_s,
        np.ones((lanes, 2), np.int64),
        np.arange(lanes)[:, None] * np.ones((1, 2), np.int64),
        np.full((lanes, 2), boundary_s),
        np.full(2, 5.0),
    )


ONE_BY_ONE: Schedule = (
    (Op("F", 0), Op("BW", 0), Op("F", 1), Op("BW", 1)),
    (Op("F", 0), Op("BW", 0), Op("F", 1), Op("BW", 1)),
)
"""Nothing overlaps: each stage works while the other waits."""


def given_draws(slots: SlotTimes, **changes: object) -> Draws:
    """A single trial in which nothing happens but what is written down."""
    plain = Draws(shape_of(slots), 1, {}, None, np.ones((2, 1)), NONE)
    return replace(plain, **changes)  # type: ignore[arg-type]


def spell(slots: SlotTimes, source: str, *found: tuple[int, float, float, float]) -> Draws:
    """Spells (rank, begin, end, speed) of one source."""
    begin_s, end_s, speed = np.array([times for _, *times in found], float).T
    rank = np.array([rank for rank, *_ in found])
    index = np.full(len(rank), SOURCES.index(source))
    ranks = 2 * slots.rows.shape[0]
    return given_draws(slots, spells=sorted_spells(ranks, rank, begin_s, end_s, speed, index))


def test_without_noise_two_stages_that_take_turns_need_the_sum() -> None:
    assert trial_s(tiny(), ONE_BY_ONE, given_draws(tiny())) == 2 * (1 + 5 + 1 + 5) + 5
    assert trial_s(tiny(0.25), ONE_BY_ONE, given_draws(tiny(0.25))) == 29 + 4 * 0.25


@pytest.mark.parametrize("source", ["jitter", "heavytail"])
def test_a_factor_lengthens_just_its_pass(source: str) -> None:
    slots = tiny()
    for kind, own_s in ((0, 1.0), (1, 2.0), (2, 3.0)):
        factor = np.ones((3, 2, 1, 2, 1))
        factor[kind, 1, 0, 1] = 3.0
        assert trial_s(slots, ONE_BY_ONE, given_draws(slots, op={source: factor})) == 29 + 2 * own_s


def test_factors_of_two_sources_multiply() -> None:
    slots = tiny()
    op = {name: np.full((3, 2, 1, 2, 1), factor) for name, factor in (("jitter", 2.0), ("x", 3.0))}
    assert trial_s(slots, ONE_BY_ONE, given_draws(slots, op=op)) == 24 * 6 + 5


def test_a_straggler_takes_longer_for_all_it_does() -> None:
    slots = tiny()
    draws = spell(slots, "straggler", (1, 0, np.inf, 0.5))
    assert trial_s(slots, ONE_BY_ONE, draws) == 29 + 12


def test_a_moving_straggler_is_slow_at_its_place_at_its_time() -> None:
    slots = tiny()
    # F of stage 1 runs from 1 to 2, at half speed; from 3 on stage 0 would be, which begins at 8
    draws = spell(slots, "moving", (1, 0, 3, 0.5), (0, 3, 6, 0.5))
    # BW of stage 1 begins at 3
    assert trial_s(slots, ONE_BY_ONE, draws) == 29 + 1


def test_a_transient_spell_costs_its_part_of_the_op() -> None:
    slots = tiny()
    # BW of stage 1 from 2 on, 5 s: 3 s alone, 4 s at half speed
    assert trial_s(slots, ONE_BY_ONE, spell(slots, "transient", (1, 5, 9, 0.5))) == 29 + 2


def test_a_preempted_rank_stands_still() -> None:
    slots = tiny()
    assert trial_s(slots, ONE_BY_ONE, spell(slots, "preempt", (1, 5, 9, 0.0))) == 29 + 4
    # stage 0 has nothing to do from 1 to 7
    assert trial_s(slots, ONE_BY_ONE, spell(slots, "preempt", (0, 2, 6, 0.0))) == 29


def test_a_window_halves_a_stage() -> None:
    slots = tiny()
    assert trial_s(slots, ONE_BY_ONE, spell(slots, "window", (1, 0, 31, 0.5))) == 29 + 12


def test_link_noise_lengthens_messages_and_gradient_sync() -> None:
    slots = tiny(0.25)
    message = np.ones((2, 2, 2, 1))
    message[0, 1, 0] = 5.0  # the forward of microbatch 0, to stage 1
    assert trial_s(slots, ONE_BY_ONE, given_draws(slots, message=message)) == 30 + 1
    message[1, 0, 1] = 9.0  # the gradient of microbatch 1, to stage 0
    assert trial_s(slots, ONE_BY_ONE, given_draws(slots, message=message)) == 30 + 1 + 2
    message[1, 1] = message[0, 0] = 99.0  # nobody sends these
    assert trial_s(slots, ONE_BY_ONE, given_draws(slots, message=message)) == 30 + 1 + 2
    sync = np.array([[2.0], [1.0]])
    assert trial_s(slots, ONE_BY_ONE, given_draws(slots, sync=sync)) == 30 + 5


def test_each_second_of_a_tiny_run_has_its_cause() -> None:
    """Two lanes that meet in microbatch 0; lane 1 of stage 1 is at half speed."""
    slots = replace(tiny(0.25, lanes=2), component=np.array([[0, 0], [0, 1]]))
    draws = spell(slots, "straggler", (3, 0, np.inf, 0.5))
    load = module.noisy_load(slots, draws)
    lost_s = np.zeros(1)
    way = route("loop", 2, 1)
    times = module.run_ops(load, ONE_BY_ONE, way, draws.spells, lost_s)
    found = causes_s(slots, ONE_BY_ONE, planned_s(slots, ONE_BY_ONE), draws, load, times, lost_s)
    # lane 0: 1 + .25 + 2 * (1 + 5) + .25 + 5 | 1 + .25 + 6 + .25 + 5; lane 1: twice 12 s on stage 1
    assert times.end_s[0, -1].tolist() == [31.0, 37.0]
    assert times.end_s[1, -1].tolist() == [25.75, 31.75]
    assert found["compute"] == 12
    assert found["straggler"] == 12 / 4
    # a message of each microbatch and way; lane 0 waits for its twin of microbatch 0 on stage 1
    waits = {"link_wait": 4 * 2 * 0.25 / 4, "group_wait": 6 / 4, "dp_bubble": (6 + 6) / 4}
    for name, seconds in waits.items():
        assert found[name] == seconds, name
    assert found["grad_sync"] == 5
    assert sum(found.values()) == 37 + 5


@settings(deadline=None, max_examples=40)
@given(cases())
def test_without_noise_a_trial_is_the_simulator_to_the_last_bit(run: Case) -> None:
    slots, schedule = run
    wanted = simulate(slots, schedule)
    found = noisy_run(slots, schedule, Noise(), trials=3)
    assert found.iteration_s.tolist() == [shares(wanted)["iteration_s"]] * 3
    assert found.nominal_s == shares(wanted)["iteration_s"]
    wide = draw(Noise(), shape_of(slots), 1.0, range(4), 0)
    assert trial_s(slots, schedule, wide).tolist() == [found.nominal_s] * 4
    kept = noisy_timeline(slots, schedule, draw(Noise(), shape_of(slots), 1.0, range(1), 0))
    for name in ("start_s", "end_s", "busy_s"):
        for a, b in zip(getattr(kept, name), getattr(wanted, name), strict=True):
            assert (a == b).all()


def by_relaxation(slots: SlotTimes, schedule: Schedule, draws: Draws) -> FloatArray:
    """Iteration time of one trial, by repeating all constraints until nothing moves."""
    lanes, chunks = slots.rows.shape[0], slots.op_s.shape[2]
    assert slots.route is not None
    factor = np.ones((3, *slots.op_s.shape[1:3], slots.rows.shape[1], lanes))
    for drawn in draws.op.values():
        factor = factor * drawn
    halves = {"F": (0,), "B": (1,), "W": (2,), "BW": (1, 2)}
    place = {
        (s, op.kind[0], op.chunk, op.microbatch): i
        for s, ops in enumerate(schedule)
        for i, op in enumerate(ops)
    }
    end = {(s, i): np.zeros(lanes) for s, ops in enumerate(schedule) for i in range(len(ops))}
    while True:
        old = dict(end)
        for s, ops in enumerate(schedule):
            i = 0
            while i < len(ops):
                parts = [i, i + 1] if ops[i].joined else [i]
                begin = end[s, i - 1].copy() if i else np.zeros(lanes)
                work, mates = np.zeros(lanes), np.eye(lanes, dtype=bool)
                for op in (ops[j] for j in parts):
                    here, m = s * chunks + op.chunk, op.microbatch
                    work += sum(
                        slots.op_s[k, s, op.chunk, :, m] * factor[k, s, op.chunk, m]
                        for k in halves[op.kind]
                    )
                    if op.kind == "W":
                        continue
                    mates |= slots.component[:, m, None] == slots.component[None, :, m]
                    near = slots.route.before if op.kind == "F" else slots.route.after
                    node, kind = int(near[s, op.chunk]), op.kind[0]
                    if node < 0 and op.kind == "F":
                        continue
                    from_s, from_c = divmod(node, chunks) if node >= 0 else (s, op.chunk)
                    kind = kind if node >= 0 else "F"
                    sent = end[from_s, place[from_s, kind, from_c, m]]
                    way = 0 if op.kind == "F" else 1
                    on_way = slots.boundary_s[:, m] * (
                        1.0 if draws.message is None else draws.message[way, here, m]
                    )
                    arrival = sent + (on_way if from_s != s else 0.0)
                    begin = np.where(slots.rows[:, m] > 0, np.maximum(begin, arrival), begin)
                if len(parts) == 2:
                    work *= slots.joined
                mates = np.linalg.matrix_power(mates.astype(int), lanes) > 0
                finish = np.zeros(lanes)
                for lane in range(lanes):
                    latest = begin[mates[lane]].max()
                    for mate in np.flatnonzero(mates[lane]):
                        own = stretched(latest, work[mate], draws, s * lanes + mate)
                        finish[lane] = max(finish[lane], latest + own)
                for j in parts:
                    end[s, j] = finish
                i += len(parts)
        if all((end[key] == old[key]).all() for key in end):
            break
    ends = np.array([end[s, len(ops) - 1].max() for s, ops in enumerate(schedule)])
    return (ends + slots.grad_sync_s * draws.sync[:, 0]).max()  # type: ignore[no-any-return]


def stretched(begin_s: float, work_s: float, draws: Draws, rank: int) -> float:
    """Work of a rank under its spells."""
    spells = draws.spells
    if not len(spells.first):
        return work_s
    low, high = spells.first[rank : rank + 2]
    return stretched_s(begin_s, work_s, low, high, spells, np.zeros(len(spells.speed)))


@settings(deadline=None, max_examples=25)
@given(cases(), st.integers(0, 999))
def test_every_trial_ends_when_the_constraints_say(run: Case, seed: int) -> None:
    slots, schedule = run
    draws = draw(EVERYTHING, shape_of(slots, 2), 20.0, range(1), seed)
    wanted = by_relaxation(slots, schedule, draws)
    assert trial_s(slots, schedule, draws)[0] == pytest.approx(wanted, rel=1e-12)


@settings(deadline=None, max_examples=25)
@given(cases(), st.integers(0, 999), st.sets(st.sampled_from(SOURCES), min_size=1))
def test_leaving_a_source_out_is_the_counterfactual_of_the_same_draw(
    run: Case, seed: int, chosen: set[str]
) -> None:
    slots, schedule = run
    noise = Noise(**{name: getattr(EVERYTHING, name) for name in chosen})
    found = noisy_run(slots, schedule, noise, trials=3, seed=seed)
    assert set(found.without_s) == chosen
    for name in chosen:
        apart = noisy_run(slots, schedule, noise.without(name), trials=3, seed=seed)
        assert (found.without_s[name] == apart.iteration_s).all()
        assert (found.cost_s(name) == found.iteration_s - apart.iteration_s).all()


@settings(deadline=None, max_examples=25)
@given(cases(), st.integers(0, 999))
def test_each_lost_second_has_one_cause(run: Case, seed: int) -> None:
    slots, schedule = run
    found = noisy_run(slots, schedule, EVERYTHING, trials=3, seed=seed, node_ranks=2)
    assert list(found.lost_s) == [*CAUSES, *SOURCES]
    np.testing.assert_allclose(sum(found.lost_s.values()), found.iteration_s, rtol=1e-9)
    waits = ("stage_wait", "stage_skew", "link_wait", "group_wait", "dp_bubble")
    for name in ("compute", *waits, *SPELL_SOURCES):
        assert found.lost_s[name].min() >= -1e-9, name


@settings(deadline=None, max_examples=25)
@given(cases())
def test_without_noise_causes_are_the_shares_of_the_figures(run: Case) -> None:
    slots, schedule = run
    found, wanted = noisy_run(slots, schedule, Noise(), trials=1), shares(simulate(slots, schedule))
    part = {name: float(seconds[0]) / found.nominal_s for name, seconds in found.lost_s.items()}
    for name in ("group_wait", "dp_bubble", "grad_sync"):
        assert part[name] == pytest.approx(wanted[name], abs=1e-9)
    assert part["compute"] == pytest.approx(wanted["busy"], abs=1e-9)
    idle = part["stage_wait"] + part["stage_skew"] + part["link_wait"]
    assert idle == pytest.approx(wanted["pipeline_bubble"], abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(cases(), st.integers(0, 999), st.sampled_from(SPELL_SOURCES))
def test_slow_ranks_never_speed_a_step_up(run: Case, seed: int, source: str) -> None:
    slots, schedule = run
    found = noisy_run(slots, schedule, EVERYTHING, trials=4, seed=seed)
    assert (found.cost_s(source) >= -1e-9 * found.iteration_s).all()
    only = Noise(**{source: getattr(EVERYTHING, source)})
    assert (
        noisy_run(slots, schedule, only, trials=4, seed=seed).iteration_s
        >= found.nominal_s * (1 - 1e-12)
    ).all()


@settings(deadline=None, max_examples=15)
@given(cases(), st.integers(0, 999))
def test_a_stronger_straggler_is_never_faster(run: Case, seed: int) -> None:
    slots, schedule = run
    taken = [
        noisy_run(slots, schedule, Noise(straggler=factor), trials=3, seed=seed).iteration_s
        for factor in (1.1, 1.4, 3.0)
    ]
    assert (taken[0] <= taken[1] * (1 + 1e-12)).all()
    assert (taken[1] <= taken[2] * (1 + 1e-12)).all()


def test_trials_do_not_depend_on_how_many_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    slots, schedule = case("zb-v", 3, 6, 4, 1)
    together = noisy_run(slots, schedule, EVERYTHING, trials=7, seed=3)
    monkeypatch.setattr(module, "BLOCK", 2 * slots.op_s.size)
    apart = noisy_run(slots, schedule, EVERYTHING, trials=7, seed=3)
    fewer = noisy_run(slots, schedule, EVERYTHING, trials=4, seed=3)
    assert (together.iteration_s == apart.iteration_s).all()
    assert (fewer.iteration_s == apart.iteration_s[:4]).all()
    assert len(set(apart.iteration_s.tolist())) == 7
    for name, lost in together.lost_s.items():
        np.testing.assert_allclose(lost, apart.lost_s[name], atol=1e-12)


def test_the_timeline_of_a_trial_is_that_trial() -> None:
    slots, schedule = case("zb-h1", 3, 6, 4, 1)
    found = noisy_run(slots, schedule, EVERYTHING, trials=4, seed=3)
    draws = draw(EVERYTHING, shape_of(slots), found.nominal_s, range(2, 3), 3)
    figures = shares(noisy_timeline(slots, schedule, draws))
    assert figures["iteration_s"] == found.iteration_s[2]
    assert figures["group_wait"] * figures["iteration_s"] == pytest.approx(
        found.lost_s["group_wait"][2]
    )


def test_a_barrier_lets_all_lanes_of_a_stage_meet_in_every_microbatch() -> None:
    slots = tiny(lanes=2)
    slots.op_s[0, 0, 0, :, :] = [[1.0, 9.0], [9.0, 1.0]]  # each lane has one long forward
    free = noisy_run(slots, ONE_BY_ONE, Noise(), trials=1)
    met = noisy_run(with_pool_barrier(slots), ONE_BY_ONE, Noise(), trials=1)
    assert free.nominal_s == 29 + 8
    assert met.nominal_s == 29 + 16
    assert met.lost_s["group_wait"] == 8 / 2  # on stage 0 each lane waits 8 s, on stage 1 nobody


def test_an_order_that_cannot_go_on_is_named() -> None:
    with pytest.raises(Infeasible, match="stage 0 cannot go on"):
        noisy_run(tiny(), ((Op("BW", 0), Op("F", 0)), (Op("F", 0),)), EVERYTHING, trials=2)
