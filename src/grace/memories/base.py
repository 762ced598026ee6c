"""Base class of the memories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange, Traffic
from grace.contract.facts import Facts
from grace.contract.knobs import as_call, check_knobs
from grace.contract.loan import state_dtype
from grace.contract.method import Exchanged, Method, check_rows, refuse_unpromised
from grace.contract.needs import Needs
from grace.contract.peer import Peer
from grace.errors import CompositionError
from grace.flags.finite import Flag

S = TypeVar("S")
Verb: TypeAlias = Callable[[Tensor, Any, Peer], Exchange[Exchanged[Any]]]


def drop_overflow_(finite: Flag, memory: Tensor) -> None:
    """Sets those numbers of a debt or a velocity of any shape to zero that may be why the step was not ``finite``:
    beyond a 64th of the largest number, inf, and NaN. With them no later step would be finite, whatever the
    gradients are.
    """
    if finite is not True:
        small = memory.abs() <= torch.finfo(memory.dtype).max / 64
        memory.masked_fill_(small.logical_not_() if finite is False else ~(small | finite), 0.0)


@dataclass(frozen=True, slots=True)
class Memory(Method[Any], Generic[S]):
    """A method that wraps a method, and carries a tensor from step to step."""

    method: Method[S]

    def __post_init__(self) -> None:
        check_knobs(self)
        refuse_unpromised(self.method)
        if not isinstance(self.method, Method):
            raise CompositionError(
                f"{type(self).__name__} wraps a Method, got {as_call(self.method)}; "
                "put a communicator around a compressor, such as Allgather(...)"
            )

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        return self._wrap(self.method.exchange, x, state, peer)

    def scatter(self, rows: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        if self._exchanges_otherwise:
            return (yield from Method.scatter(self, rows, state, peer))
        check_rows(rows, peer)
        return (yield from self._wrap(self.method.scatter, rows, state, peer))

    def _wrap(self, verb: Verb, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        """Runs the method's exchange or scatter, the ``verb``, with the work of the memory before and after it."""
        raise NotImplementedError

    def init(self, like: Tensor) -> Any:
        memory = torch.zeros(like.shape, dtype=state_dtype(like), device=like.device)
        return memory, self.method.init(memory)

    @property
    def needs(self) -> Needs:
        return self.method.needs

    @property
    def loses_nothing(self) -> bool:
        """True if the means and what workers owe sum to the gradients, as a law then measures: nothing is lost, only late.
        A memory that decays, or exchanges something else than gradients, says no.
        """
        return True

    @property
    def has_scatter(self) -> bool:
        return not self._exchanges_otherwise and self.method.has_scatter

    @property
    def _exchanges_otherwise(self) -> bool:
        """True if it does more around an exchange than :meth:`_wrap`, which serves a scatter as well."""
        return type(self).exchange is not Memory.exchange

    @property
    def needs_shape(self) -> bool:
        return self.method.needs_shape

    def axes(self, world: int) -> Mapping[str, int]:
        return self.method.axes(world)

    def facts(self, like: Tensor) -> Facts:
        return self.method.facts(like)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return self.method.traffic(_stand_in(like), peer)

    def scatter_traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        if self._exchanges_otherwise:
            return self.traffic(like, peer)
        return self.method.scatter_traffic(_stand_in(like), peer)


def _stand_in(like: Tensor) -> Tensor:
    """The stand-in for it that the method inside is given."""
    return torch.empty(like.shape, dtype=state_dtype(like), device="meta")
