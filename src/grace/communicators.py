"""Communicators: the generic exchanges, written once for every compressor (section IV of the survey).

=================  ========================  ===============================  ======================================
communicator       rounds                    bytes sent per worker            needs
=================  ========================  ===============================  ======================================
Allreduce          1                         2 w (W-1)/W                      wires that can be summed
Allgather          1 (+1 if sizes vary)      w (W-1)                          nothing
Broadcast          W (+1 if sizes vary)      w (W-1), exact where sizes vary  nothing
ScatterReduce      2 (+2 if sizes vary)      2 w (W-1)/W                      an average (no majority vote)
ParameterServer    W (+2 if sizes vary)      w; the server w (W-1)            an average (no majority vote)
=================  ========================  ===============================  ======================================

Letters: n numbers, w bytes of one wire, W workers, rank r; c = ceil(n/W) numbers of one worker's chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, AllReduce, AllToAll, Collective, Exchange, Permute, Traffic, cost
from grace.collectives import Broadcast as BroadcastOp
from grace.errors import CompositionError, ConfigurationError, PayloadError, StateError, out_of_range
from grace.kernels.finite import all_finite
from grace.method import Compressor, Exchanged, Facts, Method, Peer, lr_ratio, spelled
from grace.random import Stream


class _Loan:
    """x as contiguous float32 numbers to work on, and the way back to x's shape and dtype.

    ``work`` is x's own storage where that is possible, and after :meth:`compress`, where the rest is wanted, holds the rest.
    With a memory that is ``peer.rest``, and x's storage is free.
    """

    def __init__(self, x: Tensor, peer: Peer):
        self.x, self.peer = x, peer
        flat = x.reshape(-1)
        self.numbers = flat if flat.dtype == torch.float32 else flat.float()
        self.work = self.numbers if peer.rest is None else peer.rest.view(-1)
        wide = peer.keep_rest and x.dtype == torch.float64
        self._low = flat - self.work.double() if wide else None  # what float32 could not hold

    def room(self) -> Tensor:
        """``[n]`` for the mean, uninitialised; ``work`` stays as it is only where the rest is wanted."""
        spare = self.peer.spare
        if not self.peer.keep_rest or self.peer.rest is not None:
            return self.numbers
        if spare is not None and spare.dtype == torch.float32 and spare.is_contiguous():
            return spare.view(-1)
        return self.peer.scratch(self.work.numel(), self.x)

    def pad(self, size: int) -> None:
        """From now on work on scratch memory of ``size`` numbers: those there are, with the memory, then zeros."""
        n, memory = self.numbers.numel(), self.peer.memory
        padded = self.peer.scratch(size, self.x)
        if memory is None:
            padded[:n] = self.numbers
        else:
            torch.add(self.numbers, memory.view(-1), out=padded[:n])
        padded[n:] = 0
        self.numbers = self.work = padded
        self.peer = replace(self.peer, memory=None, rest=None, spare=None)

    def done(self, mean: Tensor) -> Exchanged[None]:
        """The result: ``mean``, and the rest if it is wanted."""
        n, kept = self.x.numel(), None
        if self.peer.keep_rest:
            rest = self.work[:n]
            kept = (rest if self._low is None else rest + self._low).view(self.x.shape)
        return Exchanged(mean[:n].view(self.x.shape).to(self.x.dtype), kept, None)

    def poisoned(self) -> Exchanged[None]:
        """The result of a step in which some rank saw an inf or NaN."""
        nan = self.numbers[: self.x.numel()].fill_(math.nan).view(self.x.shape).to(self.x.dtype)
        return Exchanged(nan, None, None, finite=False)


@dataclass(frozen=True, slots=True)
class _Communicator(Method[Any]):
    """What all communicators share: the checks, and the declared facts."""

    compressor: Compressor
    averages: ClassVar[bool] = False  # cannot take a majority vote

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.compressor, Compressor):
            raise CompositionError(f"{name} takes a Compressor, got {spelled(self.compressor)}")
        if self.averages and self.compressor.aggregation == "majority":
            raise CompositionError(
                f"{name} averages what it decodes, but {spelled(self.compressor)} is decided by a majority; use Allgather"
            )

    @property
    def adds_memory(self) -> bool:
        return True

    def with_memory(self) -> Method[Any]:
        return replace(self, compressor=self.compressor.with_memory())

    def facts(self, like: Tensor) -> Facts:
        if like.numel() == 0:
            return Facts(unbiased=True, contraction=1.0, variance=0.0, payload=0)
        return self.compressor.facts(like.numel())

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        if like.numel() == 0:
            return Traffic()
        return self._traffic(like, peer)

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        raise NotImplementedError

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        if x.numel() == 0:
            return Exchanged(x, x if peer.keep_rest else None, state)
        return (yield from self._exchange(x, peer, state))

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        raise NotImplementedError

    def _at(self, hop: int) -> Compressor:
        """The compressor of the first or second time that a number is compressed on its way."""
        return self.compressor.again() if hop else self.compressor

    def _stream(self, compressor: Compressor, peer: Peer, hop: int) -> Stream:
        """The stream that the compressor asks for."""
        shared = compressor.randomness == "shared"
        return peer.shared(compressor.id) if shared else peer.private(compressor.id).fork(hop)

    def _encode(self, loan: _Loan, peer: Peer, rows: int = 1) -> tuple[Tensor, bool]:
        """The loan's numbers and the memory, as so many rows -> wire ``[rows, w]``, and whether all were finite."""
        numbers, work = loan.numbers.view(rows, -1), loan.work.view(rows, -1)
        memory = None if peer.memory is None else peer.memory.view(rows, -1)
        rng = self._stream(self.compressor, peer, 0)
        return self.compressor.encode_(numbers, rng, memory, work if peer.keep_rest else None)

    def _compress(self, rows: Tensor, peer: Peer, hop: int = 0) -> Tensor:
        """Finite rows ``[b, n]`` -> wire ``[b, w]``."""
        compressor = self._at(hop)
        return compressor.compress_(rows, self._stream(compressor, peer, hop), peer.keep_rest)

    def _aggregate(self, received: Sequence[Tensor], out: Tensor, peer: Peer, scale: float, hop: int = 0) -> None:
        """Out ``[b, n]`` = scale times the sum of what the wires say."""
        compressor = self._at(hop)
        compressor.aggregate_(received, out, scale, peer.shared(compressor.id))

    def _payload(self, n: int) -> int | None:
        """Bytes of the sealed wire of n numbers; None if they vary."""
        size = self.compressor.facts(n).payload
        return None if size is None else wires.sealed_bytes(size)

    def _widths(self, wire: Tensor, n: int, peer: Peer) -> Exchange[list[int]]:
        """The widths in bytes of all ranks' wires, of n numbers each: known, or exchanged where they vary."""
        width = wire.shape[1] * wire.element_size()
        if not self.compressor.varies:
            return [width] * peer.world
        answer = yield AllGather(torch.tensor([width], dtype=torch.int64, device=wire.device))
        widths = checked_widths(answer.view(-1), n)
        if widths[peer.rank] != width:
            raise PayloadError(
                f"field 'width' of rank {peer.rank}, this one, came back as {widths[peer.rank]}, not {width}"
            )
        return widths


def _sealed(wire: Tensor, finite: bool, size: int, peer: Peer) -> Tensor:
    """Wires ``[b, w]`` as they travel, in scratch memory: nobody needs them once the exchange has ended."""
    out = peer.scratch((wire.shape[0], wires.sealed_bytes(size)), wire, torch.uint8)
    return wires.seal(wire, finite, size, out)


def checked_widths(widths: Tensor, n: int) -> list[int]:
    """Widths of wires of n numbers, as they came from the network.

    Raises:
        PayloadError: a width that no compressor writes.
    """
    most = 64 * n + 4096
    out: list[int] = widths.tolist()
    for rank, width in enumerate(out):
        if not 0 <= width <= most:
            raise PayloadError(f"field 'width' of rank {rank} must be in [0, {most}], got {width}")
    return out


def _traced(peer: Peer, *ops: Collective) -> Traffic:
    return sum((cost(op, peer.rank, peer.world) for op in ops), Traffic())


def _bytes(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """A stand-in for a buffer of this shape."""
    return torch.empty(shape, dtype=dtype, device="meta")


@dataclass(frozen=True, slots=True)
class Allreduce(_Communicator):
    """One round, constant traffic: the network sums the wires.

    If a rank saw an inf or NaN, its wire is NaN throughout, and so is the sum.
    """

    def __post_init__(self) -> None:
        _Communicator.__post_init__(self)
        if not self.compressor.summable:
            raise CompositionError(
                f"{spelled(self.compressor)} makes wires that cannot be summed; use Allgather, Broadcast, "
                "ScatterReduce or ParameterServer instead of Allreduce"
            )

    def with_memory(self) -> Method[Any]:
        if self.compressor.predivide:
            raise CompositionError(
                f"{spelled(self)} lets the network round sums to its narrow numbers, and no worker's memory sees that error; "
                "use ScatterReduce (communicator=scatterreduce) with a memory, which moves as many bytes, or memory=none"
            )
        return _Communicator.with_memory(self)

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        if self.compressor.transparent and not peer.keep_rest:
            answer = yield AllReduce(x, "mean", donate=True)
            return Exchanged(answer, None, None)
        loan = _Loan(x, peer)
        if self.compressor.predivide:  # never with a memory: see with_memory
            loan.numbers.mul_(1 / peer.world)
        wire, finite = self._encode(loan, peer)
        if not finite:
            wire = torch.full_like(wire, math.nan)
        answer = yield AllReduce(wire, "sum" if self.compressor.predivide else "mean", donate=True)
        if not all_finite(answer):
            return loan.poisoned()
        if self.compressor.predivide and peer.keep_rest:
            loan.work.mul_(peer.world)
        mean = loan.room()
        self._aggregate([answer], mean.view(1, -1), peer, 1.0)
        return loan.done(mean)

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        dtype = like.dtype if self.compressor.transparent and not peer.keep_rest else torch.uint8
        size = like.numel() if dtype == like.dtype else self.compressor.facts(like.numel()).payload
        return None if size is None else _traced(peer, AllReduce(_bytes(size, dtype=dtype)))


@dataclass(frozen=True, slots=True)
class Allgather(_Communicator):
    """Everyone sends its wire to everyone and decodes all of them, in the order of the ranks: traffic grows with W."""

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        loan = _Loan(x, peer)
        wire, finite = self._encode(loan, peer)
        widths = yield from self._widths(wire, x.numel(), peer)
        gathered = yield AllGather(_sealed(wire, finite, max(widths), peer)[0])  # [W, s]
        if not wires.all_finite(gathered):
            return loan.poisoned()
        return _decoded(self, loan, list(gathered[:, None]), widths, wire.dtype, peer)

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(like.numel())
        return None if size is None else _traced(peer, AllGather(_bytes(size)))


@dataclass(frozen=True, slots=True)
class Broadcast(_Communicator):
    """Each rank in turn broadcasts its wire: like Allgather, in W rounds, and without padding where sizes vary."""

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        loan = _Loan(x, peer)
        wire, finite = self._encode(loan, peer)
        widths = yield from self._widths(wire, x.numel(), peer)
        mine = _sealed(wire, finite, widths[peer.rank], peer)
        received = []
        for root, width in enumerate(widths):
            buf = mine if root == peer.rank else mine.new_zeros(1, wires.sealed_bytes(width))
            received.append((yield BroadcastOp(buf, root)))
        if not all(wires.all_finite(sealed) for sealed in received):
            return loan.poisoned()
        return _decoded(self, loan, received, widths, wire.dtype, peer)

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(like.numel())
        return None if size is None else _traced(peer, *(BroadcastOp(_bytes(size), root) for root in range(peer.world)))


def _decoded(
    method: _Communicator, loan: _Loan, sealed: list[Tensor], widths: list[int], dtype: torch.dtype, peer: Peer
) -> Exchanged[None]:
    """The aggregate of all ranks' wires, added up in the order of the ranks: the same bits everywhere."""
    mean = loan.room()
    vote = method.compressor.aggregation == "majority"
    received = [wires.unseal(one, width, dtype) for one, width in zip(sealed, widths, strict=True)]
    method._aggregate(received, mean.view(1, -1), peer, 1.0 if vote else 1 / peer.world)
    return loan.done(mean)


@dataclass(frozen=True, slots=True)
class _TwoHops(_Communicator):
    """What communicators share that compress an average again.

    The second rounding is the owner's debt. With a memory around the communicator it goes into the owner's rest. With
    ``server_memory`` the owner keeps it to itself, for the next average (server error feedback):
    ``a = mean + d;  send C(a);  d = a - C(a)``. Where ``peer.lr`` is given, d follows the learning rate.

    State: None before the first exchange, which learns W from its peer, and where there is no server memory; then
    (d, where it begins in the tensor, W, shape, last learning rate). d is float32.
    """

    averages: ClassVar[bool] = True
    server_memory: bool = field(default=False, repr=False, kw_only=True)  # off, it does not show

    def __post_init__(self) -> None:
        _Communicator.__post_init__(self)
        if not isinstance(self.server_memory, bool):
            raise out_of_range(type(self).__name__, "server_memory", self.server_memory, "True, False")
        self._at(1)  # a compressor that no memory may wrap is refused here

    def _at(self, hop: int) -> Compressor:
        compressor = _Communicator._at(self, hop)
        return compressor.with_memory() if hop and self.server_memory else compressor

    def facts(self, like: Tensor) -> Facts:
        """What is left of a compressor's claims where averages are compressed again: no bound, unless it is exact."""
        once = _Communicator.facts(self, like)
        if once.variance == 0:
            return replace(once, payload=None)
        unbiased = once.unbiased and not self.server_memory
        return replace(once, unbiased=unbiased, contraction=None, variance=None, payload=None)

    def owed(self, state: Any) -> Tensor | None:
        """The server's debt, times W: one worker's share of a mean is 1/W of it."""
        if state is None:
            return None
        debt, start, world, shape, _ = state
        out: Tensor = debt.new_zeros(math.prod(shape))
        mine = out[start : start + debt.numel()]
        torch.mul(debt[: mine.numel()], world, out=mine)
        return out.view(shape)

    def _compress_again(self, average: Tensor, state: Any, peer: Peer) -> Tensor:
        """``average [1, c]`` plus what is owed -> wire; leaves the new debt in ``average``."""
        if not self.server_memory:
            return self._compress(average, peer, hop=1)
        if state is not None:
            debt, *_, last = state
            if debt.numel() != average.numel():
                raise StateError(f"a server memory of {debt.numel()} numbers does not fit {average.numel()}")
            average[0].add_(debt, alpha=1.0 if peer.lr is None else lr_ratio(last, peer.lr))
        return self._compress(average, replace(peer, keep_rest=True), hop=1)

    def _committed(self, debt: Tensor, start: int, x: Tensor, state: Any, peer: Peer) -> Any:
        """The state after a step that left ``debt [1, c]``, of a chunk that begins at ``start``."""
        if not self.server_memory or peer.lr == 0:  # with a learning rate of 0 nothing was applied
            return state
        debt = debt[0]
        debt[max(0, x.numel() - start) :] = 0  # padding
        kept = debt.clone() if state is None else state[0].copy_(debt)
        return (kept, start, peer.world, tuple(x.shape), peer.lr or 0.0)


@dataclass(frozen=True, slots=True)
class ScatterReduce(_TwoHops):
    """Two rounds, constant traffic: rank r averages chunk r, compresses it again, and sends that to everyone.

    Args:
        compressor: any that averages.
        server_memory: whether the owner of a chunk keeps its second rounding for the next step. State: n/W numbers.
    """

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        W, n = peer.world, x.numel()
        c = math.ceil(n / W)
        loan = _Loan(x, peer)
        if n != W * c:
            loan.pad(W * c)
        wire, own_finite = self._encode(loan, loan.peer, W)  # [W, w]
        widths = yield from self._widths(wire, c, peer)
        theirs = yield AllToAll(_sealed(wire, own_finite, max(widths), peer))  # [W, s]: everyone's version of my chunk
        finite = wires.all_finite(theirs)
        chunk = peer.scratch((1, c), x)
        if finite:
            received = [
                wires.unseal(one, width, wire.dtype) for one, width in zip(theirs[:, None], widths, strict=True)
            ]
            self._aggregate(received, chunk, peer, 1 / W)
        else:
            chunk.zero_()
        again = self._compress_again(chunk, state, peer)  # chunk: now my second rounding
        widths = yield from self._widths(again, c, peer)
        final = yield AllGather(_sealed(again, finite, max(widths), peer)[0])  # [W, s]
        if not wires.all_finite(final):
            return replace(loan.poisoned(), state=state)
        if peer.keep_rest and not self.server_memory:
            loan.work.view(W, c)[peer.rank].add_(chunk[0], alpha=W)  # one worker's share of the mean is 1/W of it
        mean = loan.room()
        for row, one, width in zip(mean.view(W, 1, c), final[:, None], widths, strict=True):
            self._aggregate([wires.unseal(one, width, again.dtype)], row, peer, 1.0, hop=1)
        return replace(loan.done(mean), state=self._committed(chunk, peer.rank * c, x, state, peer))

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(math.ceil(like.numel() / peer.world))
        return None if size is None else _traced(peer, AllToAll(_bytes(peer.world, size)), AllGather(_bytes(size)))


@dataclass(frozen=True, slots=True)
class ParameterServer(_TwoHops):
    """Everyone sends its wire to one rank, which averages, compresses again, and broadcasts that.

    A worker's traffic is constant; the server's grows with W.

    Args:
        compressor: any that averages.
        server_memory: whether the server keeps its second rounding for the next step. State: n numbers, on the server.
        server: which rank that is.
    """

    server: int = 0

    def __post_init__(self) -> None:
        _TwoHops.__post_init__(self)
        if not (isinstance(self.server, int) and self.server >= 0):
            raise ConfigurationError(f"ParameterServer: server={self.server!r} is not a rank; legal: 0 to W-1")

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        W, n, server = peer.world, x.numel(), self.server
        if server >= W:
            raise ConfigurationError(f"ParameterServer: server={server} is not a rank; legal: 0 to {W - 1}")
        serving = peer.rank == server
        loan = _Loan(x, peer)
        wire, own_finite = self._encode(loan, peer)
        widths = yield from self._widths(wire, n, peer)
        mine = _sealed(wire, own_finite, max(widths), peer)
        inbox = [mine] * W
        for rank in range(W):
            if rank != server:
                inbox[rank] = yield Permute(mine, ((rank, server),))
        finite = all(wires.all_finite(sealed) for sealed in inbox) if serving else True
        total = peer.scratch((1, n), x)  # the server's: the mean, then its second rounding
        if serving and finite:
            received = [wires.unseal(one, width, wire.dtype) for one, width in zip(inbox, widths, strict=True)]
            self._aggregate(received, total, peer, 1 / W)
        else:
            total.zero_()
        again = self._compress_again(total, state, peer)  # other ranks' only gives the shape
        widths = yield from self._widths(again, n, peer)
        reply = (
            _sealed(again, finite, widths[server], peer)
            if serving
            else mine.new_zeros(1, wires.sealed_bytes(widths[server]))
        )
        answer = yield BroadcastOp(reply, server)
        if not wires.all_finite(answer):
            return replace(loan.poisoned(), state=state)
        if peer.keep_rest and serving and not self.server_memory:
            loan.work.add_(total[0], alpha=W)
        mean = loan.room()
        self._aggregate([wires.unseal(answer, widths[server], again.dtype)], mean.view(1, -1), peer, 1.0, hop=1)
        return replace(loan.done(mean), state=self._committed(total, 0, x, state, peer) if serving else None)

    def _traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        size = self._payload(like.numel())
        if size is None:
            return None
        up = [Permute(_bytes(size), ((rank, self.server),)) for rank in range(peer.world) if rank != self.server]
        return _traced(peer, *up, BroadcastOp(_bytes(size), self.server))
