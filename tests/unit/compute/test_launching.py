"""Grids of kernels: CUDA starts at most 2^31 - 1 programs on the first axis, and 65,535 on each other one."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from grace.compute import launching
from grace.compute.launching import count_compiled, launch
from grace.errors import InputError
from grace.kernels.tensor_list import TensorList


class Kernel:
    """Takes the place of a Triton kernel: keeps its grids, and computes nothing."""

    def __init__(self, name="_kernel"):
        self.__name__ = name
        self.grids = []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return lambda *args, **constants: None


@pytest.mark.parametrize("grid", [(1,), (2**31 - 1, 65_535), (1, 65_535, 65_535), (0, 70_000)])
def test_a_grid_that_cuda_starts(grid):
    kernel = Kernel()
    launch(kernel, grid, torch.zeros(1))
    assert kernel.grids == ([] if 0 in grid else [grid])


@pytest.mark.parametrize("grid", [(2**31,), (1, 65_536), (1, 1, 65_536)])
def test_a_grid_that_cuda_refuses(grid):
    kernel = Kernel()
    with pytest.raises(
        InputError, match=r"_kernel would need a grid of .* programs.*at most 2147483647 x 65535 x 65535"
    ):
        launch(kernel, grid, torch.zeros(1))
    assert not kernel.grids


def test_statistics_of_a_tensor_of_600_million_numbers_have_a_grid(monkeypatch):
    # One block, as natural and 3lc have it: its chunks once lay on the second axis, on which CUDA has no room for them.
    statistics = pytest.importorskip("grace.kernels.statistics.triton", reason="needs Triton")
    kernel = Kernel()
    for name in ("block_max_kernel", "piece_sum_kernel", "join_pieces_kernel", "_largest", "_piece_sums"):
        monkeypatch.setattr(statistics, name, kernel)
    x = torch.empty(1, 600_000_000)  # its pages are never touched
    statistics.largest(x, None, x.shape[1])
    statistics.euclidean_norm(x, None, x.shape[1])
    assert len(kernel.grids) == 3
    many = TensorList([x.shape[1]], [0], [], torch.device("cpu"))
    assert many.point([x])
    statistics.largest_of_many(many, x.shape[1])
    statistics.euclidean_norm_of_many(many, x.shape[1])
    assert len(kernel.grids) == 6
    assert kernel.grids[0][0] == kernel.grids[3][0] == -(-x.shape[1] // 4096)


class Specialized(Kernel):
    """Compiles for each kind of arguments, as Triton does, and gives back what it has compiled."""

    def __init__(self):
        super().__init__()
        self.made = {}

    def __getitem__(self, grid):
        return lambda *args, **constants: self.made.setdefault(constants.get("BITS"), object())


def test_what_is_compiled_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_compiled", set())
    monkeypatch.setitem(
        sys.modules, "torch._dynamo.utils", types.SimpleNamespace(counters={"stats": {"unique_graphs": 7}})
    )
    kernel, counts = Specialized(), []
    for bits in (4, 4, 8, 4, 8):
        launch(kernel, (1,), torch.zeros(1), BITS=bits)
        counts.append(count_compiled())
    assert counts == [8, 8, 9, 9, 9]
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert count_compiled() == 2
