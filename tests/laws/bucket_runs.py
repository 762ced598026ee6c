"""Workers in lock step, with and without batches, whose bytes, means, states and traffic are compared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.collectives import AllGather, Collective, Exchange, signature
from grace.compute import backends
from grace.errors import TransportError
from grace.registry.policy import Policy
from grace.run.options import Options
from grace.run.simulate import answers
from grace.run.worker import Worker
from grace.transports.traced import Tracer

HOST = torch.device("cpu")
Shapes = tuple[tuple[int, ...], ...]
Plans = Callable[[int], bool]


def ALL(rank: int) -> bool:
    """Every rank makes batches."""
    return True


def SOME(rank: int) -> bool:
    """Every other rank does: the network cannot tell."""
    return rank % 2 == 0


def gradients(rank: int, step: int, shapes: Shapes) -> dict[str, Tensor]:
    """Tensors side by side that begin at odd addresses: normal numbers; -0 and denormals, twice; an inf on one rank."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    generator = torch.Generator().manual_seed(1000 * step + rank)
    flat = torch.randn(sum(sizes) + 1, generator=generator, dtype=torch.float32, device=HOST)[1:]
    if step in (1, 2):
        flat[::3], flat[1::5] = -0.0, 1e-41
    parts = flat.split(sizes)
    if step == 2 and rank == 0:
        parts[-2][0] = torch.inf
    return {f"layer{i}": part.view(shape) for i, (part, shape) in enumerate(zip(parts, shapes, strict=True))}


def in_dtype(given: dict[str, Tensor], dtype: torch.dtype, device: torch.device = HOST) -> dict[str, Tensor]:
    """The same numbers in another dtype and place, side by side again, and again at odd addresses."""
    flat = torch.cat([torch.zeros(1), *(x.reshape(-1) for x in given.values())]).to(device, dtype)[1:]
    parts = flat.split([x.numel() for x in given.values()])
    return {name: part.view(x.shape) for (name, x), part in zip(given.items(), parts, strict=True)}


def in_bytes(x: Any) -> Any:
    """A tree with the bytes of its tensors."""
    if isinstance(x, Tensor):
        return x.dtype, tuple(x.shape), x.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(x, dict):
        return {key: in_bytes(value) for key, value in x.items()}
    return tuple(map(in_bytes, x)) if isinstance(x, tuple | list) else x


class Run:
    """W workers in lock step, over a network that keeps what it is given; ``plans`` says which ranks make batches. Their
    gradients are of this dtype, and on this device.
    """

    scatters = False  # whether tensors are rows, of which each worker gets the mean of its own

    def __init__(
        self,
        policy: Policy,
        world: int,
        shapes: Shapes,
        plans: Plans,
        dtype: torch.dtype = torch.float32,
        device: torch.device = HOST,
    ):
        self.policy, self.shapes, self.plans, self.dtype, self.device = policy, shapes, plans, dtype, device
        self.seen: list[Any] = []  # for each collective, what each rank gave
        self.tracers = [Tracer(rank, world) for rank in range(world)]
        self.workers = [self._make(rank, world) for rank in range(world)]

    def _make(self, rank: int, world: int) -> Worker:
        worker = Worker(self.policy, rank, world, Options(seed=3))
        worker.plans = self.plans(rank)
        return worker

    def _give(self, rank: int, step: int) -> dict[str, Tensor]:
        given = gradients(rank, step, self.shapes)
        as_it_is = self.dtype is torch.float32 and self.device == HOST
        return given if as_it_is else in_dtype(given, self.dtype, self.device)

    def rate(self, step: int) -> float | None:
        """The learning rate of a step, for memories that follow it."""
        return 0.1 / (1 + step)

    def states(self) -> Any:
        return [in_bytes(worker.state_dict()) for worker in self.workers]

    def step(self, fail_at: int | None = None) -> Any:
        """Means and states after a step, and the traffic so far; None if there was a collective ``fail_at``: it failed."""
        runs: list[Exchange[Any]] = []
        for worker, tracer in zip(self.workers, self.tracers, strict=True):
            worker.lr = self.rate(worker.step)
            begin = worker.scatter if self.scatters else worker.exchange
            runs.append(tracer.trace(begin(self._give(worker.rank, worker.step))))
        ops, means = self._hear(runs, [None] * len(runs))
        while ops:
            if fail_at == 0:
                for run in runs:
                    with pytest.raises(TransportError):
                        run.throw(TransportError("a worker died"))
                return None
            fail_at = None if fail_at is None else fail_at - 1
            ops, means = self._hear(runs, _in_place(ops))
        for worker in self.workers:
            worker.workspace.reset()
            worker.advance()
        return means, self.states(), [tracer.traffic for tracer in self.tracers]

    def _hear(self, runs: list[Exchange[Any]], inbox: list[Any]) -> tuple[list[Collective], list[Any]]:
        ops, means = [], []
        for run, message in zip(runs, inbox, strict=True):
            try:
                ops.append(next(run) if message is None else run.send(message))
            except StopIteration as stop:
                means.append({name: in_bytes(out.mean) for name, out in stop.value.items()})
        asked = [signature(op) for op in ops]
        assert len(set(asked)) < 2, asked
        self.seen.append([(question, in_bytes(op.buf.reshape(-1))) for question, op in zip(asked, ops, strict=True)])
        return ops, means

    def reload(self) -> None:
        """New workers go on from the states of these."""
        fresh = []
        for worker in self.workers:
            new = self._make(worker.rank, worker.world)
            new.load_state_dict(worker.state_dict(), self._give(0, 0))
            fresh.append(new)
        self.workers = fresh

    def switch(self, policy: Policy) -> None:
        self.policy = policy
        for worker in self.workers:
            worker.switch(policy)


class RowRun(Run):
    """Workers that scatter rows ``[W, c]``."""

    scatters = True


def _in_place(ops: list[Collective]) -> list[Tensor]:
    """The answers; every other network puts them where it may."""
    given = answers(ops)
    return [
        op.into.copy_(answer) if rank % 2 == 0 and isinstance(op, AllGather) and op.into is not None else answer
        for rank, (op, answer) in enumerate(zip(ops, given, strict=True))
    ]


def story(run: Run, other: Policy | None = None) -> Iterator[Any]:
    """Five steps: with ugly numbers, a save, another policy for a step, and a network that fails at each round in turn."""
    for _ in range(3):
        yield run.step()
    run.reload()
    before, policy, number = run.states(), run.policy, 0
    while (done := run.step(fail_at=number)) is None:
        assert run.states() == before, f"a failure in round {number} changed a state"
        number += 1
    yield done
    if other is not None:
        run.switch(other)
        yield run.step()
        run.switch(policy)
    yield run.step()


def assert_same(
    policy: Policy, world: int, shapes: Shapes, other: Policy | None = None, plans: Plans = ALL,
    dtype: torch.dtype = torch.float32, beside: str | None = None, kind: type[Run] = Run,
) -> None:  # fmt: skip
    """``beside``: the backend of the workers that make no batches, if it is another one. What its kernels write of an inf, in
    the third step, is then its own: the wire is marked, and nobody reads it.
    """
    with contextlib.nullcontext() if beside is None else backends.using(beside):
        want = list(_tell(kind(policy, world, shapes, lambda _: False, dtype), other))
    for step, (a, b) in enumerate(zip(want, _tell(kind(policy, world, shapes, plans, dtype), other), strict=True)):
        assert a[0] == b[0], step
        assert a[1] == b[1] or (beside is not None and step == 2), step


def _tell(run: Run, other: Policy | None) -> Iterator[tuple[Any, list[Any]]]:
    """Results of each step of the story, and what the network was given since the one before."""
    begin = 0
    for outcome in story(run, other):
        yield outcome, run.seen[begin:]
        begin = len(run.seen)
