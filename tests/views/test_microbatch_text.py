import numpy as np
import pytest

from hydraplan.views.microbatch_text import microbatch_rows, print_microbatches
from tests.builders import Place
from tests.plans import batch_plan, batch_rows

PLACES = [Place(30), Place(50, 0, 2, 1), Place(21, 1, microbatch=1), Place(0)]


def test_a_microbatch_weighs_in_the_loss_what_its_labels_are() -> None:
    batch = batch_plan(0, batch_rows(PLACES), 2, 1)
    load_s = np.array([[3.0, 1.0], [2.0, 0.5]])
    first, second = microbatch_rows(batch, load_s)
    assert (first["sequences"], first["tokens"], first["longest_tokens"]) == (2, 80, 50)
    assert first["loss_weight"] == pytest.approx((29 + 49) / (29 + 49 + 20))
    assert (first["busiest_slot_s"], second["busiest_slot_s"]) == (3.0, 1.0)
    assert (first["over_mean"], second["over_mean"]) == (1.5, 0.5)


def test_many_microbatches_say_how_many_are_left_out(capsys) -> None:
    places = [Place(10 + m, microbatch=m) for m in range(30)]
    batch = batch_plan(4, batch_rows(places), 30, 1)
    print_microbatches(4, microbatch_rows(batch, np.ones((1, 30))))
    out = capsys.readouterr().out
    assert "microbatches of batch 4" in out
    assert "and 10 more: --json has all" in out
    assert max(map(len, out.splitlines())) <= 80
