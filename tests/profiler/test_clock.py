import pytest

pytest.importorskip("torch")

from hydraplan.files.profilefile import ClockState
from hydraplan.profiler.clock import _cpu_state, parsed


def test_a_gpu_that_is_held_back_says_by_what() -> None:
    assert parsed("1980, 0x0000000000000004\n") == ClockState(mhz=1980, throttled_by="power cap")
    assert parsed("345, 0x0000000000000001\n") == ClockState(mhz=345)  # it idles
    both = ClockState(mhz=1200, throttled_by="temperature, temperature, in hardware")
    assert parsed("1200, 0x0000000000000060") == both


@pytest.mark.parametrize("answer", ["", "[N/A], [N/A]", "1980", "No devices were found"])
def test_an_answer_that_says_nothing_is_no_state(answer: str) -> None:
    assert parsed(answer) is None


def test_a_cpu_says_the_mean_of_its_cores(tmp_path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\ncpu MHz\t\t: 2000.0\nprocessor\t: 1\ncpu MHz\t\t: 3000.0\n")
    assert _cpu_state(path) == ClockState(mhz=2500)
    for nothing in (b"Hardware: arm\n", b"cpu MHz : .\ncpu MHz : 1.2.3\n", b"\xff"):
        path.write_bytes(nothing)
        assert _cpu_state(path) is None
    assert _cpu_state(tmp_path / "absent") is None
