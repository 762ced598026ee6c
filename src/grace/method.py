"""What a compression method is.

Two tiers. Most methods are only a :class:`Compressor`: local and stateless, rows of numbers to rows of a wire and back;
a communicator (``grace.communicators``) makes a :class:`Method` of it. Few methods hold a conversation of their own
over several rounds and are a :class:`Method` themselves. Memories wrap any method.

Letters: x is one worker's tensor of n numbers; rows are ``[b, n]``; a wire is ``[b, w]``; W workers; rank r of W.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange, Traffic
from grace.errors import CompositionError, ConfigurationError
from grace.kernels.finite import all_finite, sum_finite
from grace.random import Stream
from grace.workspace import Workspace

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a method claims about the operator C that it applies to n numbers; the laws check every line.

    unbiased: E C(x) = x.
    contraction: the largest known delta with E|x - C(x)|^2 <= (1 - delta) |x|^2; None if there is none.
    variance: the smallest known omega with E|C(x) - x|^2 <= omega |x|^2; None where C is biased or no bound is known.
    deterministic: the same x gives the same C(x), whatever the seed.
    payload: bytes that one worker encodes; None if it depends on the data or on the number of workers.
    """

    unbiased: bool = False
    contraction: float | None = None
    variance: float | None = None
    deterministic: bool = True
    payload: int | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """Who I am in this exchange.

    rank, world: r and W. step: the global step. name: the tensor's name. seed: the run's seed.
    keep_rest: whether somebody wants what was not sent.
    spare: storage like x (same shape, float32, contiguous) that the method may overwrite, for instance with the mean.
    workspace: scratch memory that is free again after the exchange; None allocates.
    lr: the learning rate that this step's mean will be applied with, the same on all ranks, where memories should follow
        it; None where they need not, or where nobody said.
    steps_per_epoch: for schedules that count epochs; None if nobody said.
    memory, rest: only for methods that take them (:attr:`Method.adds_memory`), like x, float32, contiguous: what is to be
        added to x first, and storage for what was not sent, which becomes :attr:`Exchanged.rest`. x is then spare.
    """

    rank: int
    world: int
    step: int = 0
    name: str = ""
    seed: int = 0
    keep_rest: bool = False
    spare: Tensor | None = None
    workspace: Workspace | None = None
    lr: float | None = None
    steps_per_epoch: int | None = None
    memory: Tensor | None = None
    rest: Tensor | None = None

    def private(self, method: str) -> Stream:
        """Randomness that differs between ranks."""
        return Stream(self.seed, method, self.name, self.rank, self.step)

    def shared(self, method: str) -> Stream:
        """Randomness that is the same on all ranks."""
        return Stream(self.seed, method, self.name, None, self.step)

    def scratch(self, shape: int | tuple[int, ...], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """An uninitialised tensor on ``like``'s device, valid until the exchange has ended."""
        if self.workspace is None:
            return torch.empty(shape, dtype=dtype, device=like.device)
        return self.workspace.take(shape, dtype, like.device)


@dataclass(frozen=True, slots=True)
class Exchanged(Generic[S]):
    """What an exchange came to.

    mean: what every worker applies, like x; bit-identical on all ranks.
    rest: x minus my share of mean (where peer.keep_rest): the average over ranks of x - rest is mean.
    state: replaces the state that went in.
    finite: False if any rank saw an inf or NaN. Then mean is NaN throughout, on every rank, and memories stay as they were.
    """

    mean: Tensor
    rest: Tensor | None
    state: S
    finite: bool = True


class Method(abc.ABC, Generic[S]):
    """Averages one tensor over the workers. Subclasses are frozen dataclasses: their fields are the knobs."""

    @property
    def needs_shape(self) -> bool:
        """Whether the method sees more in a tensor than a list of numbers, so that flattening it would change it."""
        return False

    @property
    def needs_epochs(self) -> bool:
        """Whether the method follows the epoch, so that the run must say how many steps one has."""
        return False

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

        ``x`` is donated: the method may overwrite it, and ``mean`` or ``rest`` may live in its storage. ``state`` must
        be whole again if the generator is left by an exception: change it only after the last yield.
        """

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

    def owed(self, state: S) -> Tensor | None:
        """What this worker still owes the others: gradient units, like x, or None. Handed on when methods change."""
        return None


class Compressor(abc.ABC):
    """Q and Q^-1 of the survey: local, without network or state. Subclasses are frozen dataclasses.

    Class attributes say how a communicator must treat the wires:

    summable: wires are added up by the network, and the sum decodes to the sum; ``Allreduce`` can carry them.
    varies: the width of a wire depends on the data; it may then differ between ranks, and padding may follow it.
    randomness: "shared" (all ranks draw the same numbers) or "private".
    aggregation: "mean" of what was decoded, or "majority": the sign of the sum of votes.
    predivide: the wire is narrow: rows are divided by W before they are encoded, so that the sum cannot overflow.
    transparent: a wire is the rows themselves, whatever their dtype.
    """

    summable: ClassVar[bool] = False
    varies: ClassVar[bool] = False
    randomness: ClassVar[Literal["shared", "private"]] = "private"
    aggregation: ClassVar[Literal["mean", "majority"]] = "mean"
    predivide: ClassVar[bool] = False
    transparent: ClassVar[bool] = False

    @abc.abstractmethod
    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        """float32 ``[b, n]``, contiguous, n >= 1, finite -> wire ``[b, w]``.

        With ``keep_rest`` it leaves rows minus what the wire says in ``rows``; without, anything.
        """

    @abc.abstractmethod
    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        """float32 out ``[b, n]`` += scale times what wire ``[b, w]`` says.

        Raises:
            PayloadError: a length, index or scale that no sender writes. ``out`` is then undefined, nothing else is.
        """

    @abc.abstractmethod
    def facts(self, n: int) -> Facts:
        """What the compressor claims for rows of n numbers."""

    def with_memory(self) -> Compressor:
        """The variant that a memory may wrap: one whose error stays bounded. By default the compressor itself.

        Raises:
            CompositionError: there is none.
        """
        return self

    def again(self) -> Compressor:
        """The variant for the second hop of ScatterReduce and ParameterServer, which sees averages of what was decoded.
        By default the compressor itself; it must read and write the same wires.
        """
        return self

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        """``p = rows + memory``, float32 ``[b, n]`` each -> (wire ``[b, w]``, whether p is finite).

        ``rest``, which must be there if ``memory`` is, and may be ``rows`` if it is not, becomes p minus what the wire says;
        ``rows`` is donated. If p is not finite, the wire is one that would be sent for zeros, and ``rest`` means nothing.
        """
        if rest is None or rest is rows:
            finite = all_finite(rows)
        else:
            finite = sum_finite(rows, memory, rest)
            rows = rest
        if not finite:
            rows.zero_()
        return self.compress_(rows, rng, rest is not None), finite

    def aggregate_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream) -> None:
        """float32 out ``[b, n]`` = scale times the sum of what the wires ``[b, w]`` say, added in their order; under
        ``aggregation="majority"`` the sign of that sum.

        Raises:
            PayloadError: as :meth:`decompress_add_`.
        """
        out.zero_()
        for wire in received:
            self.decompress_add_(wire, out, scale, rng)
        if self.aggregation == "majority":
            out.sign_()

    @property
    def id(self) -> str:
        """The name that keys its random streams."""
        return type(self).__name__


class Fused(Compressor):
    """A compressor whose kernels do several things in one pass over memory: add a memory, find out whether all numbers are
    finite, encode, and keep the rest; and decode and add up several wires. Subclasses define :meth:`encode_` and :meth:`sum_`.
    """

    @abc.abstractmethod
    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]: ...

    @abc.abstractmethod
    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        """float32 out ``[b, n]`` = (or, with ``add``, +=) scale times the sum of what the wires ``[b, w]`` say.

        Raises:
            PayloadError: as :meth:`decompress_add_`.
        """

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        return self.encode_(rows, rng, rest=rows if keep_rest else None)[0]

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        self.sum_([wire], out, scale, rng, True)

    def aggregate_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream) -> None:
        self.sum_(received, out, scale, rng, False)
        if self.aggregation == "majority":
            out.sign_()


def spelled(instance: object) -> str:
    """A frozen dataclass as the call that makes it, without knobs at their defaults: ``TopK(ratio=0.02)``."""
    if not dataclasses.is_dataclass(instance):
        return repr(instance)
    parts = []
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if field.default is dataclasses.MISSING:
            parts.append(spelled(value))
        elif value != field.default:
            parts.append(f"{field.name}={spelled(value)}")
    return f"{type(instance).__name__}({', '.join(parts)})"


def lr_ratio(last: float, lr: float | None) -> float:
    """What a memory is multiplied with when the learning rate goes from ``last`` (0: none yet) to ``lr``.

    Raises:
        ConfigurationError: nobody said what the learning rate is, or it is negative, infinite or NaN.
    """
    if lr is None:
        raise ConfigurationError(
            "a memory follows the learning rate, but nobody says what it is; use attach(..., optimizer=optimizer), or "
            "set handle.lr before each step"
        )
    if not 0 <= lr < math.inf:
        raise ConfigurationError(f"lr={lr!r} is not a learning rate; legal: 0 <= lr < inf")
    return last / lr if last and lr else 1.0
