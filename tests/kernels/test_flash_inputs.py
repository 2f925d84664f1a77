import pytest
import torch

from hydraplan.errors import InputError
from hydraplan.kernels.flash_inputs import check_head_dim, device_borders, side_by_side

META = torch.device("meta")


def test_borders_are_32_bit_with_the_longest_segments():
    cu_q, cu_k, longest_q, longest_k = device_borders((0, 5, 12), (0, 3, 11), torch.device("cpu"))
    assert (cu_q.tolist(), cu_k.tolist(), longest_q, longest_k) == ([0, 5, 12], [0, 3, 11], 7, 8)
    assert cu_q.dtype == cu_k.dtype == torch.int32


def test_borders_are_copied_to_the_device_once():
    first = device_borders((0, 5, 13), (0, 3, 11), META)
    assert device_borders((0, 5, 13), (0, 3, 11), META) is first


@pytest.mark.parametrize("most_q", [True, False])
def test_borders_beyond_32_bits_are_refused(most_q):
    rows = [2**31, 2**31 - 1] if most_q else [2**31 - 1, 2**31]
    with pytest.raises(InputError, match="2147483648 rows"):
        device_borders(*((0, n) for n in rows), META)
    device_borders((0, 2**31 - 1), (0, 2**31 - 1), META)


def test_only_spread_heads_are_copied():
    x = torch.zeros(3, 2, 2, 8)
    view = x[:, 0]
    assert side_by_side(view) is view
    assert side_by_side(x.transpose(2, 3)[:, 0]).stride(2) == 1


def test_a_head_dim_may_be_served_besides():
    check_head_dim(128, 128, "flash4", (256,))
    check_head_dim(256, 128, "flash4", (256,))
    with pytest.raises(InputError, match="head_dim 192 is not a multiple of 8 up to 128, or 256"):
        check_head_dim(192, 128, "flash4", (256,))
