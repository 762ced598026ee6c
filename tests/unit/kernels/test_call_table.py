"""Tables of calls of native kernels."""

from __future__ import annotations

import pytest
import torch

from grace import kernels
from grace.compute import native
from grace.errors import InputError
from grace.kernels.call_table import ROWS, THREADS, CallTable
from grace.registry.policy import Policy
from grace.run.simulate import simulate
from grace.run.worker import Worker
from tests.unit.kernels.native_checks import needs_native


@needs_native
def test_a_table_calls_a_kernel_for_each_row():
    kernels.all_finite(torch.zeros(3))  # a backend is chosen
    xs = [torch.ones(7)[:5], torch.full((7,), torch.inf), torch.zeros(1)]  # the first has room for a call of 7
    table = CallTable(native.c.finite, [(ROWS, x.numel(), THREADS) for x in xs])
    table.put(ROWS, [x.data_ptr() for x in xs])
    assert table.run().tolist() == [1, 0, 1]
    with torch.device("meta"):  # whatever tensors are made of by default
        table.put(ROWS, [xs[1].data_ptr(), xs[0].data_ptr(), xs[2].data_ptr()])
        assert table.run().tolist() == [0, 1, 1]


@needs_native
def test_calls_of_different_kinds_make_no_table():
    kernels.all_finite(torch.zeros(3))
    with pytest.raises(TypeError, match="different kinds"):
        CallTable(native.c.finite, [(ROWS, 5, THREADS), (0, 5, THREADS)])


def test_a_memory_of_another_shape_is_refused_before_anything_is_read():
    worker = Worker(Policy([("*", "efsignsgd:block=32")]), 0, 1)
    for step in range(4):
        size = 40 if step < 3 else 4000
        tensors = {name: torch.randn(size) for name in ("a", "b")}
        if step == 3:
            with pytest.raises((InputError, RuntimeError)):
                simulate([worker.exchange(tensors)])
        else:
            simulate([worker.exchange(tensors)])
            worker.workspace.reset()
            worker.advance()
