"""Numbers of torch operations that a step of a bucket has beside the launches of its kernels, for 3 and for 40 tensors: on a
GPU each costs the host about as much as a launch.

Views and allocations are not counted, nor is the network. Triton's interpreter, and tensors on the CPU, stand in for an
accelerator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton", reason="needs the package triton")

from grace.collectives import AllGather
from grace.compute import backends
from grace.contract.method import Exchanged
from grace.flags.finite import Flag, ask_host_of_all, cpu_as_accelerator
from grace.methods.common.low_rank_bucket import LowRankBucket
from grace.registry.policy import Policy
from grace.run.worker import Worker
from tests.laws.bucket_runs import Shapes, gradients, in_dtype
from tests.laws.test_counted import Questions, Waits
from tests.unit.kernels.triton_checks import interpreter, let_agree

__all__ = ["interpreter"]

# One of each is the step's number for replays of graphs, and but for `none` two or three take flags to the host.
OPERATIONS = {
    "none": 1, "bf16": 4, "qsgd:bits=4": 8, "efsignsgd": 9, "randomk": 7, "topk": 11, "powersgd:rank=4": 4,
}  # fmt: skip


class Operations(TorchDispatchMode):  # type: ignore[misc]
    """Notes the names of operations that make something other than a view, or a place."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        views = any(made.alias_info and not made.alias_info.is_write for made in func._schema.returns)
        if not views and "empty" not in str(func):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def operations(spec: str, shapes: Shapes, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Operations of the third step of one worker. Nothing is launched."""
    monkeypatch.setattr(
        "triton.runtime.interpreter.GridExecutor.__call__", lambda executor, *args, **_: let_agree(executor, args)
    )
    with backends.using("triton"), cpu_as_accelerator():
        worker, given = Worker(Policy([("*", spec)]), 0, 1), gradients(0, 0, shapes)
        for _ in range(3):
            with Operations() as noted:
                worker._read_pending()
            noted.names += exchanged(worker, given)
            worker.workspace.reset()
            with Operations() as ended:
                worker.advance()
    monkeypatch.undo()
    return noted.names + ended.names


def exchanged(worker: Worker, given: dict[str, Tensor]) -> list[str]:
    """The operations of an exchange, whose network answers where it is asked to."""
    noted = Operations()
    exchange, answer = worker.exchange(given), None
    with contextlib.suppress(StopIteration):
        while True:
            with noted:
                op = next(exchange) if answer is None else exchange.send(answer)
            answer = op.buf
            if isinstance(op, AllGather):
                answer = op.buf[None] if op.into is None else op.into.copy_(op.buf[None])
    return noted.names


@pytest.mark.parametrize("spec", OPERATIONS)
def test_a_bucket_has_few(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for T in (3, 40):
        names = operations(spec, ((3, 5),) * T, monkeypatch)
        assert len(names) == OPERATIONS[spec], names


def test_one_more_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    header = torch.bitwise_xor
    monkeypatch.setattr("torch.bitwise_xor", lambda flags, *args, **how: header(flags & True, *args, **how))
    with pytest.raises(AssertionError):
        test_a_bucket_has_few("qsgd:bits=4", monkeypatch)


# ---- where some are not finite --------------------------------------------------------------------------------------
RIDGES = "gradzip:rank=1,min_rate=0.1"
# Launches of a step in which every other matrix is not finite, and of the next one, which has matrices of two kinds.
BROKEN = {f"{RIDGES},alternate=true": (17, 32), f"{RIDGES},alternate=true,memory=none": (14, 28)}


def work(spec: str, T: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Launches, operations and questions of a step in which the host is told that every other one of T matrices is not finite,
    and of the next one. Nothing is launched.
    """
    launches, each, right = [0], list[tuple[int, int, int]](), ask_host_of_all

    def count(executor: Any, *args: Any, **_: Any) -> None:
        launches[0] += 1
        let_agree(executor, args)

    def tell(flags: Sequence[Flag]) -> list[bool]:
        return [len(each) != 4 or t % 2 == 1 for t, _ in enumerate(right(flags))]

    monkeypatch.setattr("triton.runtime.interpreter.GridExecutor.__call__", count)
    monkeypatch.setattr("grace.methods.gradzip.ask_host_of_all", tell)
    with backends.using("triton"), cpu_as_accelerator():
        worker, given = Worker(Policy([("*", spec)]), 0, 1), in_dtype(gradients(0, 0, ((3, 5),) * T), dtype)
        for _ in range(6):  # what is kept goes round in four steps
            worker._read_pending()
            launches[0] = 0
            with Questions() as read, Waits() as waited:  # type: ignore[no-untyped-call]
                names = exchanged(worker, given)
            each.append((launches[0], len(names), read.count + waited.count))
            worker.workspace.reset()
            worker.advance()
    monkeypatch.undo()
    return each[4:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", BROKEN)
def test_what_is_not_finite_goes_together(spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the others of the bucket, and so do the memories of all."""
    few, many = (work(spec, T, dtype, monkeypatch) for T in (3, 40))
    assert few == many
    assert [asked for *_, asked in many] == [1, 1]
    if dtype is torch.float32:
        assert tuple(launches for launches, *_ in many) == BROKEN[spec]


def test_what_leaves_the_bucket_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the host said of each matrix what it knows."""
    right = LowRankBucket.results_of

    def say(bucket: LowRankBucket, *given: Any) -> dict[int, Exchanged[Any]]:
        return {t: replace(out, rest=None, finite=False) for t, out in right(bucket, *given).items()}

    monkeypatch.setattr(LowRankBucket, "results_of", say)
    with pytest.raises(AssertionError):
        test_what_is_not_finite_goes_together(next(iter(BROKEN)), torch.float32, monkeypatch)
