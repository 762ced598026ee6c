"""THC: tensor homomorphic compression (Li et al., NSDI 2024).

Letters: n numbers, W workers; c = ceil(n/W) numbers of a worker's chunk; h the length of a block, nb blocks; T the
table of 2**bits integers from 0 to g; A the largest rotated number that is sent unclipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.collectives import AllGather, AllReduce, AllToAll, Exchange, Traffic, cost
from grace.errors import ConfigurationError
from grace.facts import Facts
from grace.finite import fill_unless_
from grace.kernels import (
    MOST,
    block_count,
    block_divide,
    block_norm,
    block_sizes,
    pack,
    packed_bytes,
    spread,
    unpack,
)
from grace.kernels.finite import all_finite
from grace.knobs import Range, Rotation, check_knobs
from grace.loan import Loan
from grace.method import Exchanged, Method
from grace.methods.common.integer_table import choose_table, count_sum_bits, round_to_table, table_on
from grace.methods.common.rotation import rotate, rotate_back
from grace.peer import Peer
from grace.random import Stream
from grace.registry import register


@register("thc", memory="residual", family="rotation", cases=["block=16", "bits=3"])
@dataclass(frozen=True, slots=True)
class THC(Method[None]):
    """THC: random rotation, then stochastic rounding to a table of integers that is the same for all, so that sums need
    no decoding.

    ``mean = R^-1 ((sum over workers of T[z_w] / W) 2A/g - A)``, where ``T[z_w]`` rounds ``(clip(y, -A, A) + A) g/(2A)``
    up or down at random, ``y = R x`` and ``A = t max over workers of |y| / sqrt(h)``, block by block

    Args:
        bits: of a code z: 2 (uniform only), 3 or 4.
        clip: the share of Gaussian numbers beyond A, in [1/1024, 1/16]; t is the quantile of 1 - clip/2.
        uniform: T is 0, 1, ..., 2^bits - 1, instead of the table that suits Gaussian numbers (g = 16 or 30).
        block: h, the elements that are rotated together and share A; a power of two from 2 to 65536.
    Wire:
        three rounds: the norms (float32; largest over workers), 32 ceil(n/block) bits; the codes, to the owners of
        chunks, bits n; the sums, to everyone, ceil(log2(g W + 1)) n: 8 n for 8 workers at g = 30. The last is lossless.
    Bias:
        unbiased but for clipped numbers. Blocks of zeros of all workers are exact.
    Differs from the paper:
        a norm for each rotated block. The owners of chunks add up, where the paper has a switch or servers. The tables
        are those for clip = 1/32, whatever clip is.
    Example:
        >>> method("thc:bits=3")
        ErrorFeedback(method=THC(bits=3, clip=0.03125, uniform=False, block=1024), beta=1.0, gamma=1.0)

    Reference:
        Li, Ben Basat, Vargaftik, Lao, Xu, Mitzenmacher and Yu, "THC: Accelerating Distributed Deep Learning Using Tensor
        Homomorphic Compression", NSDI 2024, arXiv 2302.08545.
    """

    bits: Literal[2, 3, 4] = 4
    clip: Annotated[float, Range(1 / 1024, 1 / 16)] = 1 / 32
    uniform: bool = False
    block: Rotation = 1024

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.bits == 2 and not self.uniform:
            raise ConfigurationError("thc: bits=2 has no table; legal: bits=3, bits=4, or uniform=True")

    @property
    def table(self) -> tuple[int, ...]:
        """T: from 0 to g."""
        return choose_table(self.bits, self.uniform)

    @property
    def reach(self) -> float:
        """t: A in units of the root mean square."""
        return round(
            NormalDist().inv_cdf(1 - self.clip / 2), 12
        )  # the last digits differ between libraries of mathematics

    def with_memory(self) -> Method[None]:
        return self

    def exchange(self, x: Tensor, state: None, peer: Peer) -> Exchange[Exchanged[None]]:
        if x.numel() == 0:
            return Exchanged(x, x if peer.lent.keep_rest else None, None)
        loan = Loan(x, peer)
        n, W, g, shared = x.numel(), peer.world, self.table[-1], peer.shared("THC")
        c, sum_bits = math.ceil(n / W), count_sum_bits(g, W)
        rows = loan.work.view(1, n)
        finite = all_finite(rows)
        fill_unless_(finite, rows, 0.0)
        y = rotate(rows, shared, self.block)
        norm = block_norm(y, self.block)  # [1, nb]
        norm = yield AllReduce(fill_unless_(finite, norm, math.inf), "max", donate=True)
        finite = all_finite(norm)
        if finite is False:
            return loan.poison(None)
        fill_unless_(finite, norm, 0.0)
        reach = self._reach(norm, n)
        z = y.new_zeros(1, W * c, dtype=torch.int64)
        z[:, :n] = round_to_table(self._levels(y, reach), self.table, peer.private("THC"))
        theirs = yield AllToAll(pack(z.view(W, c), self.bits))  # [W, ceil(c bits / 8)]: everyone's z of my chunk
        table = table_on(self.table, torch.int64, x.device)
        sums = table[unpack(theirs, self.bits, c).long()].sum(dim=0, keepdim=True)  # [1, c]
        answer = yield AllGather(pack(sums, sum_bits)[0])  # [W, ceil(c sum_bits / 8)]
        total = wires.checked_index("sums", unpack(answer, sum_bits, c).long(), g * W + 1).view(1, -1)[:, :n]
        if peer.lent.keep_rest:
            rows.sub_(self._numbers(table[z[:, :n]], 1, reach, shared))
        return loan.give_back(loan.make_room().copy_(self._numbers(total, W, reach, shared)[0]), None, finite)

    def _reach(self, norm: Tensor, n: int) -> Tensor:
        """A ``[1, nb]``; 0 for blocks that are as good as zero."""
        rms = norm / block_sizes(n, self.block, norm).sqrt_()
        rms = torch.where(rms < torch.finfo(torch.float32).tiny, 0.0, rms)
        return (rms.double() * self.reach).clamp_max_(MOST).float()

    def _levels(self, y: Tensor, reach: Tensor) -> Tensor:
        """V ``[1, n]`` in [0, g]: rotated numbers on the scale of the table."""
        return block_divide(y, reach, self.block)[1].clamp_(-1, 1).add_(1).mul_(self.table[-1] / 2)

    def _numbers(self, sums: Tensor, count: int, reach: Tensor, shared: Stream) -> Tensor:
        """``[1, n]``: the mean of ``count`` workers whose table entries add up to ``sums``."""
        share = sums.double().mul_(2 / (count * self.table[-1])).sub_(1).float()  # in [-1, 1]
        return rotate_back(share.mul_(spread(reach, sums.shape[1], self.block)), shared, self.block)

    def facts(self, like: Tensor) -> Facts:
        return Facts(deterministic=False)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        if like.numel() == 0:
            return Traffic()
        W, c = peer.world, math.ceil(like.numel() / peer.world)
        norms = torch.empty(block_count(like.numel(), self.block), device="meta")
        codes = torch.empty(W, packed_bytes(c, self.bits), dtype=torch.uint8, device="meta")
        sums = torch.empty(packed_bytes(c, count_sum_bits(self.table[-1], W)), dtype=torch.uint8, device="meta")
        ops = (AllReduce(norms, "max"), AllToAll(codes), AllGather(sums))
        return sum((cost(op, peer.rank, W) for op in ops), Traffic())
