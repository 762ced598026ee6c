"""The syncer: merges fragments of whoever has reported, and tells all who are there. No network, no thread, no clock.

Letters: Θ are the parameters; h_m is what learner m holds of them; M learners, of which K are the quorum.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from grace.decoupled.codec import read_dense
from grace.decoupled.members import Inbox, Member, Round
from grace.decoupled.messages import (
    Contribution,
    FromLearner,
    Goodbye,
    Hello,
    Progress,
    Refusal,
    Seed,
    Welcome,
)
from grace.decoupled.plan import Plan
from grace.decoupled.rounds import MergingRounds, Sent
from grace.decoupled.saved import read_number, read_tensors, read_text, reading
from grace.decoupled.settings import SyncerStats
from grace.errors import AgreementError, PayloadError, StateError
from grace.run.saved import read_count

_FORMAT, _KIND = 1, "grace-syncer"
_MOST_WORK = 1 << 53  # tokens, or steps, in one contribution
_BUSY = 1e9  # seconds of a step that nobody believes


class Syncer(MergingRounds):
    """The protocol of the syncer.

    Args:
        settings, run, keeps: as for :class:`~grace.decoupled.rounds.MergingRounds`.
    """

    # ---- what happens -----------------------------------------------------------------------------------------------
    def receive(self, link: int, message: FromLearner, now: float) -> Sent:
        """Takes a message that came over a connection at a time; returns what is to be sent, and over which.

        A learner that must not take part gets a :class:`Refusal`, after which its connection is to be closed.
        """
        try:
            return self._take(link, message, now)
        except (PayloadError, AgreementError) as error:
            self.stats.refused += 1
            return [(link, Refusal(str(error), again=not isinstance(error, AgreementError))), *self.left(link, now)]

    def _take(self, link: int, message: FromLearner, now: float) -> Sent:
        if isinstance(message, Hello):
            return self._hello(link, message, now)
        name = self._links.get(link)
        if name is None:
            raise PayloadError(f"a {type(message).__name__} before any Hello")
        member = self.members[name]
        member.heard = max(member.heard, now)
        if isinstance(message, Seed):
            return self._seed(member, message)
        if isinstance(message, Progress):
            self._report(member, message)
            return self._catch_up(member) + self.tick(now)
        if isinstance(message, Contribution):
            return self._contribution(member, message) + self.tick(now)
        assert isinstance(message, Goodbye)
        sent = self.left(link, now)
        self._write_off(member)
        return sent

    def left(self, link: int, now: float) -> Sent:
        """A connection is gone."""
        name = self._links.pop(link, None)
        if name is None:
            return []
        self.stats.left += 1
        member = self.members[name]
        member.link, member.heard = None, now
        for share in member.shares:
            share.forget_link()
        if not self._links:
            for current in self._rounds:
                current.wait()
        if self._seeding == name:
            self._seeding = None
            return self._ask_for_parameters()
        return self.tick(now)

    def tick(self, now: float) -> Sent:
        """Does what is due at this time; see :meth:`due`."""
        for member in list(self.members.values()):
            if member.link is None and now - member.heard >= self.settings.forget_after:
                self._write_off(member)
        sent: Sent = []
        for fragment in range(len(self._rounds)):
            if self._has(fragment):
                sent += self._advance(fragment, now)
        return sent

    def due(self, now: float) -> float | None:
        """The time at which :meth:`tick` is to be called, unless a message comes before; None: not before one comes."""
        times = [m.heard + self.settings.forget_after for m in self.members.values() if m.link is None]
        for current in self._rounds:
            if current.pulled is not None:
                times.append(self._gives_up(current))
            elif current.closes is not None:
                times.append(current.closes)
        return min((time for time in times if time > now), default=None)

    def saved(self) -> None:
        """The last :meth:`state_dict` is where the death of this process does not reach it."""
        for member in self.members.values():
            for share in member.shares:
                share.saved = share.saving

    # ---- who is there -----------------------------------------------------------------------------------------------
    def _hello(self, link: int, hello: Hello, now: float) -> Sent:
        name = hello.learner
        if link in self._links:
            raise PayloadError(f"a second Hello of learner {name!r}")
        if not 0 < len(name) <= 200:
            raise PayloadError("a learner's name must have 1 to 200 characters")
        if self.plan is None:
            hello.plan.check(f"learner {name!r}")
            self._adopt(hello.plan)
        assert self.plan is not None
        if hello.plan != self.plan:
            self.plan.refuse_other(hello.plan, f"learner {name!r}")
        if len(hello.marks) != len(self._rounds):
            raise PayloadError(f"learner {name!r} counts contributions of {len(hello.marks)} fragments")
        member = self.members.get(name)
        sent: Sent = []
        if member is None or member.link is None:
            if len(self._links) >= self.settings.learners:
                raise AgreementError(
                    f"{self.settings.learners} learners are there, {', '.join(sorted(self._links.values()))[:200]}: {name!r} "
                    "is one too many; start the syncer with more learners"
                )
        elif member.start == hello.start:
            sent += self._drop(member.link, "this learner has come over another connection", now)
        else:
            sent += self._drop(member.link, f"another process has come as learner {name!r}", now)
        member = self.members.setdefault(name, member or Member.of(name, self.plan))
        knows = member.known and hello.run == self.run
        known = [
            knows and marks.get(share.received) == share.mark
            for share, marks in zip(member.shares, hello.marks, strict=True)
        ]
        if member.known and not all(known):  # it comes without what it owed
            self.stats.written_off += 1
            pairs = [share for share, same in zip(member.shares, known, strict=True) if not same]
            self.stats.written_off_debt += math.hypot(*(share.debt for share in pairs))
            for share in pairs:
                share.debt = 0.0
        self.stats.returned += member.known
        self.stats.joined += not member.known
        member.link, member.start, member.heard, member.known = link, hello.start, now, True
        member.seconds = 0.0
        self._links[link] = name
        asks = self._seeding is None and not self.parameters
        if asks:
            self._seeding = name
        sent.append((link, self._welcome(member, known, asks)))
        for fragment in range(len(self._rounds)):
            if self._has(fragment):
                sent += self._send(member, fragment)
        return sent

    def _welcome(self, member: Member, known: list[bool], seed: bool) -> Welcome:
        received, marks = [share.received for share in member.shares], [share.mark for share in member.shares]
        return Welcome(self.run, received, marks, known, seed)

    def _drop(self, link: int, why: str, now: float) -> Sent:
        sent: Sent = [(link, Refusal(why))]
        return sent + self.left(link, now)

    def _write_off(self, member: Member) -> None:
        """It is gone for good: what it owes is written off; what it has sent counts, and is merged with the next."""
        if member.known:
            self.stats.written_off += 1
            self.stats.written_off_debt += member.debt
        member.known = False
        for share in member.shares:
            share.debt = 0.0
        if member.link is None and all(share.inbox is None for share in member.shares):
            del self.members[member.name]

    # ---- the first parameters ---------------------------------------------------------------------------------------
    def _adopt(self, plan: Plan) -> None:
        sizes = [math.prod(shape) for shape in plan.shapes]
        try:
            self._momentum = [torch.zeros(n, dtype=torch.float32, device="cpu") for n in sizes]
        except RuntimeError as error:
            raise AgreementError(
                f"the syncer has no memory for a model of {sum(sizes):,} numbers: it holds each twice, in float32"
            ) from error
        self._theta = [None] * len(plan.names)
        self._rounds = [Round() for _ in plan.fragments]
        self.plan = plan  # last: who finds it finds the others

    def _ask_for_parameters(self) -> Sent:
        """Asks the next learner that is there: the first one went before it had sent all."""
        if self.parameters or not self._links:
            return []
        link, name = next(iter(self._links.items()))
        self._seeding = name
        return [(link, self._welcome(self.members[name], [False] * len(self._rounds), True))]

    def _seed(self, member: Member, seed: Seed) -> Sent:
        assert self.plan is not None
        if self._seeding != member.name or not 0 <= seed.fragment < len(self._rounds):
            raise PayloadError(
                f"learner {member.name!r} sent parameters of fragment {seed.fragment} that nobody has asked for"
            )
        places = self.plan.fragments[seed.fragment]
        if len(seed.tensors) != len(places):
            raise PayloadError(
                f"learner {member.name!r} sent {len(seed.tensors)} tensors; the fragment has {len(places)}"
            )
        new = [
            read_dense(data, self._momentum[place].numel(), f"learner {member.name!r}: {self.plan.names[place]!r}")
            for place, data in zip(places, seed.tensors, strict=True)
        ]
        for place, x in zip(places, new, strict=True):
            self._theta[place] = x
        if self.parameters:
            self._seeding = None
        return [answer for other in self.present for answer in self._send(other, seed.fragment)]

    # ---- up ---------------------------------------------------------------------------------------------------------
    def _report(self, member: Member, report: Progress) -> None:
        if len(report.serials) != len(self._rounds) or len(report.steps) != len(self._rounds):
            raise PayloadError(f"learner {member.name!r} reports {len(report.steps)} fragments of {len(self._rounds)}")
        if not 0 <= report.seconds < _BUSY or not 0 <= report.step <= _MOST_WORK:
            raise PayloadError(f"learner {member.name!r} reports step {report.step}, of {report.seconds} seconds")
        member.step = report.step
        if report.seconds:
            member.seconds = report.seconds
        for share, serial, steps in zip(member.shares, report.serials, report.steps, strict=True):
            if not share.seen <= serial <= share.serial or not 0 <= steps <= _MOST_WORK:
                raise PayloadError(
                    f"learner {member.name!r} reports update {serial} of {share.serial}, and {steps} steps"
                )
            share.seen = serial
            share.steps = steps if serial == share.serial else 0

    def _contribution(self, member: Member, message: Contribution) -> Sent:
        if not 0 <= message.fragment < len(self._rounds):
            raise PayloadError(f"learner {member.name!r} names fragment {message.fragment} of {len(self._rounds)}")
        share, current = member.shares[message.fragment], self._rounds[message.fragment]
        if not share.asked:
            raise PayloadError(f"learner {member.name!r} sent fragment {message.fragment}, for which it was not asked")
        if not (0 <= message.steps <= _MOST_WORK and 0 <= message.tokens <= _MOST_WORK and math.isfinite(message.debt)):
            raise PayloadError(f"learner {member.name!r} counts {message.tokens} tokens in {message.steps} steps")
        if message.debt < 0:
            raise PayloadError(f"learner {member.name!r} owes {message.debt}")
        share.debt = message.debt
        if not message.finite:
            share.asked = False
            self.stats.nonfinite += 1
            return self._send(member, message.fragment)  # in place of what it has
        if message.number != share.received + 1:
            raise PayloadError(f"learner {member.name!r} sent contribution {message.number} after {share.received}")
        delta = [torch.zeros_like(x) for x in self._fragment(message.fragment, self._momentum)]
        share.up.decode_add_(message.wires, delta, message.number, f"learner {member.name!r}")
        share.received, share.mark, share.asked = message.number, message.mark, False
        in_time = message.round == current.number
        if in_time:
            current.answered.add(member.name)
        self.stats.contributions += 1
        self.stats.late += not in_time
        self.stats.bytes_up += sum(map(len, message.wires))
        if share.inbox is None:
            share.inbox = Inbox(delta, message.steps, message.tokens)
            return []
        for total, x in zip(share.inbox.tensors, delta, strict=True):
            total.add_(x)
        share.inbox.steps += message.steps
        share.inbox.tokens += message.tokens
        return []

    # ---- checkpoints ------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """All that outlives this process: tensors, numbers and texts, as ``torch.load(weights_only=True)`` reads them.

        h_m is not in it: whoever comes back gets its fragments whole, and then nothing is owed to it.
        """
        for member in self.members.values():
            for share in member.shares:
                share.saving = share.received
        return {
            "format": _FORMAT, "kind": _KIND, "run": self.run, "plan": None if self.plan is None else asdict(self.plan),
            "theta": [None if x is None else x.clone() for x in self._theta],
            "momentum": [x.clone() for x in self._momentum],
            "rounds": [[current.number, *sorted(current.answered)] for current in self._rounds],
            "members": {name: member.state_dict() for name, member in self.members.items()},
            "exchange": self._exchange, "stats": asdict(self.stats),
        }  # fmt: skip

    def load_state_dict(self, saved: Any, now: float) -> None:
        """Goes on where ``saved`` stopped, at a time at which no learner is there.

        Raises:
            StateError: it is not a state of a syncer, or one that cannot go on here. Nothing has changed then.
        """
        if not isinstance(saved, dict) or saved.get("kind") != _KIND or saved.get("format") != _FORMAT:
            raise StateError("not the state of a syncer of this version")
        if self.plan is not None:
            raise StateError("this syncer has begun already; load a state into a new one")
        theta: list[Tensor | None] = []
        momentum: list[Tensor] = []
        rounds: list[Round] = []
        members: dict[str, Member] = {}
        with reading("a syncer"):
            run, stats = read_text(saved["run"], "run"), SyncerStats(**saved["stats"])
            for key, value in asdict(stats).items():
                read_number(value, key)
            exchange = None if saved["exchange"] is None else read_number(saved["exchange"], "exchange")
            plan = None if saved["plan"] is None else Plan(**saved["plan"])
            if plan is not None:
                plan.check("the state")
                sizes = [math.prod(shape) for shape in plan.shapes]
                momentum = read_tensors(saved["momentum"], sizes, "momentum")
                for x, n in zip(saved["theta"], sizes, strict=True):
                    theta.append(None if x is None else read_tensors([x], [n], "theta")[0])
                for (number, *answered), _ in zip(saved["rounds"], plan.fragments, strict=True):
                    names = {read_text(name, "name") for name in answered}
                    rounds.append(Round(read_count(number, "round"), answered=names))
                for name, state in saved["members"].items():
                    members[name] = Member.of(read_text(name, "name"), plan)
                    members[name].load(state, [plan.sizes(p) for p in range(len(plan.fragments))], now)
        self.run, self.stats, self._exchange, self.plan = run, stats, exchange, plan
        self._theta, self._momentum, self._rounds, self.members = theta, momentum, rounds, members
