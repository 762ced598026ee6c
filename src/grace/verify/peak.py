"""Memory that an exchange needs besides the gradient: what a state keeps, and the most that is alive at once."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grace.collectives import Exchange
from grace.compute import backends
from grace.contract.facts import Facts
from grace.contract.method import Exchanged, Method
from grace.errors import ConfigurationError
from grace.registry import spell
from grace.run import simulate
from grace.verify.inputs import normal
from grace.verify.running import leaves, make_peer
from grace.verify.subject import subject

SIDE, WORKERS = 256, 4  # of the example whose numbers pages show


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes for a tensor. kept: by the state, between steps. most: alive at once in a step besides gradient and state."""

    kept: int
    most: int


class Shares(NamedTuple):
    """A :class:`Peak` in multiples of the gradient."""

    kept: float
    most: float


def facts(method: object, like: Tensor, workers: int = WORKERS) -> Facts:
    """The facts of a method about tensors like this one, with the memory that it needs, which is counted: see
    :func:`measure_peak`. Of ``like`` only the shape matters; normal numbers are exchanged.

    Args:
        method: a string, a method, or a class or compressor that one is made of, as for :func:`grace.verify.verify`.
        like: of any shape, on the meta device too.
        workers: W >= 1.

    Raises:
        ConfigurationError: there is no such method, its workers have to know their machines, or there are none.

    Example:
        >>> import torch
        >>> facts("topk:ratio=0.1", torch.empty(64, 64)).kept
        16384
    """
    if type(workers) is not int or workers < 1:
        raise ConfigurationError(f"facts: workers={workers!r}; legal: 1 or more")
    made = subject(method).method
    if made.axes(workers):
        raise ConfigurationError(
            f"facts: {spell(made)} sends along machines, of which nobody is asked here; count the method inside, without "
            "machine=..."
        )
    measured = measure_peak(made, [normal(*like.shape, seed=1)(rank) for rank in range(workers)])
    return replace(made.facts(like), kept=measured.kept, peak=measured.most)


@functools.cache
def peak_of(method: Method[Any]) -> Shares | None:
    """The memory that a method needs for a matrix of 256 x 256 and four workers; None if it cannot arrange so many workers."""
    try:
        method.axes(WORKERS)
    except ConfigurationError:
        return None
    if method.axes(WORKERS):
        return None
    xs = [normal(SIDE, SIDE, seed=1)(rank) for rank in range(WORKERS)]
    measured, size = measure_peak(method, xs), xs[0].nbytes
    return Shares(measured.kept / size, measured.most / size)


class _Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that were made here and are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and (storage := x.untyped_storage())._cdata not in given | self.sizes.keys():
                self.sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, storage._cdata, None)
        self.most = max(self.most, sum(self.sizes.values()))
        return out


def measure_peak(method: Method[Any], xs: Sequence[Tensor]) -> Peak:
    """The memory that the second step of worker 0 needs, with plain torch kernels, as on a GPU without others. Memory that
    torch's operations allocate inside does not count; received buffers do.

    Args:
        method: of the tensor.
        xs: a gradient for each worker.
    """
    with backends.using("reference"):
        states = [method.init(x) for x in xs]
        answers: list[Tensor] = []
        for step in range(2):
            first, answers = states[0], []
            runs: list[Exchange[Exchanged[Any]]] = [
                method.exchange(x.clone(), state, make_peer(rank, len(xs), step))
                for rank, (x, state) in enumerate(zip(xs, states, strict=True))
            ]
            runs[0] = _tap(runs[0], answers)
            states = [out.state for out in simulate(runs)]
        kept = sum(x.untyped_storage().nbytes() for x in leaves(first))
        exchange = method.exchange(xs[0].clone(), first, make_peer(0, len(xs), 1))
        with _Alive() as alive:
            answer: Tensor | None = None
            left = iter(answers)
            try:
                while True:
                    if answer is None:
                        next(exchange)
                    else:
                        exchange.send(answer)
                    answer = torch.clone(next(left))
            except StopIteration:
                pass
        return Peak(kept, int(alive.most))


def _tap(exchange: Exchange[Any], answers: list[Tensor]) -> Exchange[Any]:
    """The same exchange; copies of the network's answers are added to ``answers``."""
    try:
        op = next(exchange)
        while True:
            answer = yield op
            answers.append(answer.clone())
            op = exchange.send(answer)
    except StopIteration as stop:
        return stop.value
