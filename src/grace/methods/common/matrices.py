"""Shared parts of the methods that see a tensor as a matrix.

Letters: M is m x l: m the first dimension, l all others flattened; r the rank; factors are m x r or l x r.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange, Traffic
from grace.communicators import Allreduce
from grace.communicators.base import meta_tensor, sum_costs
from grace.contract.conversation import label_parts
from grace.contract.facts import Facts
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.contract.together import together
from grace.methods.none import Identity
from grace.random import Stream

S = TypeVar("S")
Sides: TypeAlias = tuple[int, int, int]  # m, l and r
DENSE = Allreduce(Identity())


def is_plain(x: Tensor) -> bool:
    """True if kernels can read x, of any shape, as it is."""
    return x.dtype is torch.float32 and x.is_contiguous()


def as_rows(factor: Tensor) -> Tensor:
    """A factor of a state, ``[m, r]`` or ``[l, r]``, as kernels can read it."""
    return factor if is_plain(factor) else factor.float().contiguous()


class LowRank(Method[S]):
    """A method of matrices. Tensors of fewer than two dimensions, and small ones, go uncompressed. The state is None or what
    is the same on all ranks.

    Subclasses are dataclasses with the fields ``rank`` (:data:`grace.contract.knobs.Count`) and ``min_rate`` (Positive).
    """

    rank: int
    min_rate: float

    @property
    def needs_shape(self) -> bool:
        return True

    def _sizes(self, like: Tensor) -> tuple[int, int, int]:
        """m, l and r."""
        m, l = like.shape[0], math.prod(like.shape[1:])
        return m, l, min(self.rank, m, l)

    def _compresses(self, like: Tensor) -> bool:
        if like.ndim < 2 or like.numel() == 0:
            return False
        m, l, r = self._sizes(like)
        return m * l > self.min_rate * r * (m + l)

    def with_memory(self) -> Method[Any]:
        return self

    def kinds(self, state: S) -> Any:
        return label_parts(state, "shared")

    def facts(self, like: Tensor) -> Facts:
        return Facts(contraction=0.0) if self._compresses(like) else DENSE.facts(like)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        sides = self._sides(like, peer.step) if self._compresses(like) else None
        if sides is None:
            return DENSE.traffic(like, peer)
        r = self._sizes(like)[2]
        return sum_costs(peer, *(AllReduce(meta_tensor(side, r, dtype=torch.float32)) for side in sides))

    def _sides(self, like: Tensor, step: int) -> tuple[int, ...] | None:
        """Lengths of the factors that are sent in this step, by default both; None: it goes uncompressed."""
        return self._sizes(like)[:2]


class Factored(LowRank[S]):
    """A method of matrices whose factors the network sums: those of a bucket go together. A tensor is a bucket of one."""

    def batches(self, like: Tensor) -> bool:
        """True for tensors of any shape, but for what goes uncompressed in its own dtype. A subclass may have an exchange of
        its own, too.
        """
        return type(self).exchange is Factored.exchange and (like.dtype is torch.float32 or self._compresses(like))

    def exchange(self, x: Tensor, state: S, peer: Peer) -> Exchange[Exchanged[S]]:
        return (yield from self.exchange_all([x], [state], Peers.of([peer])))[0]

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[S], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[S]]]:
        """All matrices and all that goes uncompressed: one pass of each kernel, one all-reduce per round."""
        if not xs:
            return Method.exchange_all(self, xs, states, peers)
        whose = Peers.of(peers)
        begun = self._begun(whose.like.step)
        sides = [self._sizes(x) if begun and state is not None else None for x, state in zip(xs, states, strict=True)]
        beside = whose.like.lent.keep_rest or any(sides)  # else they go as they are, which takes no copy
        return divide(self._average, sides, xs, states, whose, beside=beside)

    def _average(
        self, sides: Sequence[Sides | None], xs: Sequence[Tensor], states: Sequence[S], peers: Peers
    ) -> Exchange[list[Exchanged[S]]]:
        """The step of these tensors, which are contiguous and not empty: matrices with these sides, and float32 tensors that
        go uncompressed.
        """
        raise NotImplementedError

    def _begun(self, step: int) -> bool:
        """True if matrices are compressed at this step."""
        return True

    def _draw_factors(self, like: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """P ``[m, r]`` and Q ``[l, r]`` to start with, random and the same on all ranks."""
        m, l, r = self._sizes(like)
        stream = Stream(0, name, f"{m}x{l}", None, 0)
        p, q = (stream.fork(i).normal(side * r, like.device).view(side, r) for i, side in enumerate((m, l)))
        return p, q


Average: TypeAlias = Callable[
    [Sequence[Sides | None], Sequence[Tensor], Sequence[Any], Peers], Exchange[list[Exchanged[Any]]]
]


def divide(
    average: Average,
    sides: Sequence[Sides | None],
    xs: Sequence[Tensor],
    states: Sequence[Any],
    peers: Peers,
    *,
    beside: bool,
) -> Exchange[list[Exchanged[Any]]]:
    """The results of tensors of any shapes, at least one, of which those with sides are matrices: these by ``average``, which
    takes contiguous tensors that are not empty. ``beside``: whether what goes uncompressed joins them where it is float32.
    """
    at = [
        i
        for i, (x, of) in enumerate(zip(xs, sides, strict=True))
        if of is not None or (beside and x.dtype is torch.float32 and x.numel())
    ]
    if len(at) == len(xs):
        return average(sides, _contiguous(xs), states, peers)
    return _divide(average, sides, xs, states, peers, at)


def _divide(
    average: Average,
    sides: Sequence[Sides | None],
    xs: Sequence[Tensor],
    states: Sequence[Any],
    peers: Peers,
    at: Sequence[int],
) -> Exchange[list[Exchanged[Any]]]:
    """The results, of which ``average`` makes those of the tensors ``at``."""
    others = sorted({*range(len(xs))} - {*at})
    runs: list[Exchange[Any]] = [DENSE.exchange_all([xs[i] for i in others], [None] * len(others), peers.only(others))]
    if at:
        own = [sides[i] for i in at], _contiguous([xs[i] for i in at]), [states[i] for i in at]
        runs.append(average(*own, peers.only(at)))
    done = yield from together(runs, None, peers.like.lent.workspace, [others, at][: len(runs)], labels=True)
    for i, out in zip(others, done[0], strict=True):
        out.state = states[i]
    outs = dict(zip((*others, *at), itertools.chain(*done), strict=True))
    return [outs[i] for i in range(len(xs))]


def _contiguous(xs: Sequence[Tensor]) -> Sequence[Tensor]:
    """These, of any shapes, or copies of those that are not contiguous."""
    return xs if all(map(Tensor.is_contiguous, xs)) else [x.contiguous() for x in xs]
