"""Conversations of workers about a tensor, without a promise that all of them come to the same result.

A :class:`grace.Method` promises that: replicas that apply its means stay replicas, a state may have parts that are the same on
all workers, and what they owe is owed to one model, whoever owes it. So policies, memories, laws of agreement and states that
outlive a change of the number of workers ask for a method. Gossip cannot promise it: there every worker averages with its
neighbours, and has parameters of its own.
"""

from __future__ import annotations

import abc
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from torch import Tensor

from grace.collectives import Exchange, Traffic
from grace.contract.knobs import check_knobs
from grace.contract.needs import NOTHING, Needs
from grace.contract.peer import Peer
from grace.flags.finite import Flag

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
Own: TypeAlias = Literal["own"]
Kind: TypeAlias = Own | Literal["debt", "chunk", "shared", "together"]  # all but the first rest on the promise


class Outcome(Protocol[S_co]):
    """The result of a conversation for one worker; :class:`grace.Exchanged` is the result where all workers have the same."""

    @property
    def mean(self) -> Tensor:
        """The tensor that this worker goes on with, like x."""

    @property
    def state(self) -> S_co:
        """Replaces the state that went in."""

    @property
    def finite(self) -> Flag:
        """False if ``mean`` is not to be used: this worker, or one that it heard of, saw an inf or NaN."""


class Conversation(abc.ABC, Generic[S]):
    """Some of the workers average a tensor, or exchange it otherwise; each goes on with what it gets. Subclasses are frozen
    dataclasses: their fields are the knobs. A session runs it: ``session.run(talk.exchange(x, state, session.peer("w")))``.
    """

    def __post_init__(self) -> None:
        """Checks the knobs against their annotations; an override calls :func:`grace.contract.knobs.check_knobs` first."""
        check_knobs(self)

    @property
    def needs(self) -> Needs:
        """Requirements for the optimizer; a wrapper adds its own to those of what it wraps."""
        return NOTHING

    def init(self, like: Tensor) -> S:
        """The state before the first step, for tensors like this one: None, a tensor, a number, or a (named) tuple of such."""
        return None  # type: ignore[return-value]

    @abc.abstractmethod
    def exchange(self, x: Tensor, state: S, peer: Peer) -> Exchange[Outcome[S]]:
        """A step: a generator that yields collectives, the same ones on all ranks, and returns an :class:`Outcome`.

        ``x`` is donated: it may be overwritten, and ``mean`` may live in its storage. ``state`` stays as it is, whether the
        generator is left by an exception or ends: another tensor's exchange may still fail, and then it is the state. Its
        successor is returned, in storage of its own (``grace.contract.loan.succeed``).
        """

    @abc.abstractmethod
    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        """Rounds and bytes of one exchange of a tensor like this; None if they depend on the data."""

    def kinds(self, state: S) -> Any:
        """The role of each part of a state when the number of workers changes: a tree like the state. Without the promise
        it is "own" for all parts: each starts afresh.
        """
        return label_parts(state, "own")

    def owed(self, state: S) -> Tensor | None:
        """The part of the gradients that this worker has not passed on yet, in units of x; None: nothing."""
        return None


def label_parts(state: Any, kind: Kind) -> Any:
    """A tree like the state, with ``kind`` for each part; see :meth:`grace.Method.kinds`."""
    return tuple(label_parts(part, kind) for part in state) if isinstance(state, tuple) else kind
