"""Momenta as tiles: the cosine transform of each, of which the largest numbers are sent.

A tile has h x w numbers, h and w the largest divisors up to 64 of the sides of a matrix. Tensors of more dimensions are seen
as matrices, their first dimension as rows; those of fewer as one column.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import Exchange, Traffic
from grace.communicators import Allgather
from grace.contract.facts import Facts
from grace.contract.knobs import Count
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.flags.finite import fill_unless_
from grace.kernels import index_bits, pack, packed_bytes, unpack
from grace.kernels.places import add_at_
from grace.methods.chunktopk import ChunkTopK
from grace.methods.common.matrices import DENSE
from grace.random import Stream

_ZERO = 2.0**-30  # of the largest number: less is the rounding of a sum of products that is 0


@dataclass(frozen=True, slots=True)
class TileTopK(ChunkTopK):
    """The k largest magnitudes of each chunk as they are: float32, then places of ceil(log2 chunk) bits. Chunks divide n."""

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        index = self._select(rows)
        values = rows.gather(1, index)
        if keep_rest:
            rows.scatter_(1, index, 0.0)
        return wires.join(values, pack(index % self.chunk, index_bits(self.chunk)))

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        kept, bits = self._count(out.shape[1]), index_bits(self.chunk)
        fields = [("values", torch.float32, kept), ("places", torch.uint8, packed_bytes(kept, bits))]
        values, listed = wires.split(wire, fields)
        add_at_(out, 1, self._place(unpack(listed, bits, kept).long(), out.shape[1]), values * scale)

    def facts(self, n: int) -> Facts:
        kept = self._count(n)
        payload = 4 * kept + packed_bytes(kept, index_bits(self.chunk))
        return Facts(contraction=min(1.0, self.k / min(n, self.chunk)) if n else 1.0, payload=payload)


@dataclass(frozen=True, slots=True)
class TiledTopK(Method[Any]):
    """Averages the k largest numbers of the cosine transform (DCT-II, orthonormal) of each tile.

    Args:
        k: numbers of a tile that are sent, >= 1. Tiles of no more are sent as they are.
        side: the longest side of a tile, >= 1.
    """

    k: Count = 32
    side: Count = 64

    @property
    def needs_shape(self) -> bool:
        return True

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        h, w = self.tile(x)
        if self._is_dense(x):
            return (yield from DENSE.exchange(x, state, peer))
        lent = replace(peer.lent, memory=None, rest=None, spare=None)
        out = yield from self._inner(h * w).exchange(to_tiles(x, h, w), None, replace(peer, lent=lent))
        if out.finite is False:
            return Exchanged.poisoned(x, state)
        mean = from_tiles(out.mean.double(), x, h, w)
        size = mean.abs()
        mean.masked_fill_(size <= _ZERO * size.max(), 0.0)  # whose sign would depend on the processor
        rest = None if out.rest is None else from_tiles(out.rest, x, h, w)
        return Exchanged(fill_unless_(out.finite, mean.to(x.dtype), math.nan), rest, state, out.finite)

    def tile(self, like: Tensor) -> tuple[int, int]:
        """H and w for a tensor like this one, of any shape."""
        rows, columns = _sides(like)
        return _divisor(rows, self.side), _divisor(columns, self.side)

    def _is_dense(self, like: Tensor) -> bool:
        """True if tensors like this one are averaged as they are: all of a tile would be sent, or there is none."""
        h, w = self.tile(like)
        return h * w <= self.k or like.numel() == 0

    def _inner(self, size: int) -> Method[Any]:
        return Allgather(TileTopK(chunk=size, k=self.k))

    def with_memory(self) -> Method[Any]:
        return self

    def facts(self, like: Tensor) -> Facts:
        h, w = self.tile(like)
        return DENSE.facts(like) if self._is_dense(like) else self._inner(h * w).facts(like.reshape(-1))

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        h, w = self.tile(like)
        return DENSE.traffic(like, peer) if self._is_dense(like) else self._inner(h * w).traffic(like.reshape(-1), peer)


def to_tiles(x: Tensor, h: int, w: int) -> Tensor:
    """The transforms of the tiles of x, of any shape, one after the other: ``[n]``."""
    rows, columns = _sides(x)
    tiles = x.reshape(rows // h, h, columns // w, w).permute(0, 2, 1, 3)  # [ny, nx, h, w]
    return (_cosines(h, x.dtype, x.device) @ tiles @ _cosines(w, x.dtype, x.device).T).reshape(-1)


def from_tiles(y: Tensor, like: Tensor, h: int, w: int) -> Tensor:
    """The inverse of :func:`to_tiles`: ``[n]`` to the shape of ``like``."""
    rows, columns = _sides(like)
    tiles = y.reshape(rows // h, columns // w, h, w)
    x = _cosines(h, y.dtype, y.device).T @ tiles @ _cosines(w, y.dtype, y.device)
    return x.permute(0, 2, 1, 3).reshape(like.shape)


def _sides(x: Tensor) -> tuple[int, int]:
    return (x.shape[0] if x.ndim else 1), math.prod(x.shape[1:])


def _divisor(side: int, most: int) -> int:
    """The largest divisor of ``side`` that is at most ``most``."""
    return max((d for d in range(1, min(side, most) + 1) if side % d == 0), default=1)


@functools.lru_cache(maxsize=256)
def _cosines(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The orthonormal DCT-II ``[n, n]``: y = D x, x = D^T y."""
    i = torch.arange(n, dtype=torch.float64, device="cpu")
    table = torch.cos(math.pi / n * (i[None] + 0.5) * i[:, None]) * math.sqrt(2 / n)
    table[0] /= math.sqrt(2)
    return table.to(device=device, dtype=dtype)
