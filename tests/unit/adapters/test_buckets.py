"""Groups of gradients that travel together."""

from __future__ import annotations

import torch

from grace.adapters.buckets import fill_buckets


def test_buckets_go_from_the_last_parameter_to_the_first() -> None:
    like = {name: torch.empty(size) for name, size in [("a", 10), ("b", 100), ("c", 5), ("d", 5)]}
    assert fill_buckets(like, 4 * 20) == [["d", "c"], ["b"], ["a"]]
    assert fill_buckets(like, 10**6) == [["d", "c", "b", "a"]]
