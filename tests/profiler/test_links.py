import os
import signal

import pytest

pytest.importorskip("torch")

from hydraplan.profiler import links
from hydraplan.profiler.links import measure_links


@pytest.mark.dist
@pytest.mark.timeout(90)
def test_an_interrupt_and_an_interface_of_a_cluster_do_not_reach_the_measuring_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(here: object, budget_s: float) -> list[object]:
        os.kill(os.getpid(), signal.SIGINT)
        return []

    monkeypatch.setattr(links, "measure_exchanges", interrupted)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    assert measure_links(0.1) == []
