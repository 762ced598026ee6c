"""Randomized Hadamard transform, from DRIVE (Vargaftik et al., NeurIPS 2021) and QuIP (Chee et al., 2023).

Letters: h the length of a block; R its random rotation, H the orthonormal Hadamard transform, D random signs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Rotation, as_call, check_knobs
from grace.errors import CompositionError
from grace.kernels import TensorList, add_scaled_, rotate_back_many, rotate_many
from grace.kernels.multi_tensor import clear_many
from grace.methods.common.rotation import rotate, rotate_back
from grace.random import Stream
from grace.registry import method, register
from grace.registry.text import strip_parentheses

_ROUNDING = 1e-11  # the squared relative error of a rotation and its inverse in float32


@register("rht", communicator="allgather", family="rotation", cases=["block=16", "inner=(lpc:bits=3,block=8),rounds=2"])
@dataclass(frozen=True, slots=True)
class RHT(Compressor):
    """Randomized Hadamard transform: rotates blocks at random before another compressor, and back after it.

    ``C(x) = R^-1 Q(R x)`` with ``R = H D``, H the orthonormal Hadamard matrix of size h and D random signs, the same
    on all ranks and new in each step

    Args:
        inner: Q: a ``grace.Compressor``, or its name and knobs, in parentheses where there are several:
            ``rht:inner=(qsgd:bits=2,bucket=128)``. Default: qsgd, 4 bits.
        block: h, a power of two from 2 to 65536. A shorter rest is rotated in powers of two down to 16.
        rounds: 1, or 2 for numbers that are closer to Gaussian.
    Wire:
        that of the inner compressor, and nothing else.
    Bias:
        that of the inner compressor: R is orthonormal, so unbiasedness and every bound on the squared error carry over.
        The largest number of a block becomes about |x| sqrt(2 ln h / h); a quantizer that is scaled by it gains that
        much on heavy tails. All workers rotate alike, so that their sum is rotated back once; their errors are independent
        only where the inner compressor rounds at random. Bounds for single elements, and sparsity, are lost.
    Differs from the paper:
        blocks, not the whole vector; the rest is rotated in powers of two, and at most 15 numbers stay as they are.
    Example:
        >>> method("rht:inner=(lpc:bits=3),block=256")
        Allgather(compressor=RHT(inner='(lpc:bits=3)', block=256, rounds=1))

    Reference:
        Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation", NeurIPS 2021, arXiv 2105.08339; Chee et al.,
        "QuIP", NeurIPS 2023, arXiv 2307.13304.
    """

    takes_work: ClassVar[bool] = True
    inner: Compressor | str = "qsgd"
    block: Rotation = 1024
    rounds: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        check_knobs(self)
        if not isinstance(self.inner, Compressor | str):
            raise CompositionError(f"rht: inner={self.inner!r} is not a compressor; legal: a Compressor, or its name")
        inner = self.quantizer
        if inner.varies or inner.aggregation == "majority":
            raise CompositionError(
                f"rht rotates before a compressor of fixed size whose wires are averaged, such as qsgd or lpc, "
                f"not {as_call(inner)}"
            )

    @property
    def quantizer(self) -> Compressor:
        """The inner compressor."""
        return _parse_inner(self.inner) if isinstance(self.inner, str) else self.inner

    def with_memory(self) -> Compressor:
        inner = self.quantizer.with_memory()
        return self if inner == self.quantizer else replace(self, inner=inner)

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        shared, inner = _shared_stream(rng), self.quantizer
        own = shared if inner.randomness == "shared" else rng
        wire = inner.compress_(rotate(rows, shared, self.block, self.rounds), own, False)
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, shared)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        shared = _shared_stream(rng)
        y = out.new_zeros(out.shape)
        self.quantizer.decompress_add_(wire, y, 1.0, shared)
        add_scaled_(out, rotate_back(y, shared, self.block, self.rounds), scale)

    def aggregate_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream) -> None:
        shared = _shared_stream(rng)
        self.quantizer.aggregate_(received, out, scale, shared)
        out.copy_(rotate_back(out, shared, self.block, self.rounds))  # R is linear: once, for all of them

    @property
    def handles_many(self) -> bool:  # type: ignore[override]  # here it depends on a knob
        inner = self.quantizer
        shares = (
            inner.randomness == "shared" and not inner.takes_work
        )  # what it draws is not said by a table of our streams
        return inner.handles_many and not (inner.summable or shares)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        if not self.handles_many:
            return Compressor.encode_many_(self, message, many, rng)
        y, inner = many.work, self.quantizer
        assert y is not None
        finite = rotate_many(message, many, y, self.block, 0, rng.step)
        if self.rounds == 2:
            rotate_many(message, y, y, self.block, 1, rng.step)
        clear_many(finite, y)
        inner.encode_many_(message, y, rng)
        if many.rests is not None:
            inner.aggregate_many_(message.view(1, -1), y, 1.0, rng)
            if self.rounds == 2:
                rotate_back_many(message, y, y, self.block, 1, rng.step)
            rotate_back_many(message, y, many, self.block, 0, rng.step, subtract=True)
        return finite

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        if not self.handles_many:
            return Compressor.aggregate_many_(self, rows, many, scale, rng)
        legal = self.quantizer.aggregate_many_(rows, many, scale, rng)
        for salt in reversed(range(self.rounds)):
            rotate_back_many(rows, many, many, self.block, salt, rng.step)
        return legal

    def facts(self, n: int) -> Facts:
        facts = self.quantizer.facts(n)
        delta = None if facts.contraction is None else min(facts.contraction, 1 - _ROUNDING)
        omega = None if facts.variance is None else max(facts.variance, _ROUNDING)
        bias = facts.bias * min(n, self.block)  # a number depends on its whole block
        randomness: Literal["private", "shared"] = "shared" if facts.deterministic else facts.randomness  # R is shared
        return replace(facts, contraction=delta, variance=omega, deterministic=False, randomness=randomness, bias=bias)


def _shared_stream(rng: Stream) -> Stream:
    """The stream of the same owner that all ranks share, whether ``rng`` is private or shared."""
    return replace(rng, rank=None, salt=0)


@functools.lru_cache
def _parse_inner(text: str) -> Compressor:
    """``"qsgd:bits=2"`` or ``"(qsgd:bits=2)"`` -> QSGD(bits=2)"""
    inner = method(strip_parentheses(text), communicator="allgather", memory="none")
    compressor: Compressor = inner.compressor  # type: ignore[attr-defined]
    return compressor
