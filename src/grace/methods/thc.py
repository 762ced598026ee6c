"""THC: tensor homomorphic compression (Li et al., NSDI 2024).

Letters: n numbers, W workers; c = ceil(n/W) numbers of a worker's chunk; h the length of a block, nb blocks; T the
table of 2**bits integers from 0 to g; A the largest rotated number that is sent unclipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal

import torch
from torch import Tensor

from grace.collectives import AllGather, AllReduce, AllToAll, Exchange, Traffic
from grace.communicators.base import meta_tensor, sum_costs
from grace.compute import backends
from grace.contract.facts import Facts
from grace.contract.knobs import Range, Rotation, check_knobs
from grace.contract.loan import Loan
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.errors import ConfigurationError
from grace.flags.finite import fill_unless_, on_host
from grace.kernels import (
    all_finite,
    block_count,
    block_roots,
    decode_entries,
    encode_entries,
    packed_bytes,
    rotate_norms,
    sum_entries,
)
from grace.methods.common.integer_table import bounds_of, choose_table, count_sum_bits
from grace.methods.common.table_bucket import exchange_table, prepare_table
from grace.registry import register


@register("thc", memory="residual", family="rotation", cases=["block=16", "bits=3"])
@dataclass(frozen=True, slots=True)
class THC(Method[None]):
    """THC: random rotation, then stochastic rounding to one table of integers for all workers, so that sums need no decoding.

    ``mean = R^-1 ((sum over workers of T[z_w] / W) 2A/g - A)``, where ``T[z_w]`` rounds ``(clip(y, -A, A) + A) g/(2A)``
    up or down at random, ``y = R x`` and ``A = t max over workers of |y| / sqrt(h)``, block by block

    Args:
        bits: bits of a code z: 2 (uniform only), 3 or 4.
        clip: the share of Gaussian numbers beyond A, in [1/1024, 1/16]; t is the quantile of 1 - clip/2.
        uniform: T is 0, 1, ..., 2^bits - 1, instead of the table that suits Gaussian numbers (g = 16 or 30).
        block: h, the elements that are rotated together and share A; a power of two from 2 to 65536.
    Wire:
        three rounds: the norms (float32; largest over workers), 32 ceil(n/block) bits; the codes, to the owners of
        chunks, bits n; the sums, to everyone, ceil(log2(g W + 1)) n: 8 n for 8 workers at g = 30. The last is lossless.
    Bias:
        unbiased but for clipped numbers. Blocks that are zero on all workers are exact.
    Differs from the paper:
        a norm for each rotated block. The owners of chunks add up, where the paper has a switch or servers. The tables
        are those for clip = 1/32, whatever clip is. As in the paper the rotation is the same on all workers, and must be:
        their integers are added up as they are. Rounding is each worker's own.
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
        """The table T: whole numbers from 0 to g, one for each code."""
        return choose_table(self.bits, self.uniform)

    @property
    def reach(self) -> float:
        """t: A in units of the root mean square."""
        return round(NormalDist().inv_cdf(1 - self.clip / 2), 12)  # later digits differ between libraries

    def with_memory(self) -> Method[None]:
        return self

    @property
    def adds_memory(self) -> bool:
        return True

    def exchange(self, x: Tensor, state: None, peer: Peer) -> Exchange[Exchanged[None]]:
        if x.numel() == 0:
            return Exchanged(x, x if peer.lent.keep_rest else None, None)
        loan = Loan(x, peer)
        n, W, g = x.numel(), peer.world, self.table[-1]
        shared = peer.shared("THC").fork(0)
        rows, rest = loan.numbers.view(1, n), loan.work.view(1, n) if peer.lent.keep_rest else None
        memory = None if loan.memory is None else loan.memory.view(1, n)
        y = peer.lent.scratch((1, n), x)
        norm, finite = rotate_norms(rows, self.block, shared, y, memory)  # [1, nb]
        norm = yield AllReduce(fill_unless_(finite, norm, math.inf), "max", donate=True)
        finite = all_finite(norm)
        if finite is False:
            return loan.poison(None)
        norm = fill_unless_(finite, norm, 0.0)
        bounds = bounds_of(norm, block_roots(n, self.block, norm), self.reach)
        private, sum_bits = peer.private("THC"), count_sum_bits(g, W)
        codes = encode_entries(y, bounds, self.block, self.table, W, private, shared, rows, memory, rest)
        theirs = yield AllToAll(codes)  # [W, ceil(c bits / 8)]: everyone's z of my chunk
        answer = yield AllGather(sum_entries(theirs, self.table, math.ceil(n / W), sum_bits)[0])
        mean = loan.make_room()
        decode_entries(answer, sum_bits, g, bounds, mean.view(1, n), self.block, shared)
        return loan.give_back(mean, None, finite)

    def batches(self, like: Tensor) -> bool:
        return not on_host(like.device) and backends.runs_triton(like.device)

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[None], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[None]]]:
        """On an accelerator the tensors, of any shapes, go by as many launches as one of them takes."""
        if peers and self.batches(xs[0]):
            whose = Peers.of(peers)
            bucket = prepare_table("THC", self.table, self.block, self.reach, xs, whose)
            if bucket is not None:
                return (yield from exchange_table(bucket, xs, whose))
        return (yield from Method.exchange_all(self, xs, states, peers))

    def facts(self, like: Tensor) -> Facts:
        return Facts(deterministic=False, randomness="shared")  # the rotation, which decides what is clipped

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        if like.numel() == 0:
            return Traffic()
        W, c = peer.world, math.ceil(like.numel() / peer.world)
        norms = meta_tensor(block_count(like.numel(), self.block), dtype=torch.float32)
        codes = meta_tensor(W, packed_bytes(c, self.bits))
        sums = meta_tensor(packed_bytes(c, count_sum_bits(self.table[-1], W)))
        return sum_costs(peer, AllReduce(norms, "max"), AllToAll(codes), AllGather(sums))
