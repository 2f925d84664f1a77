"""Decisions: written and read back, in force at the right steps, refused where they are none."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hydraplan.errors import InputError
from hydraplan.files.decisionsfile import (
    DECISIONS_SCHEMA,
    Change,
    Decided,
    Slow,
    change_digest,
    change_of,
    decisions_digest,
    decisions_table,
    in_force,
    read_decisions,
)
from hydraplan.migration import HeadShares, Moves, RowMove
from hydraplan.model import Op
from hydraplan.places import Places

ORDER = ((Op("F", 0), Op("F", 1), Op("B", 0), Op("W", 0), Op("BW", 1, 2)), (Op("F", 12),))
MOVES = Moves((HeadShares(0, 1, 0, 2, 1, ((5, 3),)),), (RowMove(1, 0, 0, 1, 32),))
SLOW = (Slow(0, 1, 5, 1.5),)


def row(step, event, change, batch=None, kind=None, slow=SLOW):
    batch = step % 2 if batch is None else batch
    kind = kind or change.kind or "undo"
    return Decided(step, batch, event, kind, "since", slow, 2.0, 0.5, None, 0.01, change)


ROWS = (
    row(7, 1, Change(ORDER, MOVES)),
    row(8, 1, Change(ORDER)),
    row(15, 2, Change(), slow=())._replace(measured_gain_s=-0.25),
)


def read(path, **changes):
    return read_decisions(path, **({"pp": 2, "ranks": 2, "batches": 2, "steps": 20} | changes))


def written(path, rows=ROWS, **columns):
    """The rows in a file, some columns of the first of them changed."""
    plain = decisions_table(rows).to_pylist()
    plain[0] |= columns
    pq.write_table(pa.Table.from_pylist(plain, schema=DECISIONS_SCHEMA), path)
    return path


def test_decisions_are_read_back_as_they_were_made(tmp_path):
    assert read(written(tmp_path / "d.parquet")) == ROWS


def test_a_change_is_short_text_and_only_what_changes_something_is_true():
    text = Change(ORDER).to_text()
    assert json.loads(text)["schedule"] == ["F0 F1 B0 W0 BW1.2", "F12"]
    assert change_of(text) == Change(ORDER)
    assert not Change()
    assert change_of(Change(ORDER, MOVES, PLACES).to_text()) == Change(ORDER, MOVES, PLACES)
    changes = (Change(), Change(ORDER), Change(None, MOVES), Change(ORDER, MOVES, PLACES))
    assert [change.kind for change in changes] == [
        "", "reorder", "migrate", "place+reorder+migrate",
    ]  # fmt: skip
    assert Change(None, Moves(), PLACES)


def test_a_change_holds_for_its_batch_until_the_next_event():
    found = {step: in_force(ROWS, step, step % 2) for step in (5, 6, 7, 8, 13, 14, 15, 16)}
    assert [bool(found[step]) for step in (5, 6, 15, 16)] == [False] * 4
    assert found[7] == found[13] == Change(ORDER, MOVES)
    assert found[8] == found[14] == Change(ORDER)


def test_steps_that_a_run_has_not_finished_have_no_decisions_yet(tmp_path):
    assert read(written(tmp_path / "d.parquet"), steps=15) == ROWS[:2]


def test_the_digest_of_decisions_tells_changes_and_steps_and_no_times():
    same = tuple(r._replace(planning_s=9.0, measured_gain_s=1.0, reason="") for r in ROWS)
    assert decisions_digest(same) == decisions_digest(ROWS)
    assert decisions_digest(ROWS[:2]) != decisions_digest(ROWS)
    assert decisions_digest((ROWS[0]._replace(step=9), *ROWS[1:])) != decisions_digest(ROWS)


def changed(text):
    """Columns of a change with its digest, as whoever forges one would write both."""
    return {"change": text, "digest": change_digest(1, text)}


WHOLE = {"schedule": None, "moves": {"shares": [], "rows": [], "heads": []}, "places": None}
PLACES = Places((0, 1), (0, 2), (2, 1), (1, 1))


def places(**columns):
    """A change of places, some columns of them forged."""
    return changed(json.dumps(WHOLE | {"places": PLACES.to_json() | columns}))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"digest": "0" * 64}, "its digest is not that of its change"),
        ({"batch": 0, "digest": change_digest(0, ROWS[0].change.to_text())}, "runs batch 1, not 0"),
        ({"step": 9}, "step 8 does not follow 9"),
        ({"event": 2}, "event 2 does not follow 0"),
        ({"event": 0}, "event 0 does not follow 0"),
        ({"kind": "reorder"}, "kind 'reorder' is not what it changes"),
        ({"kind": "undo"}, "kind 'undo' is not what it changes"),
        ({"without_s": float("nan")}, "negative or not finite"),
        ({"planning_s": -1.0}, "negative or not finite"),
        ({"measured_gain_s": float("inf")}, "negative or not finite"),
        ({"slow": "[[0,2,5,1.5]]"}, r"slow names \[0, 2, 5, 1.5\]"),
        ({"slow": "[[0,1,7,1.5]]"}, "slow names"),
        ({"slow": "[[0,1,5,NaN]]"}, "slow names"),
        ({"slow": "[[0,1,5,1.5],[0,1,6,1.5]]"}, "names a rank twice"),
        ({"slow": "[[0,1,5,true]]"}, "no stage, lane, step and factor"),
        ({"slow": "{}"}, "slow is no list"),
        ({"slow": "[" * 100_000}, "slow is no JSON"),
        (changed("[" * 100_000), "a change is no JSON"),
        (changed("{}"), "not an object of schedule, moves, places"),
        (changed(json.dumps(WHOLE | {"schedule": "F0"})), "no list of texts"),
        (changed(json.dumps(WHOLE | {"schedule": ["F0 X1"]})), "'X1' .* is no op"),
        (changed(json.dumps(WHOLE | {"schedule": ["F0  B0"]})), "'' .* is no op"),
        (changed(json.dumps(WHOLE | {"schedule": ["F\u0663"]})), "is no op"),
        (changed(json.dumps(WHOLE | {"schedule": ["F" + "9" * 30]})), "is no op"),
        (changed(json.dumps(WHOLE | {"moves": {}})), "moves are not an object"),
        (changed(json.dumps(WHOLE | {"places": []})), "places are not an object"),
        (places(microbatch=[0, -1]), "microbatch holds -1, no number 0 to 2147483647"),
        (places(first_rank=[0, 1.0]), "first_rank holds 1.0, no number"),
        (places(ulysses_size=[0, 1]), "ulysses_size holds 0, no number 1 to"),
        (places(ring_size=[1, True]), "ring_size holds True, no number"),
        (places(ring_size=[1, "9" * 10_000]), "ring_size holds '9999"),
        (places(ring_size=[1]), "places: not as many of each"),
        (places(ring_size={}), "places: ring_size is no list"),
        (places(degree=[1, 1]), "places are not an object"),
    ],
)
def test_a_row_that_no_run_leaves_is_refused_and_named(tmp_path, columns, said):
    path = written(tmp_path / "d.parquet", **columns)
    with pytest.raises(InputError, match=f"row [01] is no decision of this run: .*{said}"):
        read(path)


def test_a_file_of_another_schema_or_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not a file"):
        read(tmp_path / "absent.parquet")
    pq.write_table(decisions_table(ROWS).drop_columns(["digest"]), tmp_path / "d.parquet")
    with pytest.raises(InputError, match="column digest differs"):
        read(tmp_path / "d.parquet")
