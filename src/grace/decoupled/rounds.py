"""The rounds of a syncer: when fragments are asked for, merged, and told to the learners that are there.

Letters: as in :mod:`grace.decoupled.syncer`.

For each fragment a round goes through these states::

    waiting     until K learners have made H steps since they got the fragment
    window      at most ``margin`` of the slack longer, for more of them:
                slack = overlap steps * seconds of a step - (time until the quorum was there + time of an exchange)
    pulling     all who have made a step are asked, and answer when they have ended theirs
    merging     Θ moves; each learner gets its difference to h_m, compressed; what is not sent of it is sent the next time

A learner that does not answer in time costs nobody anything: its contribution counts in the next round.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import Tensor

from grace.decoupled.codec import dense_bytes
from grace.decoupled.members import Member, Round
from grace.decoupled.merging import merge, outer_step_, weigh
from grace.decoupled.messages import FromSyncer, Pull, Update
from grace.decoupled.plan import Plan
from grace.decoupled.settings import SyncerSettings, SyncerStats

Sent: TypeAlias = "list[tuple[int, FromSyncer]]"
_SMOOTHING = 0.25  # of the time of an exchange
_AGAIN = 2.0  # an exchange may take so many times as long as those before


class MergingRounds:
    """The part of a syncer that holds the parameters, and merges. To derive from.

    Args:
        settings: its own; what it has in common with learners comes with the first of them.
        run: a text that no other run has; a checkpoint's replaces it.
        keeps: whether somebody saves checkpoints. Then a learner keeps its contributions until one has them.
    """

    def __init__(self, settings: SyncerSettings, run: str, keeps: bool = False):
        self.settings, self.run, self.keeps = settings, run, keeps
        self.stats = SyncerStats()
        self.plan: Plan | None = None
        self.members: dict[str, Member] = {}
        self._links: dict[int, str] = {}
        self._theta: list[Tensor | None] = []  # [n] each, by place in the plan; None until it has come
        self._momentum: list[Tensor] = []
        self._rounds: list[Round] = []
        self._seeding: str | None = None  # the learner whose parameters are the first
        self._exchange: float | None = None  # seconds from a pull to its last answer

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Θ by name, float32; empty before a learner has come."""
        if self.plan is None or any(x is None for x in self._theta):
            return {}
        named = zip(self.plan.names, self._theta, self.plan.shapes, strict=True)
        return {name: x.view(shape) for name, x, shape in named if x is not None}

    @property
    def present(self) -> list[Member]:
        """The learners that are there."""
        return [self.members[name] for name in self._links.values()]

    def _has(self, fragment: int) -> bool:
        assert self.plan is not None
        return all(self._theta[place] is not None for place in self.plan.fragments[fragment])

    def _fragment(self, fragment: int, of: list[Any]) -> list[Any]:
        assert self.plan is not None
        return [of[place] for place in self.plan.fragments[fragment]]

    # ---- down -------------------------------------------------------------------------------------------------------
    def _send(self, member: Member, fragment: int) -> Sent:
        """An update of this fragment for this learner: whole where it holds nothing that is known, or nothing is lost."""
        share, theta = member.shares[fragment], self._fragment(fragment, self._theta)
        if member.link is None:
            return []
        share.serial += 1
        share.behind = False
        full = share.held is None
        if share.held is None:
            wires = [dense_bytes(x) for x in theta]
            share.held = None if share.down.exact else [x.clone() for x in theta]
        else:
            wires = share.down.encode_([x - h for x, h in zip(theta, share.held, strict=True)], share.serial)
            share.down.decode_add_(wires, share.held, share.serial, "this syncer")
        self.stats.bytes_down += sum(map(len, wires))
        saved = share.saved if self.keeps else share.received
        return [(member.link, Update(fragment, share.serial, full, saved, wires))]

    def _catch_up(self, member: Member) -> Sent:
        """Sends what a learner has missed while an earlier update was on its way."""
        sent: Sent = []
        for fragment, share in enumerate(member.shares):
            if share.behind and share.current:
                sent += self._send(member, fragment)
        return sent

    # ---- rounds -----------------------------------------------------------------------------------------------------
    def _advance(self, fragment: int, now: float) -> Sent:
        """Takes the round of a fragment as far as it goes at this time."""
        current = self._rounds[fragment]
        if current.pulled is None:
            return self._pull(fragment, now) if self._opens(fragment, now) else []
        waited_for = [m for m in self.present if m.name in current.asked and m.shares[fragment].asked]
        if waited_for and now < self._gives_up(current) and not all(member.silent(now) for member in waited_for):
            return []
        if len(current.answered) >= self.settings.quorum:
            return self._merge(fragment, now)
        return self._pull(fragment, now)  # some have gone, or do not answer: others come in their place

    def _opens(self, fragment: int, now: float) -> bool:
        """True if nobody is waited for any longer before the fragments are pulled."""
        assert self.plan is not None
        current = self._rounds[fragment]
        need = self.plan.every if current.number else self.plan.first_due(fragment)
        shares = [(member, member.shares[fragment]) for member in self.present]
        ready = [member for member, share in shares if share.current and share.steps >= need]
        if ready and current.first is None:
            current.first = now
        if len(current.answered.union(member.name for member in ready)) < self.settings.quorum:
            return False
        if current.closes is None:
            waited = 0.0 if current.first is None else now - current.first
            slack = self._budget() - (waited + (self._exchange or 0.0))
            current.closes = now + max(0.0, self.settings.margin * slack)
        awake = [member for member, share in shares if share.serial and not member.silent(now)]
        return now >= current.closes or len(ready) >= len(awake)

    def _pull(self, fragment: int, now: float) -> Sent:
        """Asks all who have made a step, and were not asked."""
        current, sent = self._rounds[fragment], []
        for member in self.present:
            share = member.shares[fragment]
            if share.current and share.steps and not share.asked and member.name not in current.answered:
                assert member.link is not None
                share.asked = True
                current.asked.add(member.name)
                sent.append((member.link, Pull(fragment, current.number)))
        if sent:
            current.pulled = now
        elif current.pulled is None and len(current.answered) >= self.settings.quorum:
            return self._merge(fragment, now)
        return [*sent]

    def _budget(self) -> float:
        """Seconds that an exchange may take, by the plan: steps of the fastest learner."""
        assert self.plan is not None
        return self.plan.overlap * min((member.seconds for member in self.present if member.seconds), default=0.0)

    def _gives_up(self, current: Round) -> float:
        """The time until which learners that were asked, and have not answered, are waited for."""
        assert current.pulled is not None
        usual = self.settings.timeout if self._exchange is None else max(self._budget(), _AGAIN * self._exchange)
        return current.pulled + usual

    def _merge(self, fragment: int, now: float) -> Sent:
        """Moves Θ by all contributions that have come, and tells those who are there."""
        current = self._rounds[fragment]
        inboxes = [share.inbox for m in self.members.values() if (share := m.shares[fragment]).inbox is not None]
        given = [inbox for inbox in inboxes if inbox is not None]
        assert self.plan is not None
        if given:
            weights = weigh([(inbox.tokens, inbox.steps) for inbox in given])
            plain = self._fragment(fragment, self.plan.plain)
            delta = merge([inbox.tensors for inbox in given], weights, plain, self.settings.average == "radial")
            theta, momenta = self._fragment(fragment, self._theta), self._fragment(fragment, self._momentum)
            outer_step_(theta, momenta, delta, self.settings.lr, self.settings.momentum)
            self.stats.merges += 1
            self.stats.alone += len(current.answered) < len(self._links)
        if current.pulled is not None:
            took = now - current.pulled
            self._exchange = took if self._exchange is None else self._exchange + _SMOOTHING * (took - self._exchange)
        current.begin()
        sent: Sent = []
        for member in self.members.values():
            share = member.shares[fragment]
            share.inbox = None
            if share.current:
                sent += self._send(member, fragment)
            elif share.serial:
                share.behind = True
        return sent
