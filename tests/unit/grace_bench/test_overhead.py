import torch

from grace_bench.overhead import list_allocations, machinery


def test_allocations_are_counted():
    sizes = list_allocations(lambda: torch.empty(1000) + torch.ones(1000))
    assert sum(size >= 4000 for size in sizes) == 3


def test_an_operation_in_place_allocates_nothing():
    x = torch.zeros(100_000)
    assert not [size for size in list_allocations(lambda: x.mul_(2)) if size >= 4000]


def test_machinery_is_a_row_with_quartiles():
    row = machinery(4)
    assert 0 < row["low"] <= row["value"] <= row["high"]
    assert row["goal"] == 15
