"""Sketched-SGD: distributed SGD with sketching (Ivkin et al., NeurIPS 2019).

Letters: R rows of c columns in a sketch; k numbers that are sent; p2 candidates for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, Traffic
from grace.communicators import Allreduce
from grace.communicators.base import meta_tensor, sum_costs
from grace.compute import backends
from grace.contract.facts import Facts
from grace.contract.knobs import Count, Odd, Share
from grace.contract.loan import Loan
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.errors import InputError
from grace.flags.finite import Flag, and_, on_host
from grace.kernels import PRIME, select_topk
from grace.kernels.finite import all_finite
from grace.methods.common.count_sketch import CountSketch
from grace.methods.common.counts import count_kept
from grace.methods.common.sketch_bucket import SketchBucket, Sketching, exchange_sketches, prepare_sketches
from grace.registry import register


@register("sketchedsgd", memory="dgc", family="sparsification", cases=["ratio=0.1"])
@dataclass(frozen=True, slots=True)
class SketchedSGD(Method[None]):
    """Sketched-SGD: a summed count sketch finds the largest numbers of the mean; their exact values follow.

    ``candidates = the p2 k largest estimates of the mean, from the mean of sketches;  C(mean) = the k largest of the
    exact means at these candidates, else 0``, with ``k = max(1, ceil(ratio n))``

    The recipe's memory "dgc" is the other half of the paper: momentum, and zero where something was sent.
    Small tensors, which go uncompressed, have the same momentum by default: ``none:memory=dgc``.

    Args:
        ratio: share of the elements that the mean keeps, in (0, 1].
        rows: R, odd, >= 1.
        cols: columns of the sketch for each of the k, >= 1: c = cols k; the paper has 2 to 10.
        p2: candidates for each of the k, >= 1.
    Wire:
        the sketch, then the candidates' values (float32): 32 k (R cols + p2) bits, two rounds, summed by the network.
        A tensor that is smaller than that is summed as it is: 32 n bits, one round.
    Bias:
        biased; the error never exceeds the mean. A number is found where its square is well above |mean|^2 / c.
    Differs from the paper:
        fresh hashes in each step, so that two numbers that collide do not stay together. The memory masks the whole
        momentum, as in the paper.
    Example:
        >>> method("sketchedsgd:ratio=0.01").method
        SketchedSGD(ratio=0.01, rows=5, cols=4, p2=4)

    Reference:
        Ivkin, Rothchild, Ullah, Braverman, Stoica and Arora, "Communication-efficient Distributed SGD with Sketching",
        NeurIPS 2019, arXiv 1903.04488, algorithms 1 and 2.
    """

    ratio: Share = 0.001
    rows: Annotated[int, Odd()] = 5
    cols: Count = 4
    p2: Count = 4

    def with_memory(self) -> Method[Any]:
        return self

    @property
    def adds_memory(self) -> bool:
        return True

    def exchange(self, x: Tensor, state: None, peer: Peer) -> Exchange[Exchanged[None]]:
        n = x.numel()
        if n == 0:
            return Exchanged(x, x if peer.lent.keep_rest else None, None)
        if n >= PRIME:
            raise InputError(f"sketchedsgd hashes fewer than {PRIME} elements, got {n}")
        if (bucket := self._prepare([x], [peer])) is not None:
            return (yield from exchange_sketches(bucket, [x], [peer]))[0]
        finite: Flag = True
        loan = Loan(x, peer)
        flat, room = loan.numbers, peer.lent.scratch(n, x)
        if loan.memory is not None:
            flat = torch.add(loan.numbers, loan.memory, out=loan.work)
        cells, candidates = self._sizes(n)
        if cells:
            sketch = Allreduce(CountSketch(self.rows, cells // self.rows))
            plain = peer.lending(keep_rest=False, memory=None, rest=None, spare=None)
            estimate = yield from sketch.exchange(room.copy_(flat), None, plain)
            finite = estimate.finite
            if finite is False:
                return loan.poison(None)
            index = select_topk(estimate.mean[None], candidates)[0]  # [p2 k], the same on all ranks
        else:
            index = torch.arange(n, device=x.device, dtype=torch.int64)
        values = flat[index]
        exact = yield AllReduce(values)
        finite = and_(finite, all_finite(exact))
        if finite is False:
            return loan.poison(None)
        top = select_topk(exact[None], count_kept(self.ratio, n))[0]  # [k]
        if peer.lent.keep_rest:
            flat[index[top]] -= values[top]
        mean = room.zero_().index_copy_(0, index[top], exact[top])
        return loan.give_back(mean, None, finite)

    def batches(self, like: Tensor) -> bool:
        return not on_host(like.device) and backends.runs_triton(like.device)

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[None], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[None]]]:
        """On an accelerator the tensors, of any shapes, go by as many launches as one of them takes."""
        if (bucket := self._prepare(xs, peers)) is not None:
            return (yield from exchange_sketches(bucket, xs, list(peers)))
        return (yield from Method.exchange_all(self, xs, states, peers))

    def _prepare(self, xs: Sequence[Tensor], peers: Sequence[Peer]) -> SketchBucket | None:
        """The tensors, of any shapes, as a bucket, if kernels for many tensors can take them."""
        if not peers or not self.batches(xs[0]):
            return None
        return prepare_sketches(
            CountSketch.__name__, self.rows, [self._way(x.numel()) for x in xs], xs, Peers.of(peers)
        )

    def _way(self, n: int) -> Sketching:
        cells, candidates = self._sizes(n)
        return Sketching(cells // self.rows if cells else None, candidates, count_kept(self.ratio, n))

    def _sizes(self, n: int) -> tuple[int, int]:
        """Count of the numbers of the sketch, and of the candidates; 0 and n where that is not less than n."""
        k = count_kept(self.ratio, n)
        cells, candidates = self.rows * self.cols * k, self.p2 * k
        return (cells, candidates) if cells + candidates <= n else (0, n)

    def facts(self, like: Tensor) -> Facts:
        cells, candidates = self._sizes(like.numel())
        return Facts(contraction=0.0, deterministic=not cells, randomness="shared", payload=4 * (cells + candidates))

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        n = like.numel()
        if n == 0:
            return Traffic()
        return sum_costs(peer, *(AllReduce(meta_tensor(size, dtype=torch.float32)) for size in self._sizes(n) if size))
