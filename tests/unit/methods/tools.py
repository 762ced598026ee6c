"""A compressor on one row, with the random numbers that a test chooses."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from grace.compute import backends
from grace.contract.compressor import Compressor
from grace.contract.peer import Peer
from grace.random import Stream


class Fixed:
    """Stands in for a Stream: these uniform numbers, or these positions."""

    def __init__(self, u: list[float] | None = None, positions: list[int] | None = None, rank: int = 0, step: int = 0):
        self.u, self.positions, self.rank, self.step = u or [], positions or [], rank, step

    def uniform(self, n: int, device: Any = "cpu", first: int = 0) -> Tensor:
        assert first + n <= len(self.u)
        return torch.tensor(self.u[first : first + n])

    def lanes(self, n: int, device: Any = "cpu", first: int = 0) -> Tensor:
        return self.uniform(n, device, first).mul_(2.0**16).to(torch.int32)

    def subset(self, n: int, k: int, device: Any = "cpu") -> Tensor:
        assert k == len(self.positions)
        return torch.tensor(self.positions)


def stream(compressor: Compressor, rank: int = 0, step: int = 0) -> Any:
    peer = Peer(rank, 8, step, "w", 7)
    return peer.shared(compressor.id) if compressor.randomness == "shared" else peer.private(compressor.id)


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float32)


def wire_of(compressor: Compressor, x: Tensor, rng: Any = None) -> Tensor:
    rng = rng or stream(compressor)
    with specified(rng):
        return compressor.compress_(x.clone(), rng, False)


def hex_of(wire: Tensor) -> str:
    return bytes(wire[0].view(torch.uint8).tolist()).hex()


def specified(rng: Any) -> AbstractContextManager[None]:
    """Native kernels draw from the key of a stream; where given numbers stand in for one, the reference is tested."""
    return nullcontext() if isinstance(rng, Stream) else backends.using("reference")


def roundtrip(compressor: Compressor, x: Tensor, rng: Any = None) -> tuple[list[float], list[float]]:
    """(what the wire says, the rest) for one row."""
    rng = rng or stream(compressor)
    rest = x.clone()
    out = torch.zeros_like(x)
    with specified(rng):
        wire = compressor.compress_(rest, rng, True)
        compressor.decompress_add_(wire, out, 1.0, rng)
    return out[0].tolist(), rest[0].tolist()
