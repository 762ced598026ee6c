"""Dion (Ahn et al., 2025): orthonormal updates of low rank, whose factors alone travel."""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from grace.collectives import AllReduce, Exchange, Traffic
from grace.communicators.base import meta_tensor, sum_costs
from grace.contract.facts import Facts
from grace.contract.knobs import Share, check_value
from grace.contract.loan import succeed
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.flags.finite import and_, choose_, fill_unless_
from grace.kernels import add_low_rank_, all_finite, orthonormalize, project_columns, project_rows, unit_rows
from grace.methods.common.matrices import DENSE
from grace.optim.base import CompressedOptimizer
from grace.optim.parts import divide, local, zeros
from grace.random import Stream
from grace.registry.policy import Policy, Rule
from grace.run.options import DEFAULTS, Options
from grace.transports.base import Transport


class DionState(NamedTuple):
    """momentum: M, in the shape of the parameter, of this rank. right: Q as rows of norm 1/sqrt(l), ``[r, l]``, the same on
    all ranks.
    """

    momentum: Tensor
    right: Tensor


@dataclass(frozen=True, slots=True)
class DionExchange(Method[DionState]):
    """``M += G;  P = orth(mean of M Q);  R = mean of M^T P;  M -= (1 - mu) P R^T;  Q = R / |columns|``: the mean is
    ``sqrt(m / l) P Q^T``, which is no mean of gradients, but the update of one worker that has the mean gradient.

    Args:
        rank_fraction: r / min(m, l), in (0, 1]; rounded up.
        mu: decay of the momentum along the update, in (0, 1].
    """

    rank_fraction: Share = 1.0
    mu: Share = 0.95

    @property
    def needs_shape(self) -> bool:
        return True

    def sizes(self, like: Tensor) -> tuple[int, int, int]:
        """m, l and r of a tensor of shape ``[m, ...]``, with two dimensions or more."""
        m, l = like.shape[0], math.prod(like.shape[1:])
        return m, l, max(1, math.ceil(self.rank_fraction * min(m, l)))

    def compresses(self, like: Tensor) -> bool:
        """True if the factors of a tensor of shape ``[m, ...]`` are smaller than it."""
        m, l, r = self.sizes(like)
        return (m + l) * r < m * l

    def init(self, like: Tensor) -> DionState:
        m, l, r = self.sizes(like)
        q = Stream(0, "dion", f"{m}x{l}", None, 0).normal(l * r, like.device).view(r, l)
        return DionState(torch.zeros(like.shape, dtype=torch.float32, device=like.device), unit_rows(q))

    def exchange(self, x: Tensor, state: DionState, peer: Peer) -> Exchange[Exchanged[DionState]]:
        m, l, _ = self.sizes(x)
        given = x.float()
        shares = self.compresses(x)
        if not shares:  # the momenta are the same on all ranks then
            given = yield AllReduce(given)
        after = torch.add(state.momentum, given, out=peer.lent.borrow_successor(state.momentum))
        momentum = after.view(m, l)
        p = project_rows(momentum, state.right)  # [r, m]
        if shares:
            p = yield AllReduce(p)
        finite = all_finite(p)
        p = orthonormalize(fill_unless_(finite, p.contiguous(), 0.0))
        right = project_columns(momentum, p)  # [r, l]
        if shares:
            right = yield AllReduce(right)
        right = right.contiguous()
        finite = and_(finite, all_finite(right))
        if finite is False:
            peer.lent.give_back(after)
            return Exchanged.poisoned(x, state)
        add_low_rank_(momentum, p, right, self.mu - 1)
        unit = unit_rows(fill_unless_(finite, right, 0.0))
        mean = torch.zeros_like(momentum)
        add_low_rank_(mean, p, unit, math.sqrt(l) * math.sqrt(m / l))
        next_right = torch.where(unit.abs().amax(1, keepdim=True) > 0, unit, state.right)  # a vanished one would stay
        kept = choose_(finite, after, state.momentum)
        peer.lent.give_back(state.momentum)
        successor = DionState(kept, succeed(finite, next_right, state.right, peer.lent))
        return Exchanged(fill_unless_(finite, mean, math.nan).view(x.shape).to(x.dtype), None, successor, finite)

    def kinds(self, state: DionState) -> Any:
        return "debt", "shared"

    def owed(self, state: DionState) -> Tensor | None:
        return state.momentum

    def facts(self, like: Tensor) -> Facts:
        m, l, r = self.sizes(like)
        return Facts(payload=4 * r * (m + l)) if self.compresses(like) else DENSE.facts(like)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        if not self.compresses(like):
            return DENSE.traffic(like, peer)
        m, l, r = self.sizes(like)
        return sum_costs(peer, *(AllReduce(meta_tensor(side, r, dtype=torch.float32)) for side in (m, l)))


class Dion(CompressedOptimizer):
    """Orthonormal updates of low rank for matrices, and AdamW for all else.

    ``M_i += G_i;  P = orth(mean of M_i Q);  R = mean of M_i^T P;  M_i -= (1 - mu) P R^T;  Q = R / |columns|;``
    ``x -= lr (sqrt(rows / columns) P Q^T + weight_decay x)``

    Ranks keep momenta of their own, and do exactly what one rank would with the mean gradient. What travels are P and R, in
    two rounds, 4 r (rows + columns) bytes; where that is no less than the matrix, the gradient is averaged instead. Tensors
    of one dimension, and groups with ``dion=False``, such as embeddings and the last layer, are AdamW's, on the mean
    gradient. Tensors of more dimensions are seen as matrices, their first dimension as rows. A parameter without a gradient
    counts as zeros.

    Args:
        params: parameters, or groups of them, with names or without.
        lr: the learning rate, >= 0.
        weight_decay: decoupled, >= 0.
        mu: decay of the momentum along the update, in (0, 1].
        rank_fraction: r / min(rows, columns), in (0, 1], rounded up. With 1 nothing is compressed.
        betas, eps: of AdamW, with bias correction.
        group, transport, options: as for :class:`grace.optim.OneBitAdam`; no DTensors: a shard is not the matrix.

    Raises:
        What :class:`grace.optim.OneBitAdam` raises.

    Differs from the authors' code: Householder reflections in float64, with the same bits on all ranks, instead of randomized
    Cholesky; a column of R that vanishes leaves its column of Q as it was; one learning rate for all, of AdamW, too.

    Example:
        >>> model = torch.nn.Linear(128, 64)
        >>> optimizer = grace.optim.Dion(model.named_parameters(), lr=0.01, rank_fraction=0.25)
        >>> model(torch.randn(8, 128)).square().mean().backward()
        >>> optimizer.step()

    Reference:
        Ahn et al., "Dion: Distributed Orthonormalized Updates", 2025, arXiv 2504.05295.
    """

    needs_whole = True

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.01,
        weight_decay: float = 0.01,
        *,
        mu: float = 0.95,
        rank_fraction: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        group: dist.ProcessGroup | None = None,
        transport: str | Transport | None = "auto",
        options: Options = DEFAULTS,
    ):
        check_value("Dion", "mu", mu, Share)
        check_value("Dion", "rank_fraction", rank_fraction, Share)
        self._codec = DionExchange(rank_fraction, mu)
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps, "dion": True}
        super().__init__(params, defaults, None, group=group, transport=transport, options=options, knobs={})

    def _method(self, named: Mapping[str, Tensor]) -> Policy:
        plain = {p for entry in self.param_groups if not entry["dion"] for p in entry["params"]}
        rules = [Rule(glob.escape(name), "none") for name, p in named.items() if p in plain]
        return Policy([*rules, Rule("*", "none", max_ndim=1), Rule("*", self._codec)])

    def _begin(self, p: Tensor) -> dict[str, Tensor]:
        entry = next(entry for entry in self.param_groups if any(q is p for q in entry["params"]))
        if p.ndim > 1 and entry["dion"]:
            return {}  # momentum and Q are the state of the method
        return {"step": torch.zeros((), dtype=torch.float32, device="cpu"), "exp_avg": zeros(p), "exp_avg_sq": zeros(p)}

    def _update(self, gradients: Mapping[str, Tensor | None]) -> Exchange[list[str]]:
        means = yield from self.session.exchanging(self._lend(gradients))
        if bad := self._find_nonfinite(means):
            return bad
        for name, p, entry, state in self._each():
            lr, decay, update = float(entry["lr"]), entry["weight_decay"], means[name]
            if state:
                update = _adam(update, state, entry)
            if decay:
                p.mul_(1 - lr * decay)
            p.add_(update, alpha=-lr)
        return []


def _adam(mean: Tensor, state: Mapping[str, Tensor], entry: Mapping[str, Any]) -> Tensor:
    """The update of Adam with bias correction for a mean gradient of any shape."""
    m, v, (beta1, beta2) = local(state["exp_avg"]), local(state["exp_avg_sq"]), entry["betas"]
    step = float(state["step"].add_(1))
    m.lerp_(mean, 1 - beta1)
    v.mul_(beta2).addcmul_(mean, mean, value=1 - beta2)
    root = math.sqrt(1 - beta2**step)
    return divide(m, v, entry["eps"] * root).mul_(root / (1 - beta1**step))
