"""Texts told over a store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from grace.errors import AbsentError
from grace.transports.store import all_gather_over_store


def test_rounds_leave_nothing_but_the_last_ones_marks() -> None:
    store, world = dist.HashStore(), 3

    def run(rank: int) -> list[list[str]]:
        return [
            all_gather_over_store(store, f"round{k}", rank, world, f"{k} of {rank}", 30, [f"round{k - 1}"] if k else ())
            for k in range(20)
        ]

    with ThreadPoolExecutor(world) as pool:
        for told in pool.map(run, range(world)):
            assert told == [[f"{k} of {rank}" for rank in range(world)] for k in range(20)]
    assert store.num_keys() == 2  # that all have read the last round, and how many


def test_who_gives_up_takes_its_text_back() -> None:
    store = dist.HashStore()
    with pytest.raises(AbsentError) as caught:
        all_gather_over_store(store, "round", 0, 2, "here", 0.05)
    assert caught.value.ranks == [1]
    assert store.num_keys() == 0
