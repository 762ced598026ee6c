"""The law that replicas agree whatever computes them: other kernels, other numbers of threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange
from grace.compute import backends
from grace.contract.method import Method
from grace.run import simulate
from grace.verify import laws

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of a rank: a backend of the kernels, and a number of threads."""

    backend: str
    threads: int

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """A context in which this machine computes everything."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with backends.using(self.backend):
                yield
        finally:
            torch.set_num_threads(before)


def machines() -> list[Machine]:
    """A machine for each backend available here, with 1, 2, 3, ... threads; at least two machines."""
    names = backends.available()
    return [Machine(backend, threads) for threads, backend in enumerate(names * (2 if len(names) == 1 else 1), 1)]


def run_on(machine: Machine, exchange: Exchange[T]) -> Exchange[T]:
    """The same exchange, computed by this machine."""
    answer: Tensor | None = None
    while True:
        with machine.use():
            try:
                op = next(exchange) if answer is None else exchange.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
        answer = yield op


def replicas(method: Method[Any], xs: Sequence[Tensor], steps: int = 3, on: Sequence[Machine] | None = None) -> None:
    """``mean`` is bit-identical on all ranks, step after step, if each is computed by another machine: what ranks compute from
    shared data has one fixed order. ``on``: the ranks' machines, in rotation; default: all.
    """
    on = machines() if on is None else on

    def run_all(exchanges: list[Any]) -> list[Any]:
        return simulate([run_on(on[rank % len(on)], exchange) for rank, exchange in enumerate(exchanges)])

    states = [method.init(x) for x in xs]
    for step in range(steps):
        outs = laws.run(method, xs, states, step=step, runner=run_all)
        states = [out.state for out in outs]
        for rank, out in enumerate(outs):
            where = f"step {step}: rank {rank} on {on[rank % len(on)]} and rank 0 on {on[0]}"
            assert bool(out.finite) == bool(outs[0].finite), f"replicas: finite differs, {where}"
            assert laws.same_bits(out.mean, outs[0].mean), f"replicas: the mean differs, {where}"
