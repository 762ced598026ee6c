"""Batches: the tensors of a bucket that are exchanged as one, where they have one method and it can."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.contract.together import Layouts, together
from grace.contract.workspace import Workspace
from grace.errors import ConfigurationError
from grace.flags.finite import on_host
from grace.run.groups import NONE

VARIABLE = "GRACE_PLANS"


def plans_wanted() -> bool:
    """True if tensors are exchanged in batches: unless the environment variable GRACE_PLANS is 0.

    Raises:
        ConfigurationError: it is neither 0 nor 1.
    """
    given = os.environ.get(VARIABLE) or "1"
    if given not in ("0", "1"):
        raise ConfigurationError(
            f"the environment variable {VARIABLE}={given!r}; legal: 1, tensors of one method are exchanged as one batch, "
            "or 0, each on its own"
        )
    return given == "1"


class _Batch:
    """Tensors of one method, and what belongs to each."""

    __slots__ = ("alone", "method", "names", "places", "states", "xs")

    def __init__(self, method: Method[Any], alone: bool):
        self.method, self.alone = method, alone  # whether it remains one tensor, exchanged as such
        self.xs: list[Tensor] = []
        self.states: list[Any] = []
        self.names: list[str] = []
        self.places: list[int] = []


class Batches:
    """The tensors of a bucket, in their order, as batches: those of one method, where it can. The network is asked for the
    same bytes in the same order as if each tensor were exchanged on its own. On an accelerator one tensor is a batch, too.

    Args:
        plans: whether there are batches of more than one tensor.
        peer: who this worker is, whatever the tensor.
    """

    def __init__(self, plans: bool, peer: Peer):
        self._plans, self._peer = plans, peer
        self._count = 0
        self._all: list[_Batch] = []
        self._goes: dict[Any, bool] = {}  # whether tensors of a kind go as a batch
        self._open: dict[Any, _Batch] = {}
        self._last: tuple[Method[Any], torch.dtype, int, _Batch] | None = None  # whose batch others of this kind join
        self._flags: Tensor | None = None
        self._joined = False  # whether the flags are the last of the tensors

    def add(self, method: Method[Any], x: Tensor, state: Any, name: str) -> None:
        """The next tensor, of any shape, with its state under this method, and its name."""
        dtype, device, last = x.dtype, x.get_device(), self._last
        if last is not None and last[0] is method and last[1] is dtype and last[2] == device:
            batch = last[3]
        else:
            batch = self._batch_for(method, x, (id(method), dtype, device))
        batch.xs.append(x)
        batch.states.append(state)
        batch.names.append(name)
        batch.places.append(self._count)
        self._count += 1

    def _batch_for(self, method: Method[Any], x: Tensor, kind: tuple[int, torch.dtype, int]) -> _Batch:
        """The batch that a tensor like this one joins, or begins."""
        key = (*kind, x.shape) if method.needs_shape else kind
        goes = self._goes.get(key)
        if goes is None:
            goes = self._goes[key] = self._plans and method.batches(x)
        batch = self._open.get(kind) if goes else self._begin(method, alone=True)
        if batch is None:
            batch = self._open[kind] = self._begin(method, alone=False)
        self._last = None if batch.alone or method.needs_shape else (method, *kind[1:], batch)
        return batch

    def _begin(self, method: Method[Any], *, alone: bool) -> _Batch:
        self._all.append(_Batch(method, alone))
        return self._all[-1]

    def ride(self, flags: Tensor) -> None:
        """Flags ``[n]`` uint8 that travel with the tensors that were added so far: each becomes 1 if it is 1 on any rank.

        They join the message of the tensors that are exchanged as they are, if there are several, which are copied into one
        anyway. Otherwise they have a collective of their own in the first round.
        """
        self._flags = flags
        plain = [batch for batch in self._all if batch.method == NONE and batch.xs[0].device == flags.device]
        plain = [batch for batch in plain if batch.xs[0].dtype == plain[0].xs[0].dtype]
        if sum(len(batch.xs) for batch in plain) > 1:
            self._joined, method = True, plain[0].method
            x = flags.to(plain[0].xs[0].dtype)
            self.add(method, x, method.init(x), "")

    def exchange(self, layouts: Layouts, workspace: Workspace) -> Exchange[list[Exchanged[Any]]]:
        """The results of all tensors, in their order."""
        results: list[Any] = [None] * self._count
        runs, places = [self._run(batch) for batch in self._all], [batch.places for batch in self._all]
        flags = self._flags
        if flags is not None and not self._joined:
            runs.append(_any(flags))
            places.append([self._count])
        outs = yield from together(runs, layouts, workspace, places)
        for batch, results_of in zip(self._all, outs, strict=False):
            for place, out in zip(batch.places, results_of, strict=True):
                results[place] = out
        if flags is not None and self._joined:
            flags.copy_(results.pop().mean != 0)
        return results

    def _run(self, batch: _Batch) -> Exchange[list[Exchanged[Any]]]:
        peers = Peers(self._peer, batch.names)
        if len(batch.xs) > 1 or not (batch.alone or on_host(batch.xs[0].device)):
            return batch.method.exchange_all(batch.xs, batch.states, peers)
        return _alone(batch, peers[0])


def _alone(batch: _Batch, peer: Peer) -> Exchange[list[Exchanged[Any]]]:
    return [(yield from batch.method.exchange(batch.xs[0], batch.states[0], peer))]


def _any(flags: Tensor) -> Exchange[list[Exchanged[Any]]]:
    """Makes each flag 1 that is 1 on any rank; it has no results."""
    answer = yield AllReduce(flags, "max", donate=True)
    if answer.data_ptr() != flags.data_ptr():
        flags.copy_(answer)
    return []
