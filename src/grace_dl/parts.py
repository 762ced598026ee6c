"""GRACE's abstract classes, and what its own compressors and memories have in common."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

import grace
from grace.contract.wrapping import find_compressor
from grace.errors import ConfigurationError
from grace.random import Stream


class Memory(ABC):
    """Adds to a tensor before it is compressed, and learns what was lost."""

    @abstractmethod
    def compensate(self, tensor: Any, name: str) -> Any:
        """The tensor plus what was kept from earlier steps."""

    def update(self, tensor: Any, name: str, compressor: Any, tensor_compressed: Any, ctx: Any) -> Any:
        """Keeps what compressing ``tensor`` lost. By default nothing."""
        return None


class Compressor(ABC):
    """Turns one tensor into a list of tensors, and such a list back into a tensor.

    Args:
        average: whether what :meth:`aggregate` returns is divided by the number of workers.
        tensors_size_are_same: whether what :meth:`compress` returns has the same sizes on all workers.
    """

    def __init__(self, average: bool = True, tensors_size_are_same: bool = True):
        self.average, self.tensors_size_are_same = average, tensors_size_are_same

    @abstractmethod
    def compress(self, tensor: Any, name: str) -> tuple[Any, Any]:
        """The tensors that travel, and a context, which stays here and decompresses those of other workers too."""

    @abstractmethod
    def decompress(self, tensors: Any, ctx: Any) -> Any:
        """The tensor that one worker's tensors stand for."""

    def aggregate(self, tensors: Sequence[Any]) -> Any:
        """Makes one tensor of all workers' decompressed tensors."""
        return sum(tensors[1:], tensors[0])


class Knobs:
    """Parameters that are attributes and may be changed during training: ``compressor.compress_ratio = 0.01``."""

    defaults: ClassVar[Mapping[str, object]] = {}
    text: ClassVar[str] = ""  # its string in Grace, with the knobs in braces

    def take(self, args: Sequence[object], named: Mapping[str, object]) -> None:
        """Sets the attributes.

        Raises:
            TypeError: too many parameters, or an unknown one.
        """
        name = type(self).__name__
        given = dict(zip(self.defaults, args, strict=False))
        if len(args) > len(self.defaults) or (strange := named.keys() - self.defaults.keys()):
            what = sorted(strange) if len(args) <= len(self.defaults) else f"{len(args)} arguments"
            raise TypeError(f"{name} got {what}; legal: {', '.join(self.defaults) or 'none'}")
        if twice := given.keys() & named.keys():
            raise TypeError(f"{name} got {sorted(twice)} twice")
        for knob, value in {**self.defaults, **given, **named}.items():
            setattr(self, knob, copy.copy(value))

    def spell(self) -> str:
        """Its string in Grace, with the knobs as they are now."""
        return self.text.format(**{knob: getattr(self, knob) for knob in self.defaults})

    def __repr__(self) -> str:
        knobs = ", ".join(f"{knob}={getattr(self, knob)!r}" for knob in self.defaults)
        return f"{type(self).__name__}({knobs})"


class KnownCompressor(Knobs, Compressor):
    """A compressor of GRACE's own. Among Grace's parts it stands for a method; alone, beside a memory or communicator of
    yours, it encodes with Grace's codec: a list with one wire, and a context that decodes everyone's.
    """

    def __init__(self, *args: object, **knobs: object):
        Compressor.__init__(self)
        self.take(args, knobs)
        self._steps: dict[str, int] = {}

    def _codec(self) -> grace.Compressor:
        codec = find_compressor(grace.method(self.spell()))
        if codec is None:
            raise NotImplementedError(
                f"{type(self).__name__} talks with the other workers in the middle of compressing, and cannot compress on its "
                "own; use it with GRACE's memories and communicators"
            )
        return codec

    def compress(self, tensor: Tensor, name: str) -> tuple[list[Tensor], Any]:
        codec = self._codec()
        self.tensors_size_are_same, self.average = not codec.varies, codec.aggregation == "mean"
        step = self._steps[name] = self._steps.get(name, -1) + 1
        rng = Stream(0, codec.id, name, None, step)  # shared: any worker's context decodes everyone's wire
        rows = tensor.detach().reshape(1, -1).to(torch.float32, copy=True)
        return [codec.compress_(rows, rng, False)[0]], (codec, rng, tensor.shape, tensor.dtype)

    def decompress(self, tensors: Sequence[Tensor], ctx: Any) -> Tensor:
        codec, rng, shape, dtype = ctx
        out = torch.zeros(1, shape.numel(), device=tensors[0].device, dtype=torch.float32)
        codec.decompress_add_(tensors[0][None], out, 1.0, rng)
        return out.view(shape).to(dtype)

    def aggregate(self, tensors: Sequence[Tensor]) -> Tensor:
        total: Tensor = Compressor.aggregate(self, tensors)
        return total if self.average else total.sign()


class KnownMemory(Knobs, Memory):
    """A memory of GRACE's own. Among Grace's parts it stands for Grace's memory; beside a compressor of yours it computes what
    GRACE's residual memory did, ``beta residual + gamma tensor``.
    """

    feeds_back: ClassVar[bool] = True  # False: remembers nothing

    def __init__(self, *args: object, **knobs: object):
        self.take(args, knobs)
        self.residuals: dict[str, Any] = {}

    def require_protocol(self) -> None:
        """Refuses, if it cannot work with a compressor of yours.

        Raises:
            ConfigurationError: it cannot.
        """
        if self.spell() not in ("none", "residual") and not self.spell().startswith("residual,"):
            raise ConfigurationError(
                f"{type(self).__name__} needs GRACE's own compressors, whose masks it reads; with one of your own take "
                "ResidualMemory"
            )

    def compensate(self, tensor: Any, name: str) -> Any:
        if name not in self.residuals:
            return tensor
        beta, gamma = getattr(self, "beta", 1.0), getattr(self, "gamma", 1.0)
        return beta * self.residuals[name] + gamma * tensor

    def update(self, tensor: Any, name: str, compressor: Any, tensor_compressed: Any, ctx: Any) -> Any:
        if self.feeds_back:
            self.residuals[name] = tensor - compressor.decompress(tensor_compressed, ctx)
