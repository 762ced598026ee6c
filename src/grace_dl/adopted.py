"""A compressor that was written for GRACE as a Grace method: in DistributedDataParallel, the simulator, ``grace verify``.

Letters: W workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

import grace
from grace import wire as wires
from grace.collectives import AllGather, Exchange, Traffic
from grace.contract.facts import Facts
from grace.contract.knobs import check_value
from grace.contract.loan import Loan
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.errors import CompositionError, ConfigurationError, PayloadError
from grace.flags.finite import fill_unless_
from grace.kernels.finite import all_finite
from grace.registry import MEMORIES
from grace_dl.parts import Compressor, KnownCompressor
from grace_dl.protocol import as_bytes, count_rows, from_bytes, size_of

Randomness: TypeAlias = Literal["none", "private", "shared"]


def adopt(
    compressor: Any, *args: Any, memory: str = "none", randomness: Randomness = "none", **knobs: Any
) -> Method[Any]:
    """Turns a compressor that was written for GRACE into a Grace method.

    Args:
        compressor: a subclass of GRACE's ``Compressor`` for torch, or an instance of one.
        *args: arguments for the class.
        **knobs: likewise.
        randomness: whether it draws random numbers: "none", "private" (each worker its own), or "shared" (all the same). It
            then finds torch's generator seeded by the run's seed, tensor, step and, if private, rank: runs can be repeated.
        memory: Grace's memory around it, such as "residual". Grace does here what a memory of GRACE did.

    Returns:
        A method for :func:`grace.attach`, :class:`grace.Simulator`, :class:`grace.Policy` and ``grace verify``. One of GRACE's
        own compressors becomes the method that Grace has for it.

    Raises:
        ConfigurationError: not a GRACE compressor, or one that cannot be made with these arguments.
        CompositionError: a memory around a vote: there is no error to feed back.

    Example:
        >>> from grace_dl.torch import Compressor
        >>> class Half(Compressor):
        ...     def compress(self, tensor, name):
        ...         return [tensor.half()], None
        ...
        ...     def decompress(self, tensors, ctx):
        ...         return tensors[0].float()
        >>> method = adopt(Half, memory="residual")
        >>> simulator = grace.Simulator(grace.Policy([("*", method)]), world=2)
        >>> simulator.step({"w": [torch.ones(3), torch.zeros(3)]})["w"]
        tensor([0.5000, 0.5000, 0.5000])
    """
    if isinstance(compressor, type) and issubclass(compressor, Compressor):
        try:
            compressor = compressor(*args, **knobs)
        except TypeError as error:
            raise ConfigurationError(f"{compressor.__name__} cannot be made: {error}") from error
    elif args or knobs:
        raise ConfigurationError("adopt: arguments go with a class; an instance is complete as it is")
    if not isinstance(compressor, Compressor):
        raise ConfigurationError(
            f"adopt takes a subclass of grace_dl.torch.Compressor or an instance of one, got {compressor!r}"
        )
    if isinstance(compressor, KnownCompressor) and vars(type(compressor)).get("known", False):
        return grace.method(compressor.spell(), memory=memory)
    if not hasattr(compressor, "average") or not hasattr(compressor, "tensors_size_are_same"):
        raise ConfigurationError(f"{type(compressor).__name__}.__init__ does not call super().__init__(...)")
    check_value("adopt", "randomness", randomness, Randomness)
    method: Method[Any] = Adopted(_Original(compressor), randomness)
    if memory == "none":
        return method
    remembering: Method[Any] = MEMORIES.find(memory)(method)
    return remembering


class _Original:
    """A compressor that prints as its class and attributes: the same text on all ranks."""

    def __init__(self, compressor: Any):
        self.compressor = compressor

    def __repr__(self) -> str:
        return _describe(self.compressor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Original) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(type(self.compressor))


@dataclass(frozen=True, slots=True)
class Adopted(Method[None]):
    """Everyone gets what a GRACE compressor makes of each worker's tensor, and decompresses all in the order of the ranks.

    Args:
        original: the compressor. It keeps nothing from step to step: checkpoints would not have it.
        randomness: see :func:`adopt`.
    """

    original: _Original
    randomness: Randomness = "none"

    @property
    def needs_shape(self) -> bool:
        return True

    def with_memory(self) -> Method[Any]:
        if not self.original.compressor.average:
            raise CompositionError(f"{self!r} votes (average=False): there is no error that a memory could feed back")
        return self

    def exchange(self, x: Tensor, state: None, peer: Peer) -> Exchange[Exchanged[None]]:
        if x.numel() == 0:
            return Exchanged(x, x.clone() if peer.lent.keep_rest else None, None)
        loan = Loan(x, peer)
        numbers = loan.numbers.view(x.shape)
        finite = all_finite(numbers)
        fill_unless_(finite, numbers, 0.0)
        tensors, ctx = self._compress(numbers, peer)
        if peer.lent.keep_rest:
            loan.work.sub_(self._decompress(tensors, ctx, x).view(-1))
        raw = as_bytes(tensors)
        rows, sizes = [count_rows(tensors)] * peer.world, [raw.numel()] * peer.world
        if not self.original.compressor.tensors_size_are_same:
            counts = torch.tensor([rows[0]], dtype=torch.int64, device=x.device)
            told = yield AllGather(wires.seal(counts, finite, peer.step)[0])
            wires.read_headers(told, peer.step)
            rows = _check_rows(wires.unseal(told, counts.shape[1] * 8, torch.int64), x.numel(), rows[0], peer.rank)
            sizes = [size_of(tensors, row) for row in rows]
        gathered = yield AllGather(wires.seal(raw[None], finite, peer.step, max(sizes))[0])  # [W, s]
        finite = wires.read_headers(gathered, peer.step)
        if finite is False:
            return loan.poison(None)
        everyone = []
        for sender, size, counted in zip(gathered[:, None], sizes, rows, strict=True):
            received = from_bytes(wires.unseal(sender, size, torch.uint8)[0], tensors, counted)
            everyone.append(self._decode(received, ctx, x))
        total = self.original.compressor.aggregate(everyone)
        mean = loan.make_room()
        torch.mul(total.reshape(-1), 1 / peer.world if self.original.compressor.average else 1.0, out=mean[: x.numel()])
        finite = all_finite(mean)
        return loan.poison(None) if finite is False else loan.give_back(mean, None, finite)

    def _compress(self, numbers: Tensor, peer: Peer) -> tuple[Sequence[Tensor], Any]:
        compressor, before = self.original.compressor, repr(self.original)
        name = type(compressor).__name__
        with contextlib.ExitStack() as stack:
            if self.randomness != "none":
                stream = peer.private(name) if self.randomness == "private" else peer.shared(name)
                stack.enter_context(torch.random.fork_rng([] if numbers.device.type == "cpu" else [numbers.device]))
                torch.manual_seed(int(stream.words(1)[0, 0]))
            tensors, ctx = compressor.compress(numbers.clone(), peer.name)
        if repr(self.original) != before:
            raise ConfigurationError(
                f"{name} keeps something from step to step (it was {before}, and is {self.original!r}), which a checkpoint "
                "would lose; use it through its communicator's step, or write a grace.Method with a state"
            )
        tensors = list(tensors)
        if strange := [t for t in tensors if not isinstance(t, Tensor)]:
            raise ConfigurationError(f"{name}.compress returned {type(strange[0]).__name__}, not torch tensors")
        return tensors, ctx

    def _decompress(self, tensors: Sequence[Tensor], ctx: Any, like: Tensor) -> Tensor:
        compressor = self.original.compressor
        out: Tensor = compressor.decompress(list(tensors), ctx)
        if out.shape != like.shape:
            raise ConfigurationError(
                f"{type(compressor).__name__}.decompress returned {tuple(out.shape)} for a tensor of {tuple(like.shape)}"
            )
        return out.float()

    def _decode(self, tensors: Sequence[Tensor], ctx: Any, like: Tensor) -> Tensor:
        try:
            return self._decompress(tensors, ctx, like)
        except (
            RuntimeError,
            IndexError,
            ValueError,
        ) as error:  # torch raises these for illegal indices and sizes
            raise PayloadError(f"what came from the network does not decompress: {error}") from error

    def facts(self, like: Tensor) -> Facts:
        """Claims nothing but whether it is random: what this compressor does is unknown."""
        return Facts(deterministic=self.randomness == "none")

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return None if like.numel() else Traffic()

    def owed(self, state: None) -> Tensor | None:
        """A vote promises no sum, and hands out no rest that a memory may keep."""
        return None if self.original.compressor.average else torch.zeros((), dtype=torch.float32, device="cpu")


def _check_rows(told: Tensor, n: int, own: list[int], rank: int) -> list[list[int]]:
    rows: list[list[int]] = told.tolist()
    most = 64 * n + 4096
    for sender, counts in enumerate(rows):
        if any(not 0 <= count <= most for count in counts):
            raise PayloadError(f"field 'rows' of rank {sender} must be in [0, {most}], got {counts}")
    if rows[rank] != own:
        raise PayloadError(f"field 'rows' of rank {rank}, this one, came back as {rows[rank]}, not {own}")
    return rows


def _describe(value: Any, depth: int = 3) -> str:
    """An object by its class and attributes, without addresses: the same text on all ranks."""
    if value is None or isinstance(value, bool | int | float | str | bytes | torch.dtype | torch.device):
        return repr(value)
    if isinstance(value, Tensor):
        return f"tensor({tuple(value.shape)}, {float(value.double().sum()) if value.numel() else 0})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_describe(item, depth) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_describe(item, depth)}' for key, item in value.items())}}}"
    name = getattr(value, "__qualname__", type(value).__qualname__)
    attributes = vars(value) if depth and hasattr(value, "__dict__") and not isinstance(value, type) else {}
    shown = ", ".join(
        f"{key}={_describe(item, depth - 1)}" for key, item in sorted(attributes.items()) if key[:2] != "__"
    )
    return f"{name}({shown})"
