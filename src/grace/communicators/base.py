"""Base class of the communicators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, AllToAll, Collective, Exchange, Traffic, cost
from grace.communicators.rows import prepare_rows, scatter_rows
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import as_call, check_knobs
from grace.contract.loan import Loan
from grace.contract.method import SAID, Exchanged, Method, check_rows, hold_everywhere
from grace.contract.needs import Needs
from grace.contract.peer import Peer, Peers
from grace.errors import CompositionError, PayloadError
from grace.flags.finite import Flag, and_, fill_unless_
from grace.flags.refusals import decode
from grace.kernels.finite import all_finite
from grace.random import Stream


@dataclass(frozen=True, slots=True)
class Communicator(Method[Any]):
    """Base class of the communicators: the checks, and the declared facts."""

    compressor: Compressor
    averages: ClassVar[bool] = False  # cannot take a majority vote

    def __post_init__(self) -> None:
        check_knobs(self)
        name = type(self).__name__
        if not isinstance(self.compressor, Compressor):
            raise CompositionError(f"{name} takes a Compressor, got {as_call(self.compressor)}")
        if self.averages and self.compressor.aggregation == "majority":
            raise CompositionError(
                f"{name} averages what it decodes, but {as_call(self.compressor)} is decided by a majority; use Allgather"
            )

    @property
    def needs(self) -> Needs:
        return self.compressor.needs

    @property
    def has_scatter(self) -> bool:
        return True

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
            return Exchanged(x, x if peer.lent.keep_rest else None, state)
        return (yield from self._exchange(x, peer, state))

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        raise NotImplementedError

    def scatter(self, rows: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        """Exchanges sealed rows by one all-to-all, whatever the communicator; one more round where decoded numbers may
        overflow.
        """
        check_rows(rows, peer)
        if rows.numel() == 0:
            return Exchanged(rows[0], rows if peer.lent.keep_rest else None, state)
        loan = Loan(rows, peer)
        mean, finite = yield from self._first_hop(loan, peer)
        if self.compressor.overflows:  # each rank has decoded another row
            finite = yield from hold_everywhere(finite, mean)
        if finite is False:
            return Exchanged.poisoned(rows[peer.rank], state)
        fill_unless_(finite, mean, math.nan)
        return Exchanged(mean[0], loan.work.view(rows.shape) if peer.lent.keep_rest else None, state, finite)

    def scatter_all(
        self, rows: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """The rows of all tensors by one all-to-all, on an accelerator by as many launches as those of one tensor."""
        whose = Peers.of(peers)
        bucket = prepare_rows(self.compressor, self._stream, rows, whose)
        if bucket is None:
            return (yield from Method.scatter_all(self, rows, states, peers))
        return (yield from scatter_rows(bucket, rows, states, whose))

    def scatter_traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        if like.numel() == 0:
            return Traffic()
        size = self._payload(like.shape[1])
        if size is None:
            return None
        overflowing = [SAID] if self.compressor.overflows else []
        return sum_costs(peer, AllToAll(meta_tensor(peer.world, size)), *overflowing)

    def _first_hop(self, loan: Loan, peer: Peer) -> Exchange[tuple[Tensor, Flag]]:
        """The loan's numbers as W rows -> the aggregate ``[1, c]`` of all ranks' versions of my row, in scratch memory, and
        whether it means anything: whether all ranks saw finite numbers, and my row is one.
        """
        W = peer.world
        c = loan.numbers.numel() // W
        wire, finite = self._encode(loan, peer, W)  # [W, w]
        widths = yield from self._widths(wire, c, peer)
        theirs = yield AllToAll(seal(wire, finite, max(widths), peer))  # [W, s]
        finite = wires.read_headers(theirs, peer.step)
        mean = peer.lent.scratch((1, c), loan.x)
        received = [wires.unseal(row, width, wire.dtype) for row, width in zip(theirs[:, None], widths, strict=True)]
        scale = 1.0 if self.compressor.aggregation == "majority" else 1 / W
        return mean, self._decode(received, mean, peer, scale, finite)

    def _at(self, hop: int) -> Compressor:
        """The compressor of the first or second time that a number is compressed on its way."""
        return self.compressor.for_second_hop() if hop else self.compressor

    def _stream(self, compressor: Compressor, peer: Peer, hop: int) -> Stream:
        """The stream that the compressor asks for."""
        shared = compressor.randomness == "shared"
        return peer.shared(compressor.id) if shared else peer.private(compressor.id).fork(hop)

    def _encode(self, loan: Loan, peer: Peer, rows: int = 1) -> tuple[Tensor, Flag]:
        """The loan's numbers plus the memory, as ``rows`` rows -> wire ``[rows, w]``, and whether all were finite."""
        numbers, work = loan.numbers.view(rows, -1), loan.work.view(rows, -1)
        memory = None if loan.memory is None else loan.memory.view(rows, -1)
        rng = self._stream(self.compressor, peer, 0)
        return self.compressor.encode_(numbers, rng, memory, work if peer.lent.keep_rest else None)

    def _compress(self, rows: Tensor, peer: Peer, hop: int = 0) -> Tensor:
        """Finite rows ``[b, n]`` -> wire ``[b, w]``."""
        compressor = self._at(hop)
        return compressor.compress_(rows, self._stream(compressor, peer, hop), peer.lent.keep_rest)

    def _aggregate(self, received: Sequence[Tensor], out: Tensor, peer: Peer, scale: float, hop: int = 0) -> None:
        """Sets ``out [b, n]`` to scale times the sum of what the wires say."""
        compressor = self._at(hop)
        compressor.aggregate_(received, out, scale, peer.shared(compressor.id))

    def _decode(
        self, received: Sequence[Tensor], out: Tensor, peer: Peer, scale: float, finite: Flag, hop: int = 0
    ) -> Flag:
        """As :meth:`_aggregate`, for wires that mean nothing unless ``finite``. Whether ``out`` is valid and finite."""
        finite = decode(finite, lambda: self._aggregate(received, out, peer, scale, hop))
        return and_(finite, all_finite(out)) if self._at(hop).overflows and finite is not False else finite

    def _give_back(
        self, loan: Loan, sealed: list[Tensor], widths: list[int], dtype: torch.dtype, finite: Flag, peer: Peer
    ) -> Exchanged[Any]:
        """The aggregate of all ranks' sealed wires, added up in the order of the ranks: the same bits everywhere. NaN unless
        all saw finite numbers.
        """
        if finite is False:
            return loan.poison(None)
        mean = loan.make_room()
        vote = self.compressor.aggregation == "majority"
        received = [wires.unseal(message, width, dtype) for message, width in zip(sealed, widths, strict=True)]
        scale = 1.0 if vote else 1 / peer.world
        finite = self._decode(received, mean.view(1, -1), peer, scale, finite)
        if finite is False:
            return loan.poison(None)
        return loan.give_back(mean, None, finite)

    def _payload(self, n: int) -> int | None:
        """Bytes of the sealed wire of n numbers; None if they vary."""
        size = self.compressor.facts(n).payload
        return None if size is None else wires.sealed_bytes(size)

    def _widths(self, wire: Tensor, n: int, peer: Peer) -> Exchange[list[int]]:
        """The widths in bytes of all ranks' wires of n numbers: known, or exchanged where they vary."""
        width = wire.shape[1] * wire.element_size()
        if not self.compressor.varies:
            return [width] * peer.world
        answer = yield AllGather(torch.tensor([width], dtype=torch.int64, device=wire.device))
        widths = check_widths(answer.view(-1), n)
        if widths[peer.rank] != width:
            raise PayloadError(
                f"field 'width' of rank {peer.rank}, this one, came back as {widths[peer.rank]}, not {width}"
            )
        return widths


def seal(wire: Tensor, finite: Flag, size: int, peer: Peer) -> Tensor:
    """Wires ``[b, w]`` as they travel, in scratch memory: they are not needed once the exchange has ended."""
    out = peer.lent.scratch((wire.shape[0], wires.sealed_bytes(size)), wire, torch.uint8)
    return wires.seal(wire, finite, peer.step, size, out)


def read_all_headers(received: Sequence[Tensor], peer: Peer) -> Flag:
    """True if all ranks saw only finite numbers: each sent one of these sealed wires ``[1, s]``."""
    finite: Flag = True
    for rank, message in enumerate(received):
        finite = and_(finite, wires.read_headers(message, peer.step, rank))
    return finite


def check_widths(widths: Tensor, n: int) -> list[int]:
    """Widths ``[W]`` of wires of n numbers, as they came from the network.

    Raises:
        PayloadError: a width that no compressor writes.
    """
    most = 64 * n + 4096
    out: list[int] = widths.tolist()
    for rank, width in enumerate(out):
        if not 0 <= width <= most:
            raise PayloadError(f"field 'width' of rank {rank} must be in [0, {most}], got {width}")
    return out


def sum_costs(peer: Peer, *ops: Collective) -> Traffic:
    """Traffic of one worker for these collectives."""
    return sum((cost(op, peer.rank, peer.world) for op in ops), Traffic())


def meta_tensor(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """A stand-in for a buffer of this shape."""
    return torch.empty(shape, dtype=dtype, device="meta")
