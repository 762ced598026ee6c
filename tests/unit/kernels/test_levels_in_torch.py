from __future__ import annotations

import torch

from grace.kernels import block_divide, block_sum, nearest


def test_block_sum_is_exact_where_float32_is_not() -> None:
    rows = torch.tensor([[3e38, 3e38, 1.0], [1e8, 1.0, -1e8]])
    assert block_sum(rows, 2).tolist() == [[2 * rows[0, 0].double().item(), 1.0], [1e8 + 1, -1e8]]
    assert block_sum(rows > 2, 3).tolist() == [[2.0], [1.0]]


def test_a_scale_that_is_as_good_as_zero_makes_zeros() -> None:
    rows = torch.tensor([[2.0, -4.0, 1e-40, 3.0, 0.0]])
    scale, y = block_divide(rows, torch.tensor([[4.0, 1e-39, 0.0]]), 2)
    assert scale.tolist() == [[4, 0, 0]]
    assert y.tolist() == [[0.5, -1, 0, 0, 0]]


def test_nearest_agrees_with_a_search_and_breaks_ties_downwards() -> None:
    book = torch.tensor([-1.0, 0.0, 0.5, 4.0])
    values = torch.cat((torch.linspace(-3, 6, 997), torch.tensor([-0.5, 0.25, 2.25])))
    want = (values[:, None] - book).abs().argmin(1)
    assert torch.equal(nearest(values.view(1, -1), book)[0], want)
