"""The state of each learner at the syncer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from grace.decoupled.codec import DOWN, UP, FragmentCodec
from grace.decoupled.plan import Plan
from grace.decoupled.saved import read_number, read_tensors
from grace.run.saved import read_count

SILENT = 8  # steps without a report after which nobody waits for a learner


@dataclass(slots=True)
class Inbox:
    """Contributions of one learner to one fragment that have come and are not merged: their sum ``[n]`` for each parameter."""

    tensors: list[Tensor]
    steps: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Share:
    """The state of one fragment of one learner, at the syncer.

    received: contributions that count; mark: of the last; saved: those of them that are in a checkpoint; saving: those that
    are in the one which is being written. debt: the norm of what it owed, as it said. inbox: None if there is nothing. held:
    what the learner holds when all that was sent has come, None where that is the fragment itself. serial: of the last update
    that was sent; seen: of the last that has come; behind: whether another is due as soon as that has come. steps: since
    then. asked: whether it was asked for a contribution, and has not answered.
    """

    up: FragmentCodec
    down: FragmentCodec
    received: int = 0
    mark: int = 0
    saved: int = 0
    debt: float = 0.0
    inbox: Inbox | None = None
    held: list[Tensor] | None = None
    serial: int = 0
    seen: int = 0
    behind: bool = False
    steps: int = 0
    asked: bool = False
    saving: int = 0

    def forget_link(self) -> None:
        """The connection is gone: what was sent over it may not have come."""
        self.held = None
        self.serial = self.seen = self.steps = 0
        self.behind = self.asked = False

    @property
    def current(self) -> bool:
        """True if the learner has what was sent last."""
        return self.serial > 0 and self.seen == self.serial


@dataclass(slots=True)
class Member:
    """A learner, whether it is there (``link``) or not. heard: when it last said something, or went. seconds: of its steps."""

    name: str
    shares: list[Share]
    link: int | None = None
    start: int = 0
    heard: float = 0.0
    step: int = 0
    seconds: float = 0.0
    known: bool = False

    @classmethod
    def of(cls, name: str, plan: Plan) -> Member:
        """A learner that nobody knows yet."""
        shares = []
        for places in plan.fragments:
            names, shapes = [plan.names[i] for i in places], [plan.shapes[i] for i in places]
            up = FragmentCodec(plan.up, names, shapes, plan.seed, name, UP)
            shares.append(Share(up, FragmentCodec(plan.down, names, shapes, plan.seed, name, DOWN)))
        return cls(name, shares)

    def silent(self, now: float) -> bool:
        """True if its steps take much longer than they did."""
        return self.seconds > 0 and now - self.heard > SILENT * self.seconds

    @property
    def debt(self) -> float:
        """The norm of what it owes, as it last said."""
        return math.hypot(*(share.debt for share in self.shares))

    def state_dict(self) -> dict[str, Any]:
        """The part that outlives a connection."""
        return {
            "known": self.known,
            "shares": [
                {
                    "received": share.received, "mark": share.mark, "debt": share.debt,
                    "inbox": None if share.inbox is None else [x.clone() for x in share.inbox.tensors],
                    "work": [0, 0] if share.inbox is None else [share.inbox.steps, share.inbox.tokens],
                }
                for share in self.shares
            ],
        }  # fmt: skip

    def load(self, state: dict[str, Any], sizes: Sequence[Sequence[int]], now: float) -> None:
        """Takes over what :meth:`state_dict` gave, under :func:`~grace.decoupled.saved.reading`; ``sizes``: numbers of each
        parameter, by fragment.
        """
        self.known, self.heard = bool(state["known"]), now
        for share, saved, numbers in zip(self.shares, state["shares"], sizes, strict=True):
            share.received = share.saved = read_count(saved["received"], "received")
            share.mark, share.debt = int(saved["mark"]), read_number(saved["debt"], "debt")
            steps, tokens = (read_count(n, "work") for n in saved["work"])
            if saved["inbox"] is not None:
                share.inbox = Inbox(read_tensors(saved["inbox"], numbers, "inbox"), steps, tokens)


@dataclass(slots=True)
class Round:
    """A merge of a fragment, from the first learner that is ready to the update.

    number: of the merges of this fragment so far. first: when the first learner was ready. closes: when the grace window ends,
    None before the quorum is there. pulled: when learners were last asked. asked, answered: their names.
    """

    number: int = 0
    first: float | None = None
    closes: float | None = None
    pulled: float | None = None
    asked: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)

    def begin(self) -> None:
        """The next one."""
        self.number += 1
        self.answered = set()
        self.wait()

    def wait(self) -> None:
        """The same one, from its beginning; who has answered has."""
        self.first = self.closes = self.pulled = None
        self.asked = set()
