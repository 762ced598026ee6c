"""Centroids of randomly rotated blocks: what DRIVE and EDEN share.

Letters: h the length of a block; y = R x the rotated block; c(z) the centroid that the code z stands for.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Rotation
from grace.errors import PayloadError
from grace.flags.refusals import refuse_unless
from grace.kernels import (
    MOST,
    add_scaled_,
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
)
from grace.methods.common import coded_wire
from grace.methods.common.rotation import rotate, rotate_back
from grace.random import Stream

# the Lloyd-Max quantizers of the standard normal distribution: positive halves
_CENTROIDS = {
    1: (0.7978846,),
    2: (0.4527800, 1.5104176),
    3: (0.2450942, 0.7560053, 1.3439093, 2.1519457),
    4: (0.1283950, 0.3880483, 0.6567591, 0.9423405, 1.2562312, 1.6180464, 2.0690172, 2.7325896),
}


@dataclass(frozen=True, slots=True)
class RotatedCodes(Compressor):
    """The codes of a rotated block, and one scale. Subclasses say how many bits a code has."""

    randomness: ClassVar[Literal["shared", "private"]] = "shared"
    block: Rotation = 1024
    scale: Literal["unbiased", "mse"] = "unbiased"

    @property
    def code_bits(self) -> int:
        """Bits of a code."""
        return 1

    def with_memory(self) -> Compressor:
        return replace(self, scale="mse")

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        n, h, book = rows.shape[1], self.block, _book(self.code_bits, rows.device)
        y = rotate(rows, rng, h)
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
        scales, code = coded_wire.split_all(wire, ("scales", torch.float32, block_count(n, self.block)), bits, n)
        centroid = _book(bits, out.device)[code.long()]
        y = centroid.mul_(spread(wires.check_scale("scales", scales), n, self.block))
        refuse_unless(y.isfinite().all(), lambda: PayloadError("field 'scales' must be small enough for its codes"))
        add_scaled_(out, rotate_back(y, rng, self.block), scale)

    def facts(self, n: int) -> Facts:
        payload = 4 * block_count(n, self.block) + packed_bytes(n, self.code_bits)
        # <c, y>^2 >= sum (c_i y_i)^2 >= |c|^2 |y|^2 / h, as c_i and y_i have one sign and grow together
        delta = 1 / min(n, self.block) if self.scale == "mse" else None
        return Facts(contraction=delta, deterministic=False, payload=payload)


@functools.lru_cache
def _book(bits: int, device: torch.device) -> Tensor:
    """``[2**bits]`` float32: the centroids, ascending."""
    half = torch.tensor(_CENTROIDS[bits], dtype=torch.float32, device=device)
    return torch.cat((-half.flip(0), half))
