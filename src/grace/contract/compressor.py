"""The first tier: a :class:`Compressor` is local and stateless, rows of numbers to rows of a wire and back.

Letters: rows are ``[b, n]``; a wire is ``[b, w]``.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from grace.contract.facts import Facts
from grace.contract.knobs import as_call, check_knobs
from grace.contract.needs import NOTHING, VOTES, Needs
from grace.errors import CompositionError
from grace.flags.finite import Flag, fill_unless_
from grace.kernels.finite import all_finite, sum_finite
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, sum_each
from grace.kernels.variable_sparse import Chosen
from grace.kernels.wire_codes import WireCode
from grace.random import Stream
from grace.wire import view_as


class Compressor(abc.ABC):
    """Q and Q^-1 of the survey: local, without network or state. Subclasses are frozen dataclasses.

    Class attributes say how a communicator must treat the wires:

    summable: wires are added up by the network, and the sum decodes to the sum; ``Allreduce`` can carry them.
    varies: the width of a wire depends on the data; it may then differ between ranks, and padding may follow it.
    randomness: "shared" (all ranks draw the same numbers) or "private".
    aggregation: "mean" of what was decoded, or "majority": the sign of the sum of votes.
    predivide: the wire is narrow, so rows are divided by W before they are encoded: the sum cannot overflow.
    rounds_to: the float of 16 bits to which a wire rounds each number; None: it does something else.
    transparent: a wire is the rows themselves, whatever their dtype.
    overflows: accepted wires may decode to an inf; such a step counts as not finite.
    handles_many: whether :meth:`encode_many_` and :meth:`aggregate_many_`, and if it is summable :meth:`put_many_`, do as many
        tensors in as few launches as one.
    takes_work: whether :meth:`encode_many_` needs ``many.work``.
    """

    summable: ClassVar[bool] = False
    varies: ClassVar[bool] = False
    randomness: ClassVar[Literal["shared", "private"]] = "private"
    aggregation: ClassVar[Literal["mean", "majority"]] = "mean"
    predivide: ClassVar[bool] = False
    rounds_to: ClassVar[torch.dtype | None] = None
    transparent: ClassVar[bool] = False
    overflows: ClassVar[bool] = False
    handles_many: ClassVar[bool] = False
    takes_work: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Checks the knobs against their annotations; an override calls :func:`grace.contract.knobs.check_knobs` first."""
        check_knobs(self)

    @abc.abstractmethod
    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        """float32 ``[b, n]``, contiguous, n >= 1, finite -> wire ``[b, w]``.

        With ``keep_rest`` it leaves rows minus what the wire says in ``rows``; without, anything.
        """

    @abc.abstractmethod
    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        """float32 out ``[b, n]`` += scale times what wire ``[b, w]`` says.

        All ranks must get the same bits: write ``out.add_(x * scale)``, not ``out.add_(x, alpha=scale)``, which some
        processors round once, others twice (``grace.kernels.add_scaled_``).

        Raises:
            PayloadError: a length, index or scale that no sender writes. Then ``out`` is undefined, but nothing else.
        """

    @abc.abstractmethod
    def facts(self, n: int) -> Facts:
        """Claims of the compressor for rows of n numbers."""

    def passes(self, n: int) -> int | None:
        """Number of times that Triton kernels read rows of n numbers, and the memory, to encode them: once where each program
        has all that its codes depend on, and again for what has to be known before. None, the default: nobody has counted.
        """
        return None

    def with_memory(self) -> Compressor:
        """The variant that a memory may wrap: one whose error stays bounded. By default the compressor itself.

        Raises:
            CompositionError: there is none.
        """
        return self

    def for_second_hop(self) -> Compressor:
        """The variant for the second hop of ScatterReduce and ParameterServer, which sees averages of what was decoded.
        By default the compressor itself; it must read and write the same wires.
        """
        return self

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, Flag]:
        """``p = rows + memory``, float32 ``[b, n]`` each -> (wire ``[b, w]``, whether p is finite).

        ``rest``, which must be there if ``memory`` is, and may be ``rows`` if it is not, becomes p minus what the wire says;
        ``rows`` is donated. If p is not finite, the wire is that of zeros, and ``rest`` means nothing.
        """
        if rest is None or rest is rows:
            finite = all_finite(rows)
        else:
            finite = sum_finite(rows, memory, rest)
            rows = rest
        fill_unless_(finite, rows, 0.0)
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

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        """As :meth:`encode_` for each of T tensors, into its place in ``message [s]`` uint8, or where the network sums wires
        float32: ``[T]`` bool, which were finite. By default one after the other.

        ``rng`` is the first one's stream: its step and rank are those of all.
        """

        def encode(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
            wire, finite = self.encode_(x, replace(many.streams[t], step=rng.step), memory, rest)
            wire = wire.contiguous().view(torch.uint8)
            check_payload(self, x.shape[1], wire)
            return wire, finite

        return encode_each(message, many, encode)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        """As :meth:`aggregate_` for each of the T tensors, from its places in ``rows [W, s]`` uint8, of all senders, into x,
        float32: ``[T]`` bool, which had wires such as a sender writes. ``rng``: as in :meth:`encode_many_`.
        """
        row = iter(range(len(many)))

        def add_up(received: list[Tensor], out: Tensor) -> None:
            t, n = next(row) // many.rows, out.shape[1]
            dtype = many.once((self, n), lambda: wire_dtype(self, n, rng, out.device))
            shared = replace(many.streams[t], rank=None, salt=0, step=rng.step)
            self.aggregate_([view_as(wire, dtype) for wire in received], out, scale, shared)

        widths = many.once((self, "widths"), lambda: [self.facts(n).payload or 0 for n in many.sizes])
        return sum_each(rows, many, widths, add_up)

    def put_many_(self, message: Tensor, many: TensorList, rng: Stream, into: TensorList) -> Tensor:
        """As :meth:`aggregate_` for each of the T tensors, from its place in the mean of all ranks' ``message [s]`` float32,
        into each x of ``into``, float32: ``[T]`` bool, where x is then finite.
        """
        raise NotImplementedError

    @property
    def counted(self) -> WireCode | None:
        """Code of its wires if their sizes depend on the data, and :meth:`choose_many_` chooses what they say for
        as many tensors by as few launches as for one. None, the default: they do not, or it does not.
        """
        return None

    def choose_many_(self, many: TensorList, rng: Stream, code: Any) -> Chosen:
        """Selects from each of T tensors plus its memory the numbers to be sent; ``rng`` as in :meth:`encode_many_`,
        ``code`` is :attr:`counted`.
        """
        raise NotImplementedError

    @property
    def needs(self) -> Needs:
        """Requirements for the optimizer: by default none, or those of every majority vote."""
        return VOTES if self.aggregation == "majority" else NOTHING

    @property
    def id(self) -> str:
        """The name that keys its random streams."""
        return type(self).__name__


def wire_dtype(compressor: Compressor, n: int, rng: Stream, device: torch.device) -> torch.dtype:
    """The dtype of wires of n numbers, whatever these are."""
    return compressor.compress_(torch.zeros(1, n, dtype=torch.float32, device=device), rng, False).dtype


def check_payload(compressor: Compressor, n: int, wire: Tensor) -> None:
    """Checks the wire of n numbers, uint8 ``[b, w]``, against what the compressor claims.

    Raises:
        CompositionError: it is longer or shorter.
    """
    claimed = compressor.facts(n).payload
    if wire.shape[1] != claimed:
        raise CompositionError(
            f"{as_call(compressor)}: a wire of {n} numbers has {wire.shape[1]} bytes, but facts({n}).payload is {claimed}; "
            "legal: the size that it has, or None where that depends on the data, with `varies`"
        )


class Fused(Compressor):
    """A compressor whose kernels do several things in one pass over memory: add a memory, find out whether all numbers are
    finite, encode, and keep the rest; and decode and add up several wires. Subclasses define :meth:`encode_` and :meth:`sum_`.
    """

    @abc.abstractmethod
    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, Flag]: ...

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
