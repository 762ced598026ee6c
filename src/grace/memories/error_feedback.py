"""Error feedback: what was not sent is added to the next gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from grace.collectives import Exchange, Traffic
from grace.compute.launching import READ
from grace.contract.knobs import Positive, Share, as_call
from grace.contract.learning_rate import Rate, choose_rate, lr_ratio, stack_rates
from grace.contract.lent import Lent
from grace.contract.loan import narrow, reads_narrow
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import Workspace
from grace.errors import CompositionError
from grace.flags.finite import choose_
from grace.kernels.finite import sum_finite
from grace.memories.base import Memory, Verb, drop_overflow_
from grace.memories.many import (
    add_many_,
    adds_many,
    lend_nothing,
    narrow_many_,
    rooms_like,
    settle_many_,
    stack_flags,
    takes_many,
    weigh_,
    weigh_many_,
)
from grace.memories.turns import Turns, find, forget, keep, may_keep
from grace.registry.recipes import register_memory

S = TypeVar("S")


class FeedbackState(NamedTuple):
    """memory: e, like the gradient, float32 or float64. inner: the method's state."""

    memory: Tensor
    inner: Any


class FollowingState(NamedTuple):
    """As :class:`FeedbackState`, with ``follow_lr``. lr: the learning rate that e is in units of; 0 while it is empty."""

    memory: Tensor
    inner: Any
    lr: Rate


@register_memory("residual")
@dataclass(frozen=True, slots=True)
class ErrorFeedback(Memory[S]):
    """Adds the compression error of one step to the gradient of the next.

    Equation 4 of the survey: ``p = beta e + gamma g``; exchange p; ``e = p - (my share of what was applied)``.

    With ``follow_lr``, ``p = beta (old lr / new lr) e + gamma g``: e stays right in units of the update, which matters
    where the learning rate changes. A step with a learning rate of 0 applies nothing and leaves e as it is.

    Args:
        method: the method to wrap; one whose error stays bounded, see :meth:`grace.Method.with_memory`.
        beta: decay of the memory, in (0, 1].
        gamma: weight of the gradient, > 0 and finite.
        follow_lr: whether e follows the learning rate, which :attr:`grace.Peer.lr` must then give.

    Where the gradient is bf16 or f16, the cast of the mean loses something that was computed and is not applied: every worker
    owes it.

    State: :class:`FeedbackState`, with ``follow_lr`` :class:`FollowingState`; e is float32, as large as the gradient.
    References: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019.
    """

    beta: Share = 1.0
    gamma: Positive = 1.0
    follow_lr: bool = field(default=False, repr=False)  # off, it does not show

    def __post_init__(self) -> None:
        Memory.__post_init__(self)
        object.__setattr__(self, "method", self.method.with_memory())

    @property
    def loses_nothing(self) -> bool:
        return self.beta == 1

    def init(self, like: Tensor) -> Any:
        memory, inner = Memory.init(self, like)
        return FollowingState(memory, inner, 0.0) if self.follow_lr else FeedbackState(memory, inner)

    def _wrap(self, verb: Verb, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        memory, inner, *lrs = state
        last = lrs[0] if lrs else None
        applied_as = peer.lent.applied_as or x.dtype
        weight = self.beta if last is None else self.beta * lr_ratio(last, peer.lr)
        plain = x.dtype == torch.float32 and x.is_contiguous()
        peer = replace(peer, lr=peer.lr if self.follow_lr else None).lending(
            keep_rest=True, spare=x if plain else None, applied_as=None
        )
        rest = peer.lent.borrow_successor(memory)  # the memory stays as it is until the exchange has succeeded
        whole = isinstance(weight, float) and self.gamma == weight == 1
        as_is = plain or (applied_as == x.dtype and reads_narrow(x))
        if as_is and self.method.adds_memory and whole:
            p, peer = x, peer.lending(memory=memory, rest=rest)
        elif plain and whole and x.device.type == "cpu":
            p = rest
            sum_finite(x, memory, rest)  # faster than torch.add; whoever uses p looks for inf and NaN
        elif isinstance(weight, Tensor) and memory.dtype is torch.float32:
            p = weigh_(rest, x, self.gamma, weight.float(), memory)
        elif isinstance(weight, Tensor):
            p = torch.mul(memory, weight, out=rest).add_(x, alpha=self.gamma)
        elif self.gamma == 1:
            p = torch.add(x, memory, alpha=weight, out=rest)
        else:
            p = torch.mul(x, self.gamma, out=rest).add_(memory, alpha=weight)
        out = yield from verb(p, inner, peer)
        if out.finite is not False:
            assert out.rest is not None, f"{as_call(self.method)} did not keep the rest"
            if out.rest.data_ptr() != rest.data_ptr() or out.rest.dtype != rest.dtype:
                rest.copy_(out.rest)
        mean, finite = narrow(out.mean, applied_as, out.finite, rest)
        if finite is not False and (last is None or peer.lr):  # with a learning rate of 0 nothing was applied
            memory, rest = choose_(finite, rest, memory), memory
            last = None if last is None else choose_rate(finite, peer.lr or 0.0, last)
        drop_overflow_(finite, memory)
        peer.lent.give_back(rest)
        after = FeedbackState(memory, out.state) if last is None else FollowingState(memory, out.state, last)
        return Exchanged(mean, None, after, finite)

    def batches(self, like: Tensor) -> bool:
        exact = type(self) is ErrorFeedback  # a subclass may exchange otherwise
        weighs = self._adds_as_is or (takes_many(like.device) and like.dtype in READ)
        if not (self.method.adds_memory and self._adds_as_is) and takes_many(like.device) and like.dtype in READ:
            like = like.new_empty(0, dtype=torch.float32)  # as what the method inside exchanges is
        return exact and weighs and self.method.batches(like)

    @property
    def _adds_as_is(self) -> bool:
        """True if memories and gradients are added without factors."""
        return self.beta == self.gamma == 1 and not self.follow_lr

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """The memories of all tensors are added as in :meth:`exchange`: by the method inside, or here by one call."""
        adds, narrow = self.method.adds_memory, False
        if not self._adds_as_is:
            return (yield from self.exchange_into(xs, xs, states, peers))
        if not isinstance(peers, Peers) or not self.batches(xs[0]) or not _are_plain(xs, peers):
            return (yield from Method.exchange_all(self, xs, states, peers))
        if not adds and not adds_many(xs[0]):
            return (yield from Method.exchange_all(self, xs, states, peers))
        lent, workspace = peers.like.lent, peers.like.lent.workspace
        turns = find(peers.names, xs, states, workspace)
        memories = [state[0] for state in states] if turns is None else turns.memories
        if turns is None and not all(map(_fits, memories, xs)):
            return (yield from Method.exchange_all(self, xs, states, peers))
        rests = [lent.borrow_successor(memory) for memory in memories] if turns is None else turns.rests
        like = replace(peers.like, lr=None, lent=Lent(keep_rest=not adds, workspace=workspace))
        if adds:
            lending = Peers(like, peers.names, memories, rests, xs)
        elif add_many_(xs, memories, rests, workspace):
            narrow = xs[0].dtype is not torch.float32
            spares = rooms_like(xs, workspace) if narrow else xs
            lending = Peers(like, peers.names, spares=spares)
        else:
            for rest in rests:
                lent.give_back(rest)
            return (yield from Method.exchange_all(self, xs, states, peers))
        outs = yield from self.method.exchange_all(xs if adds else rests, [state[1] for state in states], lending)
        if narrow:
            narrow_many_(outs, xs, rests, workspace)
        return _keep(outs, peers, states, memories, rests, turns)

    def scatter_all(
        self, rows: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """The memories of all rows are added as in :meth:`scatter`, by a method inside that adds them."""
        whose, exact = Peers.of(peers), type(self) is ErrorFeedback  # a subclass may exchange otherwise
        known = whose.like.lent.applied_as in (None, torch.float32) and all(x.dtype in READ for x in rows)
        if not (exact and known and self._adds_as_is and self.method.adds_memory):
            return (yield from Method.scatter_all(self, rows, states, peers))
        lent, workspace = whose.like.lent, whose.like.lent.workspace
        turns = find(whose.names, rows, states, workspace)
        memories = [state[0] for state in states] if turns is None else turns.memories
        if turns is None and not all(map(_fits, memories, rows)):
            return (yield from Method.scatter_all(self, rows, states, peers))
        rests = [lent.borrow_successor(memory) for memory in memories] if turns is None else turns.rests
        like = replace(whose.like, lr=None, lent=Lent(workspace=workspace))
        lending = Peers(like, whose.names, memories, rests)
        outs = yield from self.method.scatter_all(rows, [state[1] for state in states], lending)
        return _keep(outs, whose, states, memories, rests, turns)

    def exchange_into(
        self, targets: Sequence[Tensor], xs: Sequence[Tensor], states: Sequence[Any], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[Any]]]:
        """As :meth:`exchange_all`, on an accelerator: with factors, and with means that are rounded to ``targets``: xs, or
        where these are float32 tensors of their shapes, of the dtype that means are applied as.
        """
        if not isinstance(peers, Peers) or not self.batches(xs[0]) or not _are_plain(xs, peers, targets):
            return (yield from Method.exchange_all(self, xs, states, peers))
        lent, device, memories = peers.like.lent, xs[0].device, [state[0] for state in states]
        workspace, adds = lent.workspace, self.method.adds_memory
        if workspace is None or not takes_many(device) or not all(map(_fits, memories, xs)):
            return (yield from Method.exchange_all(self, xs, states, peers))
        lr, lasts = None, None
        if self.follow_lr:
            lr, lasts = peers.like.lr, stack_rates([state.lr for state in states], device)
        rests = [lent.borrow_successor(memory) for memory in memories]
        rooms = xs if xs[0].dtype is torch.float32 else rooms_like(xs, workspace)  # where means come to
        given, added = rooms if adds else rests, memories
        if not self._adds_as_is:
            ratio = 1.0 if lasts is None else lr_ratio(lasts, lr)
            weights = torch.full((len(xs),), self.beta, dtype=torch.float64, device=device).mul_(ratio).float()
            ready = weigh_many_(xs, memories, given, weights, self.gamma, workspace)
            added = lend_nothing(given, workspace)
        else:
            ready = adds or add_many_(xs, memories, rests, workspace)
        if not ready:
            for rest in rests:
                lent.give_back(rest)
            return (yield from Method.exchange_all(self, xs, states, peers))
        like = replace(peers.like, lr=lr, lent=Lent(keep_rest=not adds, workspace=workspace))
        lending = Peers(like, peers.names, added, rests, rooms) if adds else Peers(like, peers.names, spares=rooms)
        outs = yield from self.method.exchange_all(given, [state[1] for state in states], lending)
        if targets[0].dtype is not torch.float32:
            narrow_many_(outs, targets, rests, workspace)
        if lr == 0:  # nothing was applied
            torch._foreach_copy_(rests, memories)
            outs = [replace(out, rest=rest) for out, rest in zip(outs, rests, strict=True)]
        afters, spent = _settle(outs, memories, rests, workspace)
        for old in spent:
            lent.give_back(old)
        if lasts is None:
            news: Sequence[Any] = [FeedbackState(memory, out.state) for memory, out in zip(afters, outs, strict=True)]
        else:
            chosen = choose_rate(stack_flags(outs, device), lr, lasts) if lr else lasts
            rates = torch.as_tensor(chosen, dtype=torch.float64, device=device)
            both = zip(afters, outs, rates.unbind(0), strict=True)
            news = [FollowingState(memory, out.state, last) for memory, out, last in both]
        return [Exchanged(out.mean, None, new, out.finite) for out, new in zip(outs, news, strict=True)]

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return Memory.traffic(self, like, peer.lending(keep_rest=True))

    def kinds(self, state: Any) -> Any:
        _, inner, *last = state
        return ("debt", self.method.kinds(inner), *("own" for _ in last))

    def owed(self, state: Any) -> Tensor | None:
        memory: Tensor = state[0]
        inner = self.method.owed(state[1])
        return memory if inner is None else memory + inner

    def with_memory(self) -> Method[Any]:
        raise CompositionError(
            f"{as_call(self)} already has a memory; a second ErrorFeedback around it would stay empty"
        )


def _keep(
    outs: list[Exchanged[Any]],
    peers: Peers,
    states: Sequence[Any],
    memories: Sequence[Tensor],
    rests: Sequence[Tensor],
    turns: Turns | None,
) -> list[Exchanged[Any]]:
    """The results, with what is owed after them: memories and rests take turns where they can."""
    workspace = peers.like.lent.workspace
    if turns is not None and all(
        o.finite is True and o.rest is r and o.state is None for o, r in zip(outs, rests, strict=True)
    ):
        for out, after in zip(outs, turns.successors, strict=True):
            out.rest, out.state = None, after  # they are ours
        return outs
    forget(peers.names, workspace)
    afters, spent = _settle(outs, memories, rests, workspace)
    results = [
        Exchanged(out.mean, None, FeedbackState(memory, out.state), out.finite)
        for out, memory in zip(outs, afters, strict=True)
    ]
    free = [FeedbackState(rest, out.state) for out, rest in zip(outs, spent, strict=True)]
    if may_keep(free, workspace):
        assert workspace is not None
        keep(peers.names, [out.state for out in results], free, workspace)
    else:
        for rest, _ in free:
            peers.like.lent.give_back(rest)
    return results


def _settle(
    outs: Sequence[Exchanged[Any]], memories: Sequence[Tensor], rests: Sequence[Tensor], workspace: Workspace | None
) -> tuple[list[Tensor], list[Tensor]]:
    """(what is owed after the step, what is free), for each tensor: the rest and the memory, or the memory and the rest."""
    if settle_many_(outs, memories, rests, workspace):
        return list(rests), list(memories)
    afters, spent = [], []
    for out, memory, rest in zip(outs, memories, rests, strict=True):
        finite = out.finite
        if finite is not False:
            assert out.rest is not None, "the rest was to be kept"
            if out.rest is not rest and out.rest.data_ptr() != rest.data_ptr():
                rest.copy_(out.rest)
            memory, rest = choose_(finite, rest, memory), memory
        drop_overflow_(finite, memory)
        afters.append(memory)
        spent.append(rest)
    return afters, spent


def _fits(memory: Tensor, x: Tensor) -> bool:
    """True if a memory can be added to x number by number."""
    same = memory.shape == x.shape and memory.is_cpu == x.is_cpu
    return same and memory.dtype is torch.float32 and memory.is_contiguous()


def _are_plain(xs: Sequence[Tensor], peers: Peers, targets: Sequence[Tensor] | None = None) -> bool:
    """True if a method can add the memories to xs where they are, and means are applied as they come, or as targets."""
    dtype = xs[0].dtype
    applied = dtype if targets is None else targets[0].dtype
    known = peers.like.lent.applied_as in (None, applied) and all(map(Tensor.is_contiguous, targets or ()))
    alike = known and {x.dtype for x in xs} == {dtype} and all(map(Tensor.is_contiguous, xs))
    return alike and (dtype is torch.float32 or all(map(reads_narrow, xs)))
