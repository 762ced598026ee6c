"""Messages between learners and syncer. Whoever receives one checks its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from grace.decoupled.plan import Plan


# ---- from a learner -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Hello:
    """A learner comes, or comes back.

    learner: its name. start: a number that this process has drawn. run: the run that it knows, "" if none. marks: for each
    fragment the marks of its contributions, by number: those that the syncer may have received as the last.
    """

    learner: str
    start: int
    run: str
    marks: list[dict[int, int]]
    plan: Plan


@dataclass(frozen=True, slots=True)
class Seed:
    """A learner's parameters, float32: the first ones of a run. One buffer for each parameter of the fragment."""

    fragment: int
    tensors: list[bytes]


@dataclass(frozen=True, slots=True)
class Progress:
    """A learner has made a step.

    step: how many there were. seconds: what one takes. serials, steps: for each fragment the last update that has come, and
    the steps since then.
    """

    step: int
    seconds: float
    serials: list[int]
    steps: list[int]


@dataclass(frozen=True, slots=True)
class Contribution:
    """The movement of a fragment since a learner got it, and what that learner owed before, compressed.

    number: of this learner's contributions of the fragment. mark: which no other contribution of this learner has. round: of
    the pull that it answers. steps, tokens: since it got the fragment. debt: the norm of what it owes from now on. finite: if
    not, nothing was sent, and nothing was counted.
    """

    fragment: int
    round: int
    number: int
    mark: int
    steps: int
    tokens: int
    debt: float
    finite: bool
    wires: list[bytes]


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A learner goes for good."""


# ---- from the syncer ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Welcome:
    """A learner may take part.

    run: of this syncer. received, marks: for each fragment how many of this learner's contributions count, and the mark of
    the last. known: whether the learner has sent these; then what it owes counts. seed: whether its parameters are wanted,
    since there are none.
    """

    run: str
    received: list[int]
    marks: list[int]
    known: list[bool]
    seed: bool


@dataclass(frozen=True, slots=True)
class Pull:
    """A learner's contribution of a fragment is wanted."""

    fragment: int
    round: int


@dataclass(frozen=True, slots=True)
class Update:
    """A fragment has been updated.

    serial: of the updates of this fragment for this learner, since it came. full: whether the wires are the fragment itself,
    float32; else they are what is to be added to what the learner holds. saved: contributions of this learner that a death of
    the syncer does not undo.
    """

    fragment: int
    serial: int
    full: bool
    saved: int
    wires: list[bytes]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A learner may not take part. again: whether it may come back at once, as one whose message was damaged."""

    reason: str
    again: bool = False


FromLearner: TypeAlias = "Hello | Seed | Progress | Contribution | Goodbye"
FromSyncer: TypeAlias = "Welcome | Pull | Update | Refusal"
