import numpy as np

from hydraplan.files.opsfile import simulated_waits
from hydraplan.model import Op, Timeline


def test_a_simulated_op_waits_inside_for_its_group_and_before_it_for_what_it_is_handed():
    timeline = Timeline(
        schedule=((Op("F", 0), Op("BW", 0)),),
        start_s=(np.array([[1.0, 2.0], [5.0, 3.5]]),),
        end_s=(np.array([[2.0, 3.5], [6.0, 6.0]]),),
        busy_s=(np.array([[1.0, 1.0], [0.25, 2.5]]),),
        grad_sync_s=np.zeros(1),
    )
    waits = simulated_waits(timeline)
    assert waits.group_s[0].tolist() == [[0.0, 0.5], [0.75, 0.0]]
    assert waits.transfer_s[0].tolist() == [[0.0, 1.0], [3.0, 0.0]]
