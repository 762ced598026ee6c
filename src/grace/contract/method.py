"""The interface of a compression method.

Two tiers. Most methods are only a :class:`~grace.Compressor`: local and stateless, rows of numbers to rows of a wire and
back; a communicator (``grace.communicators``) makes a :class:`Method` of it. A few methods have their own conversation over
several rounds and are a :class:`Method` themselves. Memories wrap any method.

Letters: x is one worker's tensor of n numbers; W workers; rank r of W.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, Parts, Traffic
from grace.contract.conversation import Conversation
from grace.contract.facts import Facts
from grace.contract.knobs import as_call
from grace.contract.peer import Peer
from grace.contract.together import together
from grace.errors import CompositionError, InputError
from grace.flags.finite import Flag, flag

S = TypeVar("S")
NARROW = (torch.float16, torch.bfloat16)


@dataclass(slots=True)  # one for each tensor and step: a frozen one takes four times as long to make
class Exchanged(Generic[S]):
    """The result of an exchange.

    mean: what every worker applies, like x; bit-identical on all ranks.
    rest: x minus my share of mean (where peer.lent.keep_rest): the average over ranks of x - rest is mean.
    state: replaces the state that went in.
    finite: False if any rank saw an inf or NaN. Then mean is NaN throughout, on every rank, and memories stay as they were;
        otherwise every number of mean is finite. One exception: if the network sums gradients as they are (``none`` over
        all-reduce), the mean is not checked. It is whatever the network made of them, flagged finite, which saves a pass. A
        bool on the CPU; on an accelerator a 0-d bool tensor that the host need not read (``grace.flags.finite``).
    """

    mean: Tensor
    rest: Tensor | None
    state: S
    finite: Flag = True

    @classmethod
    def poisoned(cls, x: Tensor, state: S) -> Exchanged[S]:
        """The result of a step in which some rank saw an inf or NaN: a mean like x that is NaN throughout."""
        return cls(torch.full_like(x, math.nan), None, state, finite=False)


class Method(Conversation[S]):
    """Averages one tensor over the workers, and promises the same mean on all of them, bit for bit: replicas that apply it
    stay replicas. Subclasses are frozen dataclasses: their fields are the knobs.
    """

    @property
    def needs_shape(self) -> bool:
        """True if the method sees more in a tensor than a list of numbers, so that flattening it would change it."""
        return False

    @property
    def needs_epochs(self) -> bool:
        """True if the method follows the epoch, so that the run must say how many steps one has."""
        return False

    def axes(self, world: int) -> Mapping[str, int]:
        """The axes along which it exchanges among so many workers, and their sizes: see :class:`grace.grid.Grid`. Empty: all
        workers are alike.

        Raises:
            ConfigurationError: so many workers cannot lie as it wants them to.
        """
        return {}

    def distortion_of(self, x: Tensor, state: S) -> tuple[Method[Any], Tensor, Any]:
        """The method, tensor and state with which this worker compresses x, of any shape. By default x, by this method."""
        return self, x, state

    @property
    def has_scatter(self) -> bool:
        """True if :meth:`scatter` moves less than the whole exchange does."""
        return False

    @property
    def adds_memory(self) -> bool:
        """True if :meth:`exchange` adds :attr:`Peer.memory` itself, which saves passes over memory."""
        return False

    @abc.abstractmethod
    def exchange(self, x: Tensor, state: S, peer: Peer) -> Exchange[Exchanged[S]]:
        """A step, as :meth:`Conversation.exchange`, that returns an :class:`Exchanged`, with the same mean on all ranks.
        ``rest`` may live in the storage of ``x``, too.
        """

    def batches(self, like: Tensor) -> bool:
        """True if :meth:`exchange_all` does more for tensors of like's dtype and device, and where the method
        :attr:`needs_shape` of its shape, than to run their exchanges together.
        Then in each round it asks for one collective, whose ``parts`` are those of its tensors, in their order.
        """
        return False

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[S], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[S]]]:
        """A step of several tensors, such as those of a bucket: as many results, with the bits of :meth:`exchange`.

        By default the exchanges run :func:`grace.contract.together.together`. An override asks the network for the same bytes
        in the same rounds (so that ranks need not choose alike), says of each collective whose its ``parts`` are
        (:class:`grace.collectives.Parts`: numbers of ``xs``), and commits no state before the last answer has come. Tensors of
        other methods may stand between these in the bucket: whoever runs all of them puts the parts in their order.
        """
        runs = [self.exchange(x, state, peer) for x, state, peer in zip(xs, states, peers, strict=True)]
        return (yield from together(runs, workspace=peers[0].lent.workspace if peers else None))

    def scatter(self, rows: Tensor, state: S, peer: Peer) -> Exchange[Exchanged[S]]:
        """A step of a reduce-scatter: row j is for rank j, which alone learns its mean.

        By default the whole exchange, of which each rank takes its row. Communicators ask for their first hop only, and
        memories wrap it as they wrap :meth:`exchange`.

        Args:
            rows: ``[W, c]`` float32, donated; the same shape on all ranks.
            state: as in :meth:`exchange`, for a tensor like ``rows``.
            peer: who I am.

        Returns:
            An :class:`Exchanged` whose mean ``[c]`` is that of row ``peer.rank``, on this rank only. The rest, if it is
            wanted, is like ``rows``: the average over ranks of row j of ``rows - rest`` is the mean of rank j. ``finite`` is
            False on all ranks if any of them saw an inf or NaN in any row.

        Raises:
            InputError: rows of another shape or dtype.
        """
        check_rows(rows, peer)
        out = yield from self.exchange(rows, state, peer)
        return replace(out, mean=out.mean[peer.rank])

    def scatter_all(
        self, rows: Sequence[Tensor], states: Sequence[S], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[S]]]:
        """A step of a reduce-scatter of several tensors, at least one: with the bits of :meth:`scatter`, which by default run
        together. An override holds to what :meth:`exchange_all` says, where the method :attr:`has_scatter`. Rows may also be
        bfloat16 or float16, and the parts of the rows of one matrix: unless they are read where they are, it is copies that
        are scattered.
        """
        runs = [self.scatter(plain_rows(x), state, peer) for x, state, peer in zip(rows, states, peers, strict=True)]
        return (yield from together(runs, workspace=peers[0].lent.workspace))

    @abc.abstractmethod
    def facts(self, like: Tensor) -> Facts:
        """Claims of the method for tensors of this shape (``like`` may be on the meta device)."""

    def scatter_traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        """As :meth:`traffic`, of one :meth:`scatter` of rows ``[W, c]`` like this."""
        return self.traffic(like, peer)

    def with_memory(self) -> Method[Any]:
        """The variant of this method that a memory may wrap.

        Raises:
            CompositionError: there is none.
        """
        raise CompositionError(f"{self!r} cannot be wrapped by a memory")

    def uncompressed(self, plain: Method[Any]) -> Method[Any]:
        """The method of tensors that go uncompressed beside those of this one: ``plain``, which sends gradients as they are. A
        method that takes the place of the optimizer's momentum keeps it around ``plain``, or they would have none.
        """
        return plain

    def kinds(self, state: S) -> Any:
        """The role of each part of a state when the number of workers changes: a tree like the state, of

        - "debt": owed to the model; its mean over the workers is what counts (:meth:`owed` says it in units of x);
        - "chunk": the same, of the owner of one chunk;
        - "shared": the same bits on all workers, and right for a new one as well;
        - "together": the workers hold it together (the mean of all h is H): starts afresh on all of them;
        - "own": a worker that goes on keeps it, and it starts afresh on others.

        For a tensor it may be a tuple: a kind for each row. By default all parts are the worker's own.
        """
        return super().kinds(state)

    def owed(self, state: S) -> Tensor | None:
        """The error that this worker still owes the others: gradient units, like x, or None. Handed on when methods change."""
        return None


def plain_rows(rows: Tensor) -> Tensor:
    """Rows ``[W, c]`` as they are scattered: contiguous, and float32 instead of a narrower type; a copy unless they are so."""
    return (rows.float() if rows.dtype in NARROW else rows).contiguous()


def check_rows(rows: Tensor, peer: Peer, *, narrow: bool = False) -> None:
    """Checks what is to be scattered: ``[W, c]`` float32; ``narrow``: or of 16 bits.

    Raises:
        InputError: it is something else.
    """
    legal = (torch.float32, *NARROW) if narrow else (torch.float32,)
    if rows.ndim != 2 or rows.shape[0] != peer.world or rows.dtype not in legal:
        given = f"{str(rows.dtype).removeprefix('torch.')} {tuple(rows.shape)}"
        raise InputError(
            f"{peer.name!r}: scatter takes float32 rows, one for each of {peer.world} workers, got {given}"
        )


SAID = AllReduce(torch.empty(1, dtype=torch.uint8, device="meta"), "max")  # what hold_everywhere asks for


def hold_everywhere(holds: Flag, beside: Tensor) -> Exchange[Flag]:
    """True if something holds on all ranks, of which each knows it of its own part: one round of a byte, on the device of
    ``beside``, which is of any shape.
    """
    broken = torch.logical_not(torch.as_tensor(holds, device=beside.device, dtype=torch.bool)).to(torch.uint8)
    return flag((yield AllReduce(broken.view(1), "max"))[0] == 0)


def hold_everywhere_all(holds: Tensor) -> Exchange[Tensor]:
    """As :func:`hold_everywhere` of T tensors at once, on an accelerator: ``[T]`` bool of ``[T]``, the same bytes."""
    each, count = 4, len(holds)  # bytes, where several are put side by side
    broken = holds.logical_not().to(torch.int32).view(torch.uint8)
    if count == 1:
        each, broken = 1, broken[:1]
    answer = yield AllReduce(broken, "max", parts=Parts(tuple(range(count)), (each,) * count))
    return answer[::each] == 0


def refuse_unpromised(given: object) -> None:
    """Refuses a conversation where all ranks are to apply what one of them gets.

    Raises:
        CompositionError: it is no method.
    """
    if isinstance(given, Conversation) and not isinstance(given, Method):
        raise CompositionError(
            f"{as_call(given)} does not promise the same mean on all ranks, and replicas that apply it would drift apart; "
            "legal: a grace.Method. Where workers may differ, run it in a session of your own: "
            "session.run(conversation.exchange(x, state, session.peer(name)), counted=True)"
        )
