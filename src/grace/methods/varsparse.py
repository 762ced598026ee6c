"""Variance-based gradient compression (Tsuzuku, Imachi and Akiba, ICLR 2018 workshop).

Letters: r the sum of gradients that were not sent; d the root of the sum v of their squares; q an exponent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.collectives import Exchange, Traffic
from grace.communicators import Allgather
from grace.compute import backends
from grace.compute.launching import READ
from grace.compute.portable import hypotenuse
from grace.contract.facts import Facts
from grace.contract.knobs import Positive, Share
from grace.contract.loan import narrow, succeed
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.flags.finite import ask_host, on_host
from grace.kernels.index_codes.codes import IndexCode
from grace.methods.common.powers_of_two import PowersOfTwo
from grace.methods.common.waiting_bucket import WaitingBucket
from grace.registry import register


class VarSparseState(NamedTuple):
    """The state: r and d, like x; and the root of the sum of squares of this step's samples, if they were observed."""

    r: Tensor
    d: Tensor
    seen: Tensor | None


@register("varsparse", family="sparsification", aliases=("variance",))
@dataclass(frozen=True, slots=True)
class VarSparse(Method[VarSparseState]):
    """Variance-based sparsification: a number waits until its sum is certain, relative to the squares of its parts.

    ``r = r + mean of z_j;  v = v + sum over j of (z_j / m)^2``, z_1 ... z_m the samples of this step; where
    ``r^2 > alpha v``: send r and forget v; elsewhere ``v = zeta v``. A number is sent as a power of two

    Samples are gradients of parts of a batch: call ``observe`` with each of them before their mean is exchanged.
    Without that each step's gradient is one sample (m = 1): then v = r^2 after one step, and a number is sent once
    several steps agree on its sign.

    Args:
        alpha: how certain, > 0; the paper has 1 to 2. With m = 1, c equal gradients in a row are sent once c > alpha.
        zeta: decay of v, in (0, 1].
        keep_error: whether what rounding to a power of two cuts off stays in r; the paper drops it.
        index: how indices travel: raw, bitmap, elias-fano, delta, rice, or auto: the smallest of the first three.
    Wire:
        a count (int32), the largest exponent (8 bits), then for each number sent its sign, 3 bits of exponent, and its
        index: 40 + k (4 + ceil(log2 n)) bits with ``index="raw"``. Data-dependent: one more small round exchanges the
        sizes of all tensors of a bucket.
    Bias:
        biased, without a delta: whether a number is sent depends on its history. Never exact in one step. The memory is
        part of the method.
    Differs from the paper:
        ``keep_error``. The nearest power of two is the nearest on a linear scale (1.5 rounds up to 2), and is at most
        that of the largest magnitude. v is kept as its root, which neither overflows nor vanishes. Packed lists instead
        of 32-bit words.
    Example:
        >>> method("varsparse:alpha=2")
        VarSparse(alpha=2, zeta=0.999, keep_error=True, index='auto')

    Reference:
        Tsuzuku, Imachi and Akiba, "Variance-based Gradient Compression for Efficient Distributed Deep Learning", ICLR
        2018 workshop, arXiv 1802.06058.
    """

    alpha: Positive = 1.5
    zeta: Share = 0.999
    keep_error: bool = True
    index: IndexCode = "auto"

    def init(self, like: Tensor) -> VarSparseState:
        r = torch.zeros(like.shape, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
        return VarSparseState(r, torch.zeros_like(r), None)

    def observe(self, state: VarSparseState, sample: Tensor, samples: int) -> VarSparseState:
        """The state after one of this step's ``samples`` samples, which are like the gradient; it replaces ``state``."""
        seen = torch.zeros_like(state.d) if state.seen is None else state.seen
        return state._replace(seen=hypotenuse(seen, sample.to(seen.dtype) / samples))

    def exchange(self, x: Tensor, state: VarSparseState, peer: Peer) -> Exchange[Exchanged[VarSparseState]]:
        r, d, lent = (peer.lent.scratch(tuple(x.shape), x, state.r.dtype) for _ in range(3))
        torch.add(state.r, x, out=r)
        hypotenuse(state.d, x.to(d.dtype) if state.seen is None else state.seen, out=d)
        sure = r.abs() > math.sqrt(self.alpha) * d
        torch.mul(r, sure, out=lent)
        if not bool(r.isfinite().all()):
            lent.fill_(math.nan)  # also where r is too large for its type: then all ranks leave the step out
        plain = peer.lending(keep_rest=True, spare=None)
        out = yield from Allgather(PowersOfTwo(self.index)).exchange(lent, None, plain)
        if not ask_host(out.finite):
            return Exchanged.poisoned(x, state._replace(seen=None))
        assert out.rest is not None
        sent = sure & (out.rest != r)
        left = torch.where(sent, out.rest if self.keep_error else 0.0, r)
        mean, finite = narrow(out.mean, x.dtype, True, left)
        after = succeed(finite, d.mul_(math.sqrt(self.zeta)).masked_fill_(sent, 0.0), state.d, peer.lent)
        return Exchanged(mean, None, VarSparseState(succeed(finite, left, state.r, peer.lent), after, None), finite)

    def batches(self, like: Tensor) -> bool:
        """True where kernels take many tensors, of any shapes: on an accelerator."""
        there = not on_host(like.device) and backends.runs_triton(like.device)
        return type(self) is VarSparse and there and like.dtype in READ

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[VarSparseState], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[VarSparseState]]]:
        """Tensors of any shapes go by few launches, and one question to the host."""
        bucket = WaitingBucket.of(self, PowersOfTwo(self.index), xs, peers) if xs and self.batches(xs[0]) else None
        if bucket is None:
            return (yield from Method.exchange_all(self, xs, states, peers))
        bucket.add(states, math.sqrt(self.alpha))
        outs = yield from bucket.exchange()
        succeeded = bucket.succeed(outs, math.sqrt(self.zeta), self.keep_error)
        for out, r, d in zip(outs, *succeeded, strict=True):
            out.state = VarSparseState(r, d, None)
        return outs

    def kinds(self, state: VarSparseState) -> Any:
        return ("debt", "own", "own")

    def owed(self, state: VarSparseState) -> Tensor | None:
        return state.r

    def facts(self, like: Tensor) -> Facts:
        return Facts()

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return None if like.numel() else Traffic()
