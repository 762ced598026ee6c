"""A step of a reduce-scatter of many tensors: what is not compressed travels beside the others, in their collective."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import AllToAll
from grace.run.options import NonFinite, Options
from grace.run.simulate import simulate
from grace.run.worker import Worker

W = 3
POLICY = grace.Policy([("matrix*", "topk:ratio=0.1"), ("*", "none")])


def rows_of(rank: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(rank)
    widths = {"bias": 5, "matrix a": 40, "norm": 1, "matrix b": 20, "nothing": 0, "shift": 7}
    return {name: torch.randn(W, c, generator=made) for name, c in widths.items()}


def scatter(given: list[dict[str, Tensor]], nonfinite: str, collectives: list[Any] | None = None) -> Any:
    workers = [Worker(POLICY, rank, W, Options(nonfinite=cast("NonFinite", nonfinite))) for rank in range(W)]

    def watch(exchange: Any) -> Any:
        answer = None
        try:
            while True:
                op = exchange.send(answer)
                if collectives is not None:
                    collectives.append(type(op))
                answer = yield op
        except StopIteration as stop:
            return stop.value

    runs = [worker.scatter(rows) for worker, rows in zip(workers, given, strict=True)]
    return simulate([watch(run) if rank == 0 else run for rank, run in enumerate(runs)])


def test_all_travel_in_one_all_to_all_with_the_same_bits_as_alone() -> None:
    asked: list[Any] = []
    results = scatter([rows_of(rank) for rank in range(W)], "propagate", asked)
    assert asked == [AllToAll]
    checked = scatter([rows_of(rank) for rank in range(W)], "skip")  # each with a header of its own
    for ours, theirs in zip(results, checked, strict=True):
        assert list(ours) == list(theirs) == list(rows_of(0))
        assert all(torch.equal(ours[name].mean, theirs[name].mean) for name in ours)


@pytest.mark.parametrize("nonfinite", ["propagate", "skip"])
def test_an_inf_is_where_it_was_or_skipped_and_other_tensors_do_not_see_it(nonfinite: str) -> None:
    given = [rows_of(rank) for rank in range(W)]
    given[1]["bias"][2, 3] = torch.inf
    given[1]["matrix a"][0, 0] = torch.nan
    results = scatter(given, nonfinite)
    for rank, outs in enumerate(results):
        assert all(bool(outs[name].mean.isfinite().all()) for name in ("norm", "matrix b", "shift"))
        if nonfinite == "skip":
            assert not bool(outs["bias"].mean.any())
            assert not bool(outs["matrix a"].mean.any())
        else:
            assert outs["bias"].mean.isinf().tolist() == [rank == 2 and k == 3 for k in range(5)]
            assert bool(outs["matrix a"].mean.isnan().all())
