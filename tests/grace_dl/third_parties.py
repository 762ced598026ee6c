"""Compressors, memories and communicators as third parties wrote them for GRACE."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from grace_dl.dist import Communicator, Compressor, Memory

import grace
import grace_dl


class SignScale(Compressor):
    """Two tensors of other types, one without dimensions, in equal sizes."""

    def __init__(self) -> None:
        super().__init__(tensors_size_are_same=True)

    def compress(self, tensor: Any, name: str) -> Any:
        shape, flat = tensor.size(), tensor.flatten()
        return [(flat >= 0).type(torch.uint8), flat.abs().mean()], shape

    def decompress(self, tensors: Any, ctx: Any) -> Any:
        signs, scale = tensors
        return (signs.type(torch.float32) * 2 - 1).mul(scale).view(ctx)


class Largest(Compressor):
    """Numbers above a share of the largest: sizes differ between ranks."""

    def __init__(self, share: float = 0.1) -> None:
        super().__init__(tensors_size_are_same=False)
        self.share = share

    def compress(self, tensor: Any, name: str) -> Any:
        flat = tensor.flatten()
        (index,) = torch.where(flat.abs() >= self.share * flat.abs().max())
        return [flat[index], index], (tensor.numel(), tensor.size())

    def decompress(self, tensors: Any, ctx: Any) -> Any:
        numel, shape = ctx
        values, index = tensors
        return torch.zeros(numel, dtype=values.dtype).scatter_(0, index, values).view(shape)


class Vote(SignScale):
    """Aggregates in its own way, and is not averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.average = False

    def aggregate(self, tensors: Any) -> Any:
        return torch.sign(sum(tensors))


class Counting(SignScale):
    """Remembers something."""

    def compress(self, tensor: Any, name: str) -> Any:
        self.steps = getattr(self, "steps", 0) + 1
        return super().compress(tensor, name)


class Sampled(Compressor):
    """Draws from torch's generator."""

    def compress(self, tensor: Any, name: str) -> Any:
        index = torch.randint(tensor.numel(), (max(1, tensor.numel() // 3),))
        return [tensor.flatten()[index], index], tensor.shape

    def decompress(self, tensors: Any, ctx: Any) -> Any:
        return torch.zeros(ctx.numel()).scatter_(0, tensors[1], tensors[0]).view(ctx)


class Doubled(Memory):
    """A memory of a third party."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def compensate(self, tensor: Any, name: str) -> Any:
        self.seen.append(name)
        return 2 * tensor


class OwnGather(Communicator):
    """A communicator of a third party, over torch.distributed, in GRACE's form for ``dist``."""

    def send_receive(self, tensors: Any, name: str, ctx: Any) -> Any:
        rows = []
        for tensor in tensors:
            out = [torch.empty_like(tensor) for _ in range(self.world_size or 0)]
            dist.all_gather(out, tensor)
            rows.append(out)
        return self.compressor.aggregate([self.compressor.decompress(parts, ctx) for parts in zip(*rows, strict=True)])


class InTwoHalves(Communicator):
    """The same in GRACE's form for ``torch``."""

    def async_send(self, tensors: Any, name: str) -> Any:
        rows = [[torch.empty_like(t) for _ in range(self.world_size or 0)] for t in tensors]
        return rows, [dist.all_gather(out, t, async_op=True) for out, t in zip(rows, tensors, strict=True)]

    def wait_receive(self, handles: Any, ctx: Any) -> Any:
        rows, works = handles
        for work in works:
            work.wait()
        return self.compressor.aggregate([self.compressor.decompress(parts, ctx) for parts in zip(*rows, strict=True)])


def adopted() -> grace.Method[Any]:
    """For ``grace verify``."""
    return grace_dl.adopt(Largest, memory="residual")
