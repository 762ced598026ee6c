"""A learner: the fragments that it holds, its error feedback, and its answers to the syncer. No network, no clock, no thread.

Letters: Δ is how far the parameters have moved since the fragment came; e, float32, is what was not sent of it; the reference
is the fragment as it came, float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace.decoupled.codec import DOWN, UP, FragmentCodec, dense_bytes, read_dense
from grace.decoupled.fragment import Fragment
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
from grace.decoupled.saved import read_text, reading
from grace.errors import AgreementError, PayloadError, StateError, out_of_range
from grace.run.saved import check_fits, read_count

SYNCER = "the syncer"
_FORMAT = 1
_PATTERN = "grace-learner"
_UNSAVED = 64  # contributions of a fragment that a learner keeps, in case that the syncer dies


@dataclass(slots=True)
class LearnerStats:
    """Totals of a learner.

    steps: of its optimizer. updates, contributions: fragments that it has got and sent. bytes_sent, bytes_received: of their
    wires. returns: how often it was welcomed. returned: contributions that a syncer did not have, and that were added to e
    again. lost: those that it did not have, and that were gone. written_off: the norm of what it no longer owes, since the
    syncer did not know its base. nonfinite: fragments that it did not send, for an inf or NaN.
    """

    steps: int = 0
    updates: int = 0
    contributions: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    returns: int = 0
    returned: int = 0
    lost: int = 0
    written_off: float = 0.0
    nonfinite: int = 0


class Learner:
    """The protocol of one learner.

    Args:
        name: which no other learner has.
        parameters: what it trains, of any shapes; updates are written into them.
        plan: the same for all learners.
        tokens_per_step: what a step counts, >= 1; it may be changed at any time.
        start: a number that each process draws.
    """

    def __init__(
        self, name: str, parameters: Mapping[str, Tensor], plan: Plan, *, tokens_per_step: int = 1, start: int = 0
    ):
        if not isinstance(name, str) or not 0 < len(name) <= 200:
            raise out_of_range("decoupled", "name", name, "1 to 200 characters")
        self.name, self.plan, self._start = name, plan, start
        self.tokens_per_step = tokens_per_step
        self.run, self._made, self._gone = "", 0, False
        self.welcome = False  # whether the syncer has let it take part, and is there
        self.stats = LearnerStats()
        self._parameters = dict(parameters)
        self._fragments = []
        for number, places in enumerate(plan.fragments):
            names, shapes = [plan.names[i] for i in places], [plan.shapes[i] for i in places]
            up = FragmentCodec(plan.up, names, shapes, plan.seed, name, UP)
            down = FragmentCodec(plan.down, names, shapes, plan.seed, name, DOWN)
            self._fragments.append(Fragment(names, plan.sizes(number), up, down))

    @property
    def tokens_per_step(self) -> int:
        """Tokens, or samples, of one step."""
        return self._tokens_per_step

    @tokens_per_step.setter
    def tokens_per_step(self, tokens: int) -> None:
        if type(tokens) is not int or tokens < 1:
            raise out_of_range("decoupled", "tokens_per_step", tokens, "a whole number >= 1")
        self._tokens_per_step = tokens

    @property
    def synchronized(self) -> bool:
        """True if every fragment has come since the syncer was last there."""
        return self.welcome and not any(fragment.returning for fragment in self._fragments)

    def merged(self) -> dict[str, Tensor] | None:
        """The parameters as they last came, float32, by name; None before all have."""
        out = {}
        for fragment in self._fragments:
            if fragment.reference is None:
                return None
            for name, x in zip(fragment.names, fragment.reference, strict=True):
                out[name] = x.view(self._parameters[name].shape).clone()
        return {name: out[name] for name in self.plan.names}

    # ---- what happens -----------------------------------------------------------------------------------------------
    def hello(self) -> Hello:
        """The first message over a new connection."""
        self.disconnected()
        self._gone = False
        return Hello(self.name, self._start, self.run, [dict(f.marks) for f in self._fragments], self.plan)

    def disconnected(self) -> None:
        """The syncer is not there: training goes on."""
        self.welcome = False

    def step(self, seconds: float) -> list[FromLearner]:
        """The optimizer has made a step, which took so many seconds."""
        self.stats.steps += 1
        for fragment in self._fragments:
            fragment.steps += 1
            fragment.tokens += self.tokens_per_step
        return [self._report(seconds)] if self.welcome else []

    def receive(self, message: FromSyncer, seconds: float = 0.0) -> list[FromLearner]:
        """Takes a message of the syncer, between two steps; returns the answers. ``seconds``: what a step takes.

        Raises:
            PayloadError: it is not such as a syncer sends. The fragment that it was for counts as not there: say hello again.
            AgreementError: the syncer refuses this learner.
        """
        if self._gone:
            return []
        if isinstance(message, Refusal):
            self.disconnected()
            kind = PayloadError if message.again else AgreementError
            raise kind(f"{SYNCER} refuses learner {self.name!r}: {message.reason}")
        if isinstance(message, Welcome):
            return self._welcome(message)
        if not self.welcome:
            raise PayloadError(f"{SYNCER} sent {type(message).__name__} before it welcomed learner {self.name!r}")
        if not 0 <= message.fragment < len(self._fragments):
            raise PayloadError(f"{SYNCER} names fragment {message.fragment} of {len(self._fragments)}")
        if isinstance(message, Pull):
            return self._contribute(message)
        self._update(message)
        return [self._report(seconds)]

    def goodbye(self) -> list[FromLearner]:
        """Says that the learner goes for good; what it owes is written off."""
        answer: list[FromLearner] = [Goodbye()] if self.welcome else []
        self.disconnected()
        self._gone = True
        return answer

    def _report(self, seconds: float) -> Progress:
        serials = [fragment.serial for fragment in self._fragments]
        return Progress(self.stats.steps, seconds, serials, [0 if f.returning else f.steps for f in self._fragments])

    # ---- it comes, or comes back ------------------------------------------------------------------------------------
    def _welcome(self, message: Welcome) -> list[FromLearner]:
        counts = message.received, message.marks, message.known
        if any(len(column) != len(self._fragments) for column in counts) or min(message.received) < 0:
            raise PayloadError(
                f"{SYNCER} counts contributions of {len(message.received)} fragments, not {len(self._fragments)}"
            )
        for fragment, received, mark, known in zip(self._fragments, *counts, strict=True):
            fragment.returning, fragment.serial = True, 0
            fragment.keeps = known and message.run == self.run and fragment.marks.get(received) == mark
            if fragment.keeps:
                self._take_back(fragment, received)
            else:
                self.stats.written_off += fragment.norm
                fragment.debt, fragment.unsaved, fragment.work = None, {}, {}
                fragment.steps_back = fragment.tokens_back = 0
            fragment.sent = received
            fragment.marks = {n: other for n, other in fragment.marks.items() if n < received} if fragment.keeps else {}
            fragment.marks[received] = mark
        self.run, self.welcome = message.run, True
        self.stats.returns += 1
        if not message.seed:
            return []
        return [
            Seed(number, [dense_bytes(self._parameters[name]) for name in fragment.names])
            for number, fragment in enumerate(self._fragments)
        ]

    def _take_back(self, fragment: Fragment, received: int) -> None:
        """Adds what was sent, and does not count, to what is owed; with its weight."""
        for number in range(received + 1, fragment.sent + 1):
            if (wires := fragment.unsaved.pop(number, None)) is None:
                self.stats.lost += 1
                continue
            fragment.up.decode_add_(wires, fragment.owe(), number, f"learner {self.name!r}")
            steps, tokens = fragment.work.pop(number)
            fragment.steps_back += steps
            fragment.tokens_back += tokens
            self.stats.returned += 1

    # ---- up ---------------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def _contribute(self, pull: Pull) -> list[FromLearner]:
        fragment = self._fragments[pull.fragment]
        if fragment.returning or fragment.pulled:
            return []  # what was asked for has gone, with the connection over which it was asked
        delta = self._moved(fragment)
        fragment.pulled = True
        if not all(bool(x.isfinite().all()) for x in delta):
            self.stats.nonfinite += 1
            return [Contribution(pull.fragment, pull.round, fragment.sent, 0, 0, 0, fragment.norm, False, [])]
        if fragment.debt is not None:
            for x, e in zip(delta, fragment.debt, strict=True):
                x.add_(e)
        number = fragment.sent + 1
        wires = fragment.up.encode_(delta, number)
        fragment.debt = None if fragment.up.exact else delta
        self._made += 1
        mark = (self._start << 24) + self._made
        fragment.sent, fragment.unsaved[number], fragment.marks[number] = number, wires, mark
        fragment.work[number] = fragment.steps, fragment.tokens
        if len(fragment.unsaved) > _UNSAVED:
            fragment.forget(min(fragment.unsaved))
        self.stats.contributions += 1
        self.stats.bytes_sent += sum(map(len, wires))
        norm = fragment.norm
        return [
            Contribution(pull.fragment, pull.round, number, mark, fragment.steps, fragment.tokens, norm, True, wires)
        ]

    def _moved(self, fragment: Fragment) -> list[Tensor]:
        """Δ, counted from the reference as the parameter's dtype has it."""
        assert fragment.reference is not None
        out = []
        for name, reference in zip(fragment.names, fragment.reference, strict=True):
            p = self._parameters[name]
            start = reference if p.dtype == torch.float32 else reference.to(p.dtype).float()
            out.append(start - p.detach().to("cpu", torch.float32).reshape(-1))
        return out

    # ---- down -------------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def _update(self, update: Update) -> None:
        fragment, where = self._fragments[update.fragment], f"{SYNCER}, fragment {update.fragment}"
        if len(update.wires) != len(fragment.names):
            raise PayloadError(f"{where}: {len(update.wires)} tensors of {len(fragment.names)}")
        if update.serial != fragment.serial + 1 or not 0 <= update.saved <= fragment.sent:
            raise PayloadError(
                f"{where}: update {update.serial} after {fragment.serial}, {update.saved} saved of {fragment.sent}"
            )
        if update.full:
            sizes = [self._parameters[name].numel() for name in fragment.names]
            whats = zip(update.wires, sizes, fragment.names, strict=True)
            new = [read_dense(wire, n, f"{where}: {name!r}") for wire, n, name in whats]
        elif fragment.returning or fragment.reference is None:
            raise PayloadError(f"{where}: a difference to what learner {self.name!r} does not hold")
        else:
            new = [x.clone() for x in fragment.reference]
            fragment.down.decode_add_(update.wires, new, update.serial, where)
        if fragment.returning and fragment.keeps and fragment.reference is not None and not fragment.pulled:
            delta = self._moved(fragment)  # what was computed while nobody was there is owed
            if all(bool(x.isfinite().all()) for x in delta):
                for e, x in zip(fragment.owe(), delta, strict=True):
                    e.add_(x)
        else:
            fragment.steps = fragment.tokens = 0
        fragment.steps += fragment.steps_back
        fragment.tokens += fragment.tokens_back
        fragment.steps_back = fragment.tokens_back = 0
        fragment.reference, fragment.serial, fragment.pulled, fragment.returning = new, update.serial, False, False
        fragment.forget(update.saved)
        for name, x in zip(fragment.names, new, strict=True):
            p = self._parameters[name]
            p.detach().copy_(x.view(p.shape))
        self.stats.updates += 1
        self.stats.bytes_received += sum(map(len, update.wires))

    # ---- checkpoints ------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on, but for the optimizer's state: tensors, numbers and texts, as
        ``torch.load(weights_only=True)`` reads them.
        """
        fragments = [fragment.state_dict() for fragment in self._fragments]
        return {
            "format": _FORMAT, "kind": _PATTERN, "name": self.name, "run": self.run, "steps": self.stats.steps,
            "names": list(self.plan.names), "codecs": [self.plan.up, self.plan.down], "fragments": fragments,
            "parameters": {name: p.detach().clone() for name, p in self._parameters.items()},
        }  # fmt: skip

    @torch.no_grad()
    def load_state_dict(self, saved: Any) -> None:
        """Goes on where ``saved`` stopped, parameters included. The syncer says later what of it counts.

        Raises:
            StateError: it does not fit. Nothing has changed then.
        """
        self._check(saved)
        with reading("a learner"):
            run, steps = read_text(saved["run"], "run"), read_count(saved["steps"], "steps")
            pairs = zip(self._fragments, saved["fragments"], strict=True)
            fragments = [fragment.read(state) for fragment, state in pairs]
            parameters = saved["parameters"]
            check_fits("parameter", parameters, self._parameters)
        for fragment, values in zip(self._fragments, fragments, strict=True):
            for key, value in values.items():
                setattr(fragment, key, value)
        for name, p in self._parameters.items():
            p.detach().copy_(parameters[name])
        self.run, self.stats.steps = run, steps
        self.disconnected()

    def _check(self, saved: Any) -> None:
        """Refuses the state of something else."""
        if not isinstance(saved, dict) or saved.get("kind") != _PATTERN or saved.get("format") != _FORMAT:
            raise StateError("not the state of a learner of this version")
        own = {"name": self.name, "names": self.plan.names, "codecs": [self.plan.up, self.plan.down]}
        for key, value in own.items():
            if saved.get(key) != value:
                raise StateError(
                    f"the state of a learner with {key} {saved.get(key)!r:.200}; this one has {value!r:.200}"
                )
        fragments = saved.get("fragments")
        if not isinstance(fragments, list) or len(fragments) != len(self._fragments):
            raise StateError(f"the state of a learner with other fragments; this one has {len(self._fragments)}")
