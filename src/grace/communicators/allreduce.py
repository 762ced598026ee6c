"""The communicator that lets the network sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, Traffic
from grace.communicators.base import Communicator, meta_tensor, sum_costs
from grace.communicators.many import prepare
from grace.communicators.rounded import RoundedBucket, exchange_rounded
from grace.communicators.summed import SumPlan, exchange_sums
from grace.contract.knobs import as_call
from grace.contract.loan import Loan
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.contract.together import mean_in_place
from grace.errors import CompositionError
from grace.flags.finite import fill_unless_
from grace.kernels.finite import all_finite
from grace.registry.recipes import register_communicator


@register_communicator("allreduce")
@dataclass(frozen=True, slots=True)
class Allreduce(Communicator):
    """All-reduce of the wires, which the network sums: one round, constant traffic.

    If a rank saw an inf or NaN, its wire is NaN throughout, and so is the sum.
    """

    def __post_init__(self) -> None:
        Communicator.__post_init__(self)
        if not self.compressor.summable:
            raise CompositionError(
                f"{as_call(self.compressor)} makes wires that cannot be summed; use Allgather, Broadcasts, "
                "ScatterReduce or ParameterServer instead of Allreduce"
            )

    def with_memory(self) -> Method[Any]:
        if self.compressor.predivide:
            raise CompositionError(
                f"{as_call(self)} lets the network round sums to its narrow numbers, and no worker's memory sees that error; "
                "use ScatterReduce (communicator=scatterreduce) with a memory, which moves as many bytes, or memory=none"
            )
        return Communicator.with_memory(self)

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        if self.compressor.transparent and not peer.lent.keep_rest:
            answer = yield AllReduce(x, "mean", donate=True)
            return Exchanged(answer, None, None)  # as the network summed it; not checked for finiteness
        if (exchange := self._in_few_launches([x], Peers.of([peer]))) is not None:
            return (yield from exchange)[0]
        loan = Loan(x, peer)
        if self.compressor.predivide:  # never with a memory: see with_memory
            loan.numbers.mul_(1 / peer.world)
        wire, finite = self._encode(loan, peer)
        fill_unless_(finite, wire, math.nan)
        answer = yield AllReduce(wire, "sum" if self.compressor.predivide else "mean", donate=True)
        finite = all_finite(answer)
        if finite is False:
            return loan.poison(None)
        if self.compressor.predivide and peer.lent.keep_rest:
            loan.work.mul_(peer.world)
        mean = loan.make_room()
        finite = self._decode([answer], mean.view(1, -1), peer, 1.0, finite)
        if finite is False:
            return loan.poison(None)
        return loan.give_back(mean, None, finite)

    def uncompressed(self, plain: Method[Any]) -> Method[Any]:
        """The method itself where it rounds each number, as torch's hooks do: small tensors beside it would need a collective
        of their own for bytes that matter little.
        """
        return plain if self.compressor.rounds_to is None else self

    def batches(self, like: Tensor) -> bool:
        compressor, exact = self.compressor, type(self) is Allreduce  # a subclass may exchange otherwise
        return exact and (compressor.transparent or compressor.handles_many or compressor.rounds_to is not None)

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """Numbers that travel as they are travel side by side, of tensors of any shapes; wires are made by as many launches or
        calls as one tensor takes.
        """
        if not self.compressor.transparent or (peers and Peers.of(peers).keep_rests):
            exchange = self._in_few_launches(xs, Peers.of(peers)) if peers else None
            return (yield from exchange or Method.exchange_all(self, xs, states, peers))
        workspace = peers.like.lent.workspace if isinstance(peers, Peers) else None
        if workspace is None or not self.batches(xs[0]) or not all(map(torch.numel, xs)):
            return (yield from Method.exchange_all(self, xs, states, peers))
        means = yield from mean_in_place(xs, workspace)
        return [Exchanged(mean, None, None) for mean in means]

    def _in_few_launches(self, xs: Sequence[Tensor], peers: Peers) -> Exchange[list[Exchanged[Any]]] | None:
        """The exchange of these tensors, of any shapes, if kernels for many tensors can take them."""
        workspace = peers.like.lent.workspace
        if workspace is None or type(self) is not Allreduce:
            return None
        if (dtype := self.compressor.rounds_to) is not None:
            rounded = RoundedBucket.of(dtype, xs, peers, workspace)
            return None if rounded is None else exchange_rounded(rounded, xs, peers)
        if not self.compressor.handles_many:
            return None
        bucket = prepare(
            self,
            self.compressor,
            lambda peer: self._stream(self.compressor, peer, 0),
            xs,
            peers,
            workspace,
            SumPlan,
            anywhere=True,
        )
        return None if bucket is None else exchange_sums(bucket, xs, peers)

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        dtype = like.dtype if self.compressor.transparent and not peer.lent.keep_rest else torch.uint8
        size = like.numel() if dtype == like.dtype else self.compressor.facts(like.numel()).payload
        return None if size is None else sum_costs(peer, AllReduce(meta_tensor(size, dtype=dtype)))
