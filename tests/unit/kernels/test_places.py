"""Sums at places of rows."""

from __future__ import annotations

import pytest
import torch

from grace.kernels.places import add_at_

TINY = 2.0**-140


@pytest.mark.parametrize(("dim", "shape", "places"), [(0, (6,), [4, 0, 5]), (1, (2, 6), [[4, 0, 5], [1, 2, 3]])])
def test_numbers_are_added_at_each_place(dim: int, shape: tuple[int, ...], places: list[object]) -> None:
    index, out = torch.tensor(places), torch.arange(torch.Size(shape).numel()).view(shape) * TINY
    values = torch.linspace(-3, 3, index.numel()).view(index.shape) * TINY
    want = out.clone().scatter_add_(dim, index, values)
    assert add_at_(out, dim, index, values) is out
    assert torch.equal(out, want)
    assert (out != 0).any()


@pytest.mark.parametrize("dim", [0, 1])
def test_whole_rows_are_added_too(dim: int) -> None:
    out, index = torch.arange(12.0).view(3, 4), torch.tensor([2, 0])
    values = torch.full((2, 4) if dim == 0 else (3, 2), TINY)
    want, given = out.clone().index_add_(dim, index, values), values.clone()
    assert torch.equal(add_at_(out, dim, index, values), want)
    assert torch.equal(values, given)


def test_a_view_is_changed_in_place() -> None:
    whole = torch.zeros(2, 9)
    add_at_(whole[:, 1:].unflatten(1, (4, 2)), 1, torch.tensor([3]), torch.ones(2, 1, 2))
    assert whole.nonzero().tolist() == [[0, 7], [0, 8], [1, 7], [1, 8]]
