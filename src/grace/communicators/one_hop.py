"""Base class of the communicators that give every wire to everyone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange
from grace.communicators.base import Communicator
from grace.communicators.bucket import BucketPlan
from grace.communicators.counted_many import NoPlan, exchange_counted
from grace.communicators.many import Prepared, WirePlan, exchange_many, prepare
from grace.compute import backends
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.flags.finite import on_host
from grace.kernels.variable_sparse.parts import WirePlaces
from grace.kernels.wire_codes import WireCode

P = TypeVar("P", bound=WirePlan)


@dataclass(frozen=True, slots=True)
class OneHop(Communicator):
    """Base class of the communicators that give every wire to everyone: they differ in how the wires travel."""

    def _gather(self, message: Tensor, room: Tensor, plan: BucketPlan, rank: int) -> Exchange[None]:
        """Fills ``room [W, s]`` uint8 with the messages ``[s]`` of all ranks; this one's is ``message``."""
        raise NotImplementedError

    def _gather_counted(
        self, message: Tensor, places: WirePlaces, workspace: Workspace, peer: Peer
    ) -> Exchange[Tensor]:
        """The messages ``[s]`` of all ranks, whose wires are counted: ``[W, s]`` uint8, contiguous, zeros behind the wires."""
        raise NotImplementedError

    @property
    def _exact(self) -> bool:
        """True if it exchanges as its class says; a subclass may do otherwise."""
        return False

    def _counted(self, like: Tensor) -> WireCode | None:
        """The code of wires that kernels for many tensors can write and read on like's device; None: there are none."""
        if not self._exact or on_host(like.device) or not backends.runs_triton(like.device):
            return None
        return self.compressor.counted

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """All wires, of tensors of any shapes, are written into one message, and decoded where the network leaves them: by as
        many launches or calls as one tensor takes.
        """
        if peers and self.batches(xs[0]):
            whose = Peers.of(peers)
            if (code := self._counted(xs[0])) is not None:
                if (lists := self._prepare(xs, whose, NoPlan.of)) is not None:
                    return (yield from exchange_counted(lists, code, xs, whose, self._gather_counted))
            elif (bucket := self._prepare(xs, whose, BucketPlan)) is not None:
                return (yield from exchange_many(bucket, xs, whose, self._gather))
        return (yield from Method.exchange_all(self, xs, states, peers))

    def _prepare(
        self, xs: Sequence[Tensor], peers: Peers, plan_of: Callable[[Sequence[int], torch.device], P]
    ) -> Prepared[P] | None:
        """The bucket of these tensors, of any shapes, if kernels take it where it is."""
        workspace = peers.like.lent.workspace
        if workspace is None:
            return None
        return prepare(
            self, self.compressor, lambda peer: self._stream(self.compressor, peer, 0), xs, peers, workspace, plan_of,
            anywhere=True,
        )  # fmt: skip
