"""Flags that travel with the tensors of a bucket."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from grace import Policy
from grace.collectives import AllReduce, Collective, watch
from grace.run import Worker, simulate

FLAGS = [[1, 0, 0, 1, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 0]]  # of each worker
ANY = [1, 0, 1, 1, 0]


def run(
    monkeypatch: pytest.MonkeyPatch, plans: str, tensors: dict[str, Tensor], method: str, flags: bool
) -> tuple[list[list[int]], list[Any], list[tuple[str, torch.dtype, int]]]:
    """The flags of all workers after an exchange, its means, and what one worker asked of the network."""
    monkeypatch.setenv("GRACE_PLANS", plans)
    asked = []

    def note(op: Collective) -> Collective:
        asked.append((type(op).__name__, op.buf.dtype, op.buf.numel()))  # type: ignore[union-attr]
        return op

    workers = [Worker(Policy.of(method), rank, 3) for rank in range(3)]
    given = [torch.tensor(FLAGS[rank], dtype=torch.uint8) for rank in range(3)] if flags else [None] * 3
    runs = [
        w.exchange({n: x * (w.rank + 1) for n, x in tensors.items()}, f) for w, f in zip(workers, given, strict=True)
    ]
    runs[0] = watch(runs[0], note)
    outs = simulate(runs)
    means = [{name: out.mean.clone() for name, out in outs_of_rank.items()} for outs_of_rank in outs]
    return [[] if f is None else f.tolist() for f in given], means, asked


CASES = {
    "two that go as they are": ({"w": (40, 50), "a": (7,), "b": (9,)}, "topk:ratio=0.1", torch.float32, True),
    "of 16 bits": ({"w": (40, 50), "a": (7,), "b": (9,)}, "topk:ratio=0.1", torch.bfloat16, True),
    "all": ({"w": (40, 50), "a": (7,)}, "none", torch.float64, True),
    "one": ({"w": (40, 50), "a": (7,)}, "topk:ratio=0.1", torch.float32, False),
    "none": ({"w": (40, 50)}, "topk:ratio=0.1", torch.float32, False),
}


@pytest.mark.parametrize(("shapes", "method", "dtype", "joins"), CASES.values(), ids=CASES.keys())
def test_flags_become_those_of_any_worker(
    monkeypatch: pytest.MonkeyPatch, shapes: dict[str, tuple[int, ...]], method: str, dtype: torch.dtype, joins: bool
) -> None:
    """They ask for no collective of their own where several tensors go as they are, and change no mean."""
    tensors = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    _, means, before = run(monkeypatch, "1", tensors, method, False)
    asked = []
    for plans in "01":
        flags, same, ops = run(monkeypatch, plans, tensors, method, True)
        assert flags == [ANY] * 3
        assert all(
            torch.equal(x, same[rank][n]) for rank, means_of_rank in enumerate(means) for n, x in means_of_rank.items()
        )
        asked.append(ops)
    assert asked[0] == asked[1], "ranks need not choose alike whether there are batches"
    sizes = [(kind, size) for kind, _, size in asked[1]]
    if joins:
        assert len(asked[1]) == len(before)
        grown = set(asked[1]) - set(before)
        assert {(kind, dt) for kind, dt, _ in grown} == {(AllReduce.__name__, dtype)}
    else:
        assert sorted(asked[1], key=str) == sorted([*before, ("AllReduce", torch.uint8, 5)], key=str), sizes
