"""Shared parts of the methods that see a tensor as a matrix.

Letters: M is m x l: m the first dimension, l all others flattened; r the rank; factors are m x r or l x r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

import torch
from torch import Tensor

from grace.collectives import AllReduce, Traffic
from grace.communicators import Allreduce
from grace.communicators.base import meta_tensor, sum_costs
from grace.contract.compressor import Compressor
from grace.contract.conversation import label_parts
from grace.contract.facts import Facts
from grace.contract.loan import reads_narrow
from grace.contract.method import Method
from grace.contract.peer import Peer, Peers
from grace.flags.finite import Flag, and_, on_host
from grace.kernels import (
    add_low_rank_,
    add_scaled_,
    all_finite,
    product_fits,
    project_columns,
    project_rows,
)
from grace.methods.none import Identity
from grace.random import Stream

S = TypeVar("S")
Sides: TypeAlias = tuple[int, int, int]  # m, l and r
DENSE = Allreduce(Identity())


def is_plain(x: Tensor) -> bool:
    """True if kernels can read x, of any shape, as it is."""
    return x.dtype is torch.float32 and x.is_contiguous() and x.numel() > 0


def are_plain(xs: Sequence[Tensor], peers: Peers) -> bool:
    """True if kernels can read and write all of a bucket, of any shapes, where it is, and what is lent for it."""
    lent = peers.like.lent
    if lent.workspace is None or peers.memories is not None or lent.keep_rest != (peers.spares is not None):
        return False
    return all(map(is_plain, (*xs, *(peers.spares or ()))))


class LowRank(Method[S]):
    """A method of matrices, whose factors the network sums. Tensors of fewer than two dimensions, and small ones, go
    uncompressed. The state is None or a tuple of factors, which are the same on all ranks.

    Subclasses are dataclasses with the fields ``rank`` (:data:`grace.contract.knobs.Count`) and ``min_rate`` (Positive).
    """

    rank: int
    min_rate: float

    @property
    def needs_shape(self) -> bool:
        return True

    def _sizes(self, like: Tensor) -> tuple[int, int, int]:
        """m, l and r."""
        m, l = like.shape[0], math.prod(like.shape[1:])
        return m, l, min(self.rank, m, l)

    def _batches(self, like: Tensor) -> bool:
        """True if tensors like this go together: float32, or where kernels widen them those that are compressed."""
        if like.dtype is torch.float32:
            return True
        return reads_narrow(like) and not on_host(like.device) and self._compresses(like)

    def _compresses(self, like: Tensor) -> bool:
        if like.ndim < 2 or like.numel() == 0:
            return False
        m, l, r = self._sizes(like)
        return m * l > self.min_rate * r * (m + l)

    def with_memory(self) -> Method[Any]:
        return self

    def kinds(self, state: S) -> Any:
        return label_parts(state, "shared")

    def facts(self, like: Tensor) -> Facts:
        return Facts(contraction=0.0) if self._compresses(like) else DENSE.facts(like)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        sides = self._sides(like, peer.step) if self._compresses(like) else None
        if sides is None:
            return DENSE.traffic(like, peer)
        r = self._sizes(like)[2]
        return sum_costs(peer, *(AllReduce(meta_tensor(side, r, dtype=torch.float32)) for side in sides))

    def _sides(self, like: Tensor, step: int) -> tuple[int, ...] | None:
        """Lengths of the factors that are sent in this step, by default both; None: it goes uncompressed."""
        return self._sizes(like)[:2]

    def _draw_factors(self, like: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """P ``[m, r]`` and Q ``[l, r]`` to start with, random and the same on all ranks."""
        m, l, r = self._sizes(like)
        stream = Stream(0, name, f"{m}x{l}", None, 0)
        p, q = (stream.fork(i).normal(side * r, like.device).view(side, r) for i, side in enumerate((m, l)))
        return p, q


class Projection(Compressor):
    """A linear map of a matrix to a factor, and back: ``F = M E``, ``M' = F D^T``; transposed ``F = M^T E``, ``M' = D F^T``.

    Linear, so that the network may sum the factors. What follows the m l numbers of the matrix is sent as it is.

    Args:
        m, l: the matrix's sides.
        encode, decode: E and D, as rows: ``[r, l]``; transposed ``[r, m]``.
        transposed: which of the two maps.

    ``factor`` is the last factor that was decoded: after an exchange the mean of all, valid until the exchange has
    ended.
    """

    summable: ClassVar[bool] = True
    overflows: ClassVar[bool] = True

    def __init__(self, m: int, l: int, encode: Tensor, decode: Tensor, *, transposed: bool = False):
        self.m, self.l, self.encode, self.decode, self.transposed = m, l, encode, decode, transposed
        self.side, self.r = (l if transposed else m), encode.shape[0]
        self.factor = encode.new_empty(0, self.r)

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, Flag]:
        """As :meth:`grace.Compressor.encode_`; rows whose product overflows count as not finite."""
        wire, finite = Compressor.encode_(self, rows, rng, memory, rest)
        if rest is None:
            return wire, finite
        fits = product_fits(wire[:, : self.side * self.r].view(-1, self.r).mT, self.decode)
        return wire, and_(finite, fits if fits is True else all_finite(rest))

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        matrix, tail = self._parts(rows)
        project = project_columns if self.transposed else project_rows
        flat = torch.stack([project(rows, self.encode).mT.reshape(-1) for rows in matrix])  # [b, side r]
        wire = torch.cat((flat, tail), dim=1) if tail.shape[1] else flat
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        factor = wire[:, : self.side * self.r].reshape(-1, self.side, self.r)
        matrix, tail = self._parts(out)
        for target, received in zip(matrix, factor.mT.contiguous(), strict=True):  # [m, l], [r, side]
            left, right = (self.decode, received) if self.transposed else (received, self.decode)
            add_low_rank_(target, left, right, scale)
        add_scaled_(tail, wire[:, self.side * self.r :], scale)
        self.factor = factor[0]

    def _parts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``[b, n]`` -> ``[b, m, l]`` and ``[b, n - m l]``, both views."""
        size = self.m * self.l
        return rows[:, :size].view(-1, self.m, self.l), rows[:, size:]

    def facts(self, n: int) -> Facts:
        return Facts(payload=4 * (self.side * self.r + n - self.m * self.l))
