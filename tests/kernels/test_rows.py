import gc

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydraplan.kernels import rows as module
from hydraplan.kernels.packing import RowMap
from hydraplan.kernels.rows import add, permute, put, take

maps = st.sets(st.integers(0, 9)).map(lambda held: RowMap(np.array(sorted(held), np.int64)))


@given(maps)
def test_rows_are_picked_placed_and_added_as_indexing_does(rows):
    x = torch.arange(20.0).view(10, 2)
    index = torch.from_numpy(rows.index)
    assert torch.equal(take(x, rows), x[index])
    for act, wanted in ((put, -1.0), (add, None)):
        into, right = x.clone(), x.clone()
        act(into, rows, torch.full((len(index), 2), -1.0))
        right[index] = right[index] - 1 if wanted is None else wanted
        assert torch.equal(into, right)


def test_one_run_is_a_view_and_no_map_is_everything():
    x = torch.arange(20.0).view(10, 2)
    assert take(x, RowMap(np.arange(3, 7))).data_ptr() == x[3:].data_ptr()
    assert take(x, None) is x
    assert permute(x, None) is x
    assert permute(x, RowMap(np.arange(10)[::-1].copy()))[:, 0].tolist() == list(range(18, -1, -2))


def test_a_map_is_copied_to_a_device_once_and_forgotten_with_it():
    rows, known = RowMap(np.array([0, 2])), len(module._ON_DEVICE)
    there = torch.zeros(4, 1, device="meta")
    take(there, rows)
    first = module._ON_DEVICE[rows]
    add(there, rows, there[:2])
    assert module._ON_DEVICE[rows] is first
    assert first.device == there.device
    take(torch.zeros(4, 1), rows)
    assert module._ON_DEVICE[rows].device.type == "cpu"
    del rows
    gc.collect()
    assert len(module._ON_DEVICE) <= known
