"""What a compression method is.

Two tiers. Most methods are only a :class:`~grace.Compressor`: local and stateless, rows of numbers to rows of a wire and
back; a communicator (``grace.communicators``) makes a :class:`Method` of it. A few methods have their own conversation over
several rounds and are a :class:`Method` themselves. Memories wrap any method.

Letters: x is one worker's tensor of n numbers; W workers; rank r of W.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from grace.collectives import Collective, Exchange, Traffic
from grace.contract.facts import Facts
from grace.contract.knobs import check_knobs
from grace.contract.needs import NOTHING, Needs
from grace.contract.peer import Peer
from grace.contract.together import together
from grace.errors import CompositionError, InputError
from grace.flags.finite import Flag

S = TypeVar("S")
Kind: TypeAlias = Literal["debt", "chunk", "shared", "own"]


@dataclass(frozen=True, slots=True)
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


class Method(abc.ABC, Generic[S]):
    """Averages one tensor over the workers. Subclasses are frozen dataclasses: their fields are the knobs."""

    def __post_init__(self) -> None:
        """Checks the knobs against their annotations; an override calls :func:`grace.contract.knobs.check_knobs` first."""
        check_knobs(self)

    @property
    def needs_shape(self) -> bool:
        """Whether the method sees more in a tensor than a list of numbers, so that flattening it would change it."""
        return False

    @property
    def needs_epochs(self) -> bool:
        """Whether the method follows the epoch, so that the run must say how many steps one has."""
        return False

    @property
    def needs(self) -> Needs:
        """What the method needs of the optimizer; a wrapper adds to the needs of what it wraps."""
        return NOTHING

    @property
    def adds_memory(self) -> bool:
        """Whether :meth:`exchange` adds :attr:`Peer.memory` itself, which saves passes over memory."""
        return False

    def init(self, like: Tensor) -> S:
        """The state before the first step: None, a tensor, a number, or a (named) tuple of such."""
        return None  # type: ignore[return-value]

    @abc.abstractmethod
    def exchange(self, x: Tensor, state: S, peer: Peer) -> Exchange[Exchanged[S]]:
        """One step: a generator that yields collectives and returns an :class:`Exchanged`.

        ``x`` is donated: the method may overwrite it, and ``mean`` or ``rest`` may live in its storage. ``state`` stays as it
        is, whether the generator is left by an exception or ends: another tensor's exchange may still fail, and then it
        is the state. Its successor is returned, in storage of its own (``grace.contract.loan.succeed``).
        """

    @property
    def batches(self) -> type[Collective] | None:
        """The kind of collective that :meth:`exchange_all` asks for, once, where it handles tensors of one dtype and device as
        a batch. None: several tensors are as many exchanges, run together.
        """
        return None

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[S], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[S]]]:
        """One step of several tensors, such as those of a bucket: as many results, with the bits of :meth:`exchange`.

        By default the exchanges run :func:`grace.contract.together.together`. An override asks the network for the same bytes
        in the same order (so that ranks need not choose alike), and commits no state before the last answer has come.
        """
        runs = [self.exchange(x, state, peer) for x, state, peer in zip(xs, states, peers, strict=True)]
        return (yield from together(runs, workspace=peers[0].lent.workspace if peers else None))

    def scatter(self, rows: Tensor, state: S, peer: Peer) -> Exchange[Exchanged[S]]:
        """One step of a reduce-scatter: row j is for rank j, which alone learns its mean.

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

    @abc.abstractmethod
    def facts(self, like: Tensor) -> Facts:
        """What the method claims for tensors of this shape (``like`` may be on the meta device)."""

    @abc.abstractmethod
    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        """Rounds and bytes of one exchange of a tensor like this; None if they depend on the data."""

    def with_memory(self) -> Method[Any]:
        """The variant of this method that a memory may wrap.

        Raises:
            CompositionError: there is none.
        """
        raise CompositionError(f"{self!r} cannot be wrapped by a memory")

    def kinds(self, state: S) -> Any:
        """What happens to each part of a state when the number of workers changes: a tree like the state, of

        - "debt": owed to the model; its mean over the workers is what counts (:meth:`owed` says it in units of x);
        - "chunk": the same, of the owner of one chunk;
        - "shared": the same bits on all workers, and right for a new one as well;
        - "own": starts afresh.

        By default all parts are the worker's own.
        """
        return label_parts(state, "own")

    def owed(self, state: S) -> Tensor | None:
        """What this worker still owes the others: gradient units, like x, or None. Handed on when methods change."""
        return None


def check_rows(rows: Tensor, peer: Peer) -> None:
    """Checks what is to be scattered: ``[W, c]`` float32.

    Raises:
        InputError: it is something else.
    """
    if rows.ndim != 2 or rows.shape[0] != peer.world or rows.dtype != torch.float32:
        given = f"{str(rows.dtype).removeprefix('torch.')} {tuple(rows.shape)}"
        raise InputError(
            f"{peer.name!r}: scatter takes float32 rows, one for each of {peer.world} workers, got {given}"
        )


def label_parts(state: Any, kind: Kind) -> Any:
    """A tree like the state, with ``kind`` for each part; see :meth:`Method.kinds`."""
    return tuple(label_parts(part, kind) for part in state) if isinstance(state, tuple) else kind
