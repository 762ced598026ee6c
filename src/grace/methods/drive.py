"""DRIVE: one-bit distributed mean estimation (Vargaftik et al., NeurIPS 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from grace.methods.common.rotated_codes import RotatedCodes
from grace.registry import register


@register("drive", communicator="allgather", family="rotation", cases=["block=16", "scale=mse"])
@dataclass(frozen=True, slots=True)
class DRIVE(RotatedCodes):
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
        blocks instead of the whole vector, padded; the rest is rotated as in rht, and at most 15 numbers stay as they
        are.
    Example:
        >>> method("drive:memory=residual")
        ErrorFeedback(method=Allgather(compressor=DRIVE(block=1024, scale='mse')), beta=1.0, gamma=1.0)

    Reference:
        Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak and Mitzenmacher, "DRIVE: One-bit Distributed Mean
        Estimation", NeurIPS 2021, arXiv 2105.08339.
    """
