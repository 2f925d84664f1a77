from hydraplan.differ import Place, Row
from hydraplan.views.report_changes import _row

PLACE = Place(3, 0, 4, 4, 2, 2, "placed")


def test_a_row_that_only_changed_its_turn_is_seen_to_have_changed() -> None:
    cells = _row(Row(0, 17, 900, "reordered", PLACE, PLACE._replace(order=2)))
    assert cells == ["17", 900, "other order", "3.0 on 4-7, 2x2", "3.2 on 4-7, 2x2"]


def test_a_row_without_a_place_says_why() -> None:
    gone = Place(-1, -1, -1, 0, 0, 0, "overlong")
    assert _row(Row(0, 17, 900, "degree", PLACE, gone))[-1] == "overlong"
