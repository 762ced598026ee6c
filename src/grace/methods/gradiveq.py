"""GradiVeQ: vector quantization for gradient aggregation (Yu et al., NeurIPS 2018).

Letters: a tensor is N slices of K numbers and a tail shorter than K; U is K x d.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from grace.collectives import AllReduce, Broadcast, Exchange, Traffic
from grace.communicators.base import meta_tensor, sum_costs
from grace.contract.conversation import label_parts
from grace.contract.facts import Facts
from grace.contract.knobs import Count, Range, check_knobs
from grace.contract.loan import succeed
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.contract.together import together
from grace.contract.workspace import Workspace
from grace.errors import out_of_range
from grace.flags.finite import and_, ask_host_of_all
from grace.kernels.finite import all_finite
from grace.methods.common.matrices import DENSE, Sides, as_rows, divide
from grace.methods.common.principal import collect_covariance, share_components
from grace.methods.common.projection_bucket import ProjectionBucket, find_projection_plan
from grace.registry import register


class GradiVeQState(NamedTuple):
    """basis: U, of this cycle or the last. covariance: what has been collected so far. turn: the step within the cycle."""

    basis: Tensor
    covariance: Tensor
    turn: int


@register("gradiveq", memory="residual", family="low rank", cases=["length=8,dims=2,collect=2,use=3"])
@dataclass(frozen=True, slots=True)
class GradiVeQ(Method["GradiVeQState | None"]):
    """GradiVeQ: slices of the gradient, projected on the principal components of the mean gradient of earlier steps.

    ``c = U^T slices;  C(slices) = U (mean of c)``; U holds the d leading eigenvectors of the uncentered covariance of
    the mean's slices in the ``collect`` steps before, which go uncompressed

    Args:
        length: K, numbers in a slice, >= 2. A smaller tensor has shorter slices, powers of two with K^2 <= n, so that
            the covariance is not larger than the tensor; d shrinks with K. Tensors of fewer than 4 numbers go
            uncompressed.
        dims: d, how many numbers are sent for a slice, 1 <= d < K.
        collect: steps at the beginning of each cycle that go uncompressed, >= 1.
        use: compressed steps that follow, >= 1.
    Wire:
        while collecting 32 n bits; then 32 (d N + tail) bits (float32), one round, summed by the network. The last
        collecting step broadcasts U from rank 0 in a second round: 32 K d bits.
    Bias:
        biased: an orthogonal projection, so that its error never exceeds the mean. Exact for slices in the span of U.
    Differs from the paper:
        lengths of slices and cycles are not public; the defaults send 1/8. U is computed on one rank, so that all have
        the same bits. Only finite steps count; traffic is declared as if every step were finite.
    Example:
        >>> method("gradiveq:length=256,dims=32")
        ErrorFeedback(method=GradiVeQ(length=256, dims=32, collect=100, use=400), beta=1.0, gamma=1.0)

    Reference:
        Yu et al., "GradiVeQ: Vector Quantization for Bandwidth-Efficient Gradient Aggregation in Distributed CNN
        Training", NeurIPS 2018, arXiv 1811.03617.
    """

    length: Annotated[int, Range(least=2)] = 512
    dims: Count = 64
    collect: Count = 100
    use: Count = 400

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.dims >= self.length:
            raise out_of_range("gradiveq", "dims", self.dims, f"1 <= dims < length={self.length}")

    def with_memory(self) -> Method[Any]:
        return self

    def init(self, like: Tensor) -> GradiVeQState | None:
        """U ``[K, d]`` and the covariance ``[K, K]``; None for tensors that go uncompressed."""
        if like.numel() < 4:
            return None
        K, d, _ = self._sizes(like.numel())
        basis = torch.zeros(K, d, device=like.device, dtype=torch.float32)
        return GradiVeQState(basis, torch.zeros(K, K, dtype=torch.float64, device=like.device), 0)

    def _sizes(self, n: int) -> tuple[int, int, int]:
        """K, d and N for n >= 4 numbers."""
        K = min(self.length, 1 << (math.isqrt(n).bit_length() - 1))
        return K, max(1, math.ceil(K * self.dims / self.length)), n // K

    def exchange(self, x: Tensor, state: GradiVeQState | None, peer: Peer) -> Exchange[Exchanged[GradiVeQState | None]]:
        return (yield from self.exchange_all([x], [state], Peers.of([peer])))[0]

    def batches(self, like: Tensor) -> bool:
        """True for float32, of any shape, since the host is asked once for all tensors. A subclass may have an exchange of its
        own, too.
        """
        return type(self).exchange is GradiVeQ.exchange and like.dtype is torch.float32

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[GradiVeQState | None], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[GradiVeQState | None]]]:
        """All tensors, of any shapes, with one question to the host, and then what is to be learnt of them."""
        if not xs:
            return []
        sides: list[Sides | None] = [None] * len(xs)
        for t, (x, state) in enumerate(zip(xs, states, strict=True)):
            if state is not None and state.turn >= self.collect:
                K, d, N = self._sizes(x.numel())
                sides[t] = (N, K, d)
        outs = yield from divide(self._average, sides, xs, states, Peers.of(peers), beside=True)
        for out in outs:
            if out.state is None and not peers[0].lent.keep_rest:
                out.finite = True  # it is not checked
            elif xs[0].dtype is not torch.float32 and out.state is not None:
                out.finite = and_(out.finite, all_finite(out.mean))
        fine = iter(ask_host_of_all([out.finite for out in outs if out.state is not None]))
        runs = [
            self._learn(x, state, peer, out, state is not None and next(fine))
            for x, state, peer, out in zip(xs, states, peers, outs, strict=True)
        ]
        return (yield from together(runs, workspace=peers[0].lent.workspace))

    def _average(
        self, sides: Sequence[Sides | None], xs: Sequence[Tensor], states: Sequence[GradiVeQState | None], peers: Peers
    ) -> Exchange[list[Exchanged[GradiVeQState | None]]]:
        """The means of slices in the span of U, and of what goes uncompressed; what is to be learnt of them is not yet."""
        bases = [
            as_rows(state.basis)
            for state, of in zip(states, sides, strict=True)
            if state is not None and of is not None
        ]
        workspace, turned = peers.like.lent.workspace or Workspace(), [False] * len(bases)
        plan = find_projection_plan(self, sides, turned, xs, peers, workspace, orthonormal=True)
        bucket = ProjectionBucket(plan, xs, bases, peers, workspace)
        yield from bucket.sum_factors()
        outs = bucket.restore(checked=True)
        for out, state in zip(outs, states, strict=True):
            out.state = state
        return outs

    def _learn(
        self, x: Tensor, state: GradiVeQState | None, peer: Peer, out: Exchanged[GradiVeQState | None], fine: bool
    ) -> Exchange[Exchanged[GradiVeQState | None]]:
        """The next state, where the host knows whether the step was ``fine``: the next one's bytes depend on it."""
        if state is None:
            return out
        if state.turn >= self.collect:
            turn = (state.turn + fine) % (self.collect + self.use)
            return Exchanged(out.mean, out.rest, state._replace(turn=turn), out.finite)
        if not fine:
            return Exchanged.poisoned(x, state)
        K, d, N = self._sizes(x.numel())
        covariance = collect_covariance(out.mean.reshape(-1)[: N * K].view(N, K).float())
        covariance.add_(state.covariance)
        basis = state.basis
        if state.turn + 1 == self.collect:
            shared = yield from share_components(covariance, d, peer.rank)
            basis = succeed(True, shared, basis, peer.lent)
            covariance = torch.zeros_like(covariance)
        after = GradiVeQState(basis, succeed(True, covariance, state.covariance, peer.lent), state.turn + 1)
        return Exchanged(out.mean, out.rest, after, out.finite)

    def kinds(self, state: GradiVeQState | None) -> Any:
        return label_parts(state, "shared")

    def facts(self, like: Tensor) -> Facts:
        return Facts(contraction=0.0) if like.numel() >= 4 else DENSE.facts(like)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        n, turn = like.numel(), peer.step % (self.collect + self.use)
        dense = DENSE.traffic(like, peer)
        if dense is None or n < 4 or turn + 1 < self.collect:
            return dense
        K, d, N = self._sizes(n)
        if turn >= self.collect:
            return sum_costs(peer, AllReduce(meta_tensor(d * N + n - K * N, dtype=torch.float32)))
        return dense + sum_costs(peer, Broadcast(meta_tensor(K, d, dtype=torch.float32), 0))
