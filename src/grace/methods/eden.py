"""DRIVE, and EDEN, which is DRIVE with more bits.

Letters: h the length of a block; y = R x the rotated block; c(z) the centroid that the code z stands for.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.compressor import Compressor
from grace.errors import PayloadError, out_of_range
from grace.facts import Facts
from grace.kernels import (
    MOST,
    block_abs_max,
    block_count,
    block_divide,
    block_norm,
    block_sizes,
    block_sum,
    nearest,
    pack,
    packed_bytes,
    spread,
    unpack,
)
from grace.methods.rht import checked_block, rotated, rotated_back
from grace.random import Stream
from grace.registry import register

# the Lloyd-Max quantizers of the standard normal distribution: positive halves
_CENTROIDS = {
    1: (0.7978846,),
    2: (0.4527800, 1.5104176),
    3: (0.2450942, 0.7560053, 1.3439093, 2.1519457),
    4: (0.1283950, 0.3880483, 0.6567591, 0.9423405, 1.2562312, 1.6180464, 2.0690172, 2.7325896),
}


@dataclass(frozen=True, slots=True)
class _Rotated(Compressor):
    """What DRIVE and EDEN share."""

    randomness: ClassVar[Literal["shared", "private"]] = "shared"
    block: int = 1024
    scale: Literal["unbiased", "mse"] = "unbiased"

    def __post_init__(self) -> None:
        owner = type(self).__name__.lower()
        checked_block(owner, self.block)
        if self.scale not in ("unbiased", "mse"):
            raise out_of_range(owner, "scale", self.scale, "'unbiased', 'mse'")
        if not (isinstance(self.code_bits, int) and self.code_bits in _CENTROIDS):
            raise out_of_range(owner, "bits", self.code_bits, "1, 2, 3, 4")

    @property
    def code_bits(self) -> int:
        """Bits of a code."""
        return 1

    def with_memory(self) -> Compressor:
        return replace(self, scale="mse")

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        n, h, book = rows.shape[1], self.block, _book(self.code_bits).to(rows.device)
        y = rotated(rows, rng, h)
        rms = block_norm(y, h) / block_sizes(n, h, rows).sqrt_()  # [b, nb]
        rms, unit = block_divide(y, rms, h)  # [b, n], as if standard normal
        # zero is on the positive side, which only matters for one bit
        code = nearest(-unit, book).neg_().add_(book.numel() - 1)
        centroid = book[code].double()
        product = block_sum(centroid * unit, h)  # [b, nb] <c, y> / rms; 0 only where y is
        if self.scale == "unbiased":
            factor = block_sum(unit.double().square(), h) / product.clamp_min(1e-300)
        else:
            factor = product / block_sum(centroid.square(), h)
        most = MOST / block_abs_max(centroid.float(), h).clamp_min_(1.0)  # so that no number of the block overflows
        scale = torch.minimum(factor * rms, most.double()).float()  # [b, nb]
        wire = wires.join(scale, pack(code, self.code_bits))
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n, bits = out.shape[1], self.code_bits
        fields = [
            ("scales", torch.float32, block_count(n, self.block)),
            ("codes", torch.uint8, packed_bytes(n, bits)),
        ]
        scales, packed = wires.split(wire, fields)
        centroid = _book(bits).to(out.device)[unpack(packed, bits, n).long()]
        y = centroid.mul_(spread(wires.checked_scale("scales", scales), n, self.block))
        if not bool(y.isfinite().all()):
            raise PayloadError("field 'scales' must be small enough for its codes")
        out.add_(rotated_back(y, rng, self.block), alpha=scale)

    def facts(self, n: int) -> Facts:
        payload = 4 * block_count(n, self.block) + packed_bytes(n, self.code_bits)
        # <c, y>^2 >= sum (c_i y_i)^2 >= |c|^2 |y|^2 / h, as c_i and y_i have one sign and grow together
        delta = 1 / min(n, self.block) if self.scale == "mse" else None
        return Facts(contraction=delta, deterministic=False, payload=payload)


@register("drive", communicator="allgather", family="rotation", aliases=("drivecompressor",))
@dataclass(frozen=True, slots=True)
class DRIVE(_Rotated):
    """DRIVE: the signs of a randomly rotated block, and one scale.

    ``C(x) = R^-1 (S sgn(R x))`` with ``S = |y|_2^2 / |y|_1`` (unbiased) or ``|y|_1 / h`` (mse), ``y = R x``

    Args:
        block: h, the elements that are rotated together and share S; a power of two from 2 to 65536.
        scale: "unbiased", or "mse" for the least error; a memory sets the latter.
    Wire:
        one S (float32) for each block, then n bits: n + 32 ceil(n/block) bits, one round.
    Bias:
        unbiased: ``<x, C(x)> = |x|^2``, always; E C(x) = x for uniform rotations, and nearly for these, with omega =
        0.571 for long blocks; short ones (h < 64) are visibly biased. mse: delta at least 1/h, 0.637 for most inputs.
    Differs from the paper:
        blocks instead of the whole vector, padded; a rest is rotated as in rht, and at most 15 numbers stay as they are.
        Each worker's part is rotated back before the average, not the average once.
    Example:
        >>> method("drive:memory=residual")
        ErrorFeedback(method=Allgather(compressor=DRIVE(block=1024, scale='mse')), beta=1.0, gamma=1.0)

    Reference:
        Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak and Mitzenmacher, "DRIVE: One-bit Distributed Mean
        Estimation", NeurIPS 2021, arXiv 2105.08339.
    """


@register("eden", communicator="allgather", family="rotation", aliases=("edencompressor",))
@dataclass(frozen=True, slots=True)
class EDEN(_Rotated):
    """EDEN: a randomly rotated block, quantized as if it were Gaussian, and one scale.

    ``C(x) = R^-1 (S c(z))`` with c(z) the centroids nearest to ``y sqrt(h) / |y|``, ``y = R x``, and
    ``S = |y|^2 / <c(z), y>`` (unbiased) or ``<c(z), y> / |c(z)|^2`` (mse)

    Args:
        block: h, the elements that are rotated together and share S; a power of two from 2 to 65536.
        scale: "unbiased", or "mse" for the least error; a memory sets the latter.
        bits: of a code, 1 to 4. One bit is DRIVE.
    Wire:
        one S (float32) for each block, then codes, packed: bits n + 32 ceil(n/block) bits, one round.
    Bias:
        unbiased: ``<x, C(x)> = |x|^2``, always; E C(x) = x for uniform rotations, and nearly for these, with omega =
        0.571, 0.133, 0.0358, 0.0096 for 1 to 4 bits and long blocks. mse: delta at least 1/h; 0.637, 0.883, 0.965,
        0.990 for most inputs.
    Differs from the paper:
        as DRIVE; and whole bits only.
    Example:
        >>> method("eden:bits=2")
        Allgather(compressor=EDEN(block=1024, scale='unbiased', bits=2))

    Reference:
        Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak and Mitzenmacher, "EDEN: Communication-Efficient and Robust
        Distributed Mean Estimation for Federated Learning", ICML 2022, arXiv 2108.08842.
    """

    bits: int = 4

    @property
    def code_bits(self) -> int:
        return self.bits


@functools.lru_cache
def _book(bits: int) -> Tensor:
    """``[2**bits]`` float32: the centroids, ascending."""
    half = torch.tensor(_CENTROIDS[bits], dtype=torch.float32)
    return torch.cat((-half.flip(0), half))
