"""The syncer: merges fragments of whoever has reported, and tells all who are there. No network, no thread, no clock.

Letters: Θ are the parameters; h_m is what learner m holds of them; M learners, of which K are the quorum.

For each fragment a round goes through these states::

    waiting     until K learners have made H steps since they got the fragment
    window      at most ``margin`` of the slack longer, for more of them:
                slack = overlap steps * seconds of a step - (time until the quorum was there + time of an exchange)
    pulling     all who have made a step are asked, and answer when they have ended theirs
    merging     Θ moves; each learner gets its difference to h_m, compressed; what is not sent of it is sent the next time

A learner that does not answer in time costs nobody anything: its contribution counts in the next round.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grace.decoupled.codec import dense_bytes, read_dense
from grace.decoupled.members import Inbox, Member, Round
from grace.decoupled.merging import merge, outer_step_, weigh
from grace.decoupled.messages import (
    Contribution,
    FromLearner,
    FromSyncer,
    Goodbye,
    Hello,
    Progress,
    Pull,
    Refusal,
    Seed,
    Update,
    Welcome,
)
from grace.decoupled.plan import Plan
from grace.decoupled.saved import read_number, read_tensors, read_text, reading
from grace.decoupled.settings import SyncerSettings, SyncerStats
from grace.errors import AgreementError, PayloadError, StateError
from grace.run.saved import read_count

Sent: TypeAlias = "list[tuple[int, FromSyncer]]"
_FORMAT, _KIND = 1, "grace-syncer"
_SMOOTHING = 0.25  # of the time of an exchange
_AGAIN = 2.0  # an exchange may take so many times as long as those before
_MOST_WORK = 1 << 53  # tokens, or steps, in one contribution
_BUSY = 1e9  # seconds of a step that nobody believes


class Syncer:
    """The protocol of the syncer.

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
