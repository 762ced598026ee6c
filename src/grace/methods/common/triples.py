"""A matrix as a few random ones of its singular triples: atomosvd.

Letters: M is m x l; q = min(m, l) singular values; s the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.errors import PayloadError
from grace.flags.refusals import refuse_unless
from grace.kernels import add_low_rank_
from grace.random import Stream


@dataclass(frozen=True, slots=True)
class Triples(Compressor):
    """Rows that are m x l matrices, as a few random ones of their singular triples."""

    varies: ClassVar[bool] = True
    overflows: ClassVar[bool] = True
    m: int
    l: int
    budget: int
    shrink: bool

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        encoded = []
        for i, matrix in enumerate(rows.view(-1, self.m, self.l)):
            largest = matrix.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
            u, sigma, vh = torch.linalg.svd(matrix / largest, full_matrices=False)
            p = fill_with_water(sigma, self.budget)  # [q]
            draw = rng.fork(i).words(len(p), rows.device)[:, 0].double().add_(2.0**31 + 0.5).mul_(2.0**-32)
            keep = (draw < p).nonzero().view(-1)  # [k]
            size = sigma[keep].double() * largest / (p[keep] * self._unit * (1 + self.omega if self.shrink else 1))
            size = size.clamp_max_(torch.finfo(torch.float32).max).float()
            count = torch.tensor([[len(keep)]], dtype=torch.int32, device=rows.device)
            encoded.append(wires.join(count, size[None], u[:, keep].mT.reshape(1, -1), vh[keep].reshape(1, -1)))
        wire = torch.nn.utils.rnn.pad_sequence([row[0] for row in encoded], batch_first=True)
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        m, l, head = self.m, self.l, ("count", torch.int32, 1)
        for row, matrix in zip(wire[:, None], out.view(-1, m, l), strict=True):
            count = wires.split(row, [head], slack=True)[0]
            k = int(wires.check_index("count", count, min(m, l) + 1))
            fields = [("sizes", torch.float32, k), ("u", torch.float32, k * m), ("v", torch.float32, k * l)]
            _, size, u, v = wires.split(row, [head, *fields], slack=True)
            for name, vector in (("u", u), ("v", v)):
                _check_parts(name, vector)
            left = u.view(k, m) * math.sqrt(m)
            right = (v.view(k, l) * math.sqrt(l)) * wires.check_scale("sizes", size).view(k, 1)
            add_low_rank_(matrix, left.contiguous(), right.contiguous(), scale)

    @property
    def _unit(self) -> float:
        """The unit of sizes: the norm of a matrix of ones, so that no size overflows."""
        return math.sqrt(self.m * self.l)

    @property
    def omega(self) -> float:
        """Equal probabilities s/q have this variance, whatever M is; water-filling has the least that there is."""
        return max(0.0, min(self.m, self.l) / self.budget - 1)

    def facts(self, n: int) -> Facts:
        if self.shrink:
            return Facts(contraction=1 / (1 + self.omega), deterministic=False)
        return Facts(unbiased=True, variance=self.omega, deterministic=False)


def _check_parts(name: str, vector: Tensor) -> None:
    """Checks a field of any shape.

    Raises:
        PayloadError: it cannot be parts of unit vectors.
    """
    fine = (vector.abs() <= 1.001).all()
    refuse_unless(fine, lambda: PayloadError(f"field {name!r} must hold parts of unit vectors, in [-1, 1]"))


def fill_with_water(sizes: Tensor, budget: float) -> Tensor:
    """``[n]`` sizes >= 0 -> ``[n]`` float64 probabilities with sum ``min(budget, non-zeros)``: proportional to the sizes,
    but at most 1; what is cut off goes to the others. No other probabilities with this sum have less variance.
    """
    order = sizes.double().argsort(descending=True, stable=True)
    ordered = sizes.double()[order]
    ordered = ordered / ordered[:1].clamp_min(torch.finfo(torch.float64).tiny)
    total = ordered.flip(0).cumsum(0).flip(0)  # [n]: the sum of this one and all smaller ones
    room = (budget - torch.arange(len(ordered), dtype=torch.float64, device=sizes.device)).clamp_min(0.0)
    sure = ((ordered * room >= total) & (ordered > 0)).to(torch.int64).cumprod(0)  # a prefix
    first = sure.sum(0, keepdim=True)  # [1]
    at = first.clamp_max(len(ordered) - 1)
    share = room.gather(0, at) / total.gather(0, at).clamp_min(torch.finfo(torch.float64).tiny)
    p = torch.where(torch.arange(len(ordered), device=sizes.device, dtype=torch.int64) < first, 1.0, ordered * share)
    return torch.empty_like(p).scatter_(0, order, p.clamp_max_(1.0))
