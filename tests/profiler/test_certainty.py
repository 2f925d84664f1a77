import numpy as np
import pytest

from hydraplan.costfit import CostFit
from hydraplan.files.profilefile import Measurement
from hydraplan.profiler.certainty import left_out_errors, term_errors, uncertainty
from hydraplan.profiler.fit import fit_component

SIZES = [float(4**power) for power in range(5, 13)]


def message(size: float, seconds: float) -> Measurement:
    return Measurement("p2p", "send", bytes=size, p10_s=seconds, median_s=seconds, p90_s=seconds)


def fit_to(points: list[Measurement]) -> CostFit:
    return CostFit.model_construct(None, node_p2p=fit_component("node_p2p", points))


def test_a_point_off_the_line_of_all_others_is_off_by_just_that() -> None:
    points = [message(size, 1e-4 + size / 1e9) for size in SIZES]
    points[3] = message(SIZES[3], 2 * (1e-4 + SIZES[3] / 1e9))
    errors = left_out_errors("node_p2p", points, fit_to(points))
    assert errors[3] == pytest.approx(-0.5, abs=1e-4)
    assert np.abs(np.delete(errors, 3)).max() < 1e-4
    assert np.array_equal(uncertainty(points), np.abs(errors))


def test_a_fit_to_too_few_points_knows_nothing_of_the_one_left_out() -> None:
    points = [message(size, 1e-4 + size / 1e9) for size in SIZES[:2]]
    assert (left_out_errors("node_p2p", points, fit_to(points)) == 1.0).all()
    assert (uncertainty(points[:1]) == 1.0).all()


def test_what_no_coefficient_is_fitted_on_is_not_uncertain() -> None:
    assert uncertainty([Measurement("optimizer", "step", bytes=1.0, p10_s=1.0)]).tolist() == [0.0]


def test_a_term_tells_its_errors_and_the_sizes_that_were_measured() -> None:
    points = [message(size, 1e-4 + size / 1e9) for size in SIZES]
    points[3] = message(SIZES[3], 2 * (1e-4 + SIZES[3] / 1e9))
    (term,) = term_errors(fit_to(points).model_copy(update={"memory_bytes_per_s": 1.0}), points)
    assert (term.name, term.num_points, term.unit) == ("node_p2p", 8, "bytes")
    assert (term.smallest, term.largest) == (SIZES[0], SIZES[-1])
    assert term.worst_error == pytest.approx(0.5, abs=1e-4)
    assert term.left_out_median < 1e-4
    assert term.left_out_p90 == pytest.approx(0.3 * 0.5, abs=1e-4)
