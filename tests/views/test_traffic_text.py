import numpy as np

from hydraplan.files.trafficfile import KINDS, Traffic
from hydraplan.views.traffic_text import print_traffic, traffic_json

PREDICTED = np.arange(24).reshape(2, 3, 2, 2) * 1000
"""Two steps, two stages, two lanes."""


def test_bytes_are_summed_over_ranks_and_averaged_over_steps(capsys):
    sent = Traffic(PREDICTED + 1, PREDICTED)
    said = traffic_json(sent)
    assert said["predicted_sent_bytes"] == dict(zip(KINDS, [30000, 46000, 62000], strict=True))
    assert said["sent_bytes"] == dict(zip(KINDS, [30004, 46004, 62004], strict=True))
    print_traffic(sent._replace(measured=PREDICTED))
    assert capsys.readouterr().out == (
        "bytes sent a step: 30,000 between stages, 46,000 inside groups, 62,000 to sum gradients"
        " (as predicted)\n"
    )


def test_ranks_that_sent_something_else_are_counted_and_a_simulated_run_says_predicted(capsys):
    sent = Traffic(PREDICTED.copy(), PREDICTED)
    sent.measured[1, 0, 1, 0] += 1
    print_traffic(sent)
    assert "(1 of 4 ranks not as predicted)" in capsys.readouterr().out
    simulated = sent._replace(measured=None)
    assert traffic_json(simulated)["sent_bytes"] == dict.fromkeys(KINDS)
    print_traffic(simulated)
    assert "(predicted)" in capsys.readouterr().out
