"""Learners that wait for nobody: nothing that was sent is lost or counted twice, whoever dies, stalls, comes back or joins."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import grace.decoupled.learner as learners
import grace.decoupled.rounds as rounds
import grace.decoupled.syncer as syncers
from grace.decoupled.plan import Plan
from grace.decoupled.settings import SyncerSettings
from grace_bench.simulation.virtual import Process, World

EVERY = 6
CODECS = [
    ("none", "none"),
    ("topk:ratio=0.1", "lpc:bits=4"),
    ("randomk:ratio=0.2", "topk:ratio=0.2"),
    ("qsgd:bits=4", "fp8"),
]
ACTIONS = ["kill", "stall", "break", "join", "leave", "save", "syncer"]
SCRIPTS = st.lists(st.tuples(st.integers(1, 9), st.sampled_from(ACTIONS), st.integers(0, 3)), min_size=2, max_size=9)
# Lost contributions, old states, a syncer that goes back, a late answer.
LONG = [
    (8, "save", 0), (3, "stall", 1), (5, "kill", 0), (9, "syncer", 0), (9, "break", 2), (7, "kill", 1), (2, "break", 0),
    (9, "syncer", 0), (9, "stall", 2), (9, "join", 0), (9, "kill", 0), (5, "leave", 1), (9, "save", 0), (7, "break", 3),
]  # fmt: skip


def make() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(40, 30, generator=random),
        "b": torch.randn(7, generator=random),
        "c": torch.randn(1100, 1, generator=random),
    }


def train(process: Process) -> None:
    """A step towards a minimum of this learner's own, with noise of this step."""
    number = int(process.name[1:])
    random = torch.Generator().manual_seed(1000 * number + process.learner.stats.steps)
    for x in process.parameters.values():
        x.sub_(0.01 * (x - number) + 0.01 * torch.randn(x.shape, generator=random))


class Recorded(learners.Learner):
    """A learner that adds up its Δ."""

    world: World
    moved: list[Tensor] | None = None

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        self.total = [[torch.zeros(n) for n in self.plan.sizes(p)] for p in range(len(self._fragments))]
        self.asked: set[int] = set()  # fragments whose Δ was counted since they came

    def _moved(self, fragment: Any) -> list[Tensor]:
        delta = super()._moved(fragment)
        self.moved = [x.clone() for x in delta]
        return delta

    def _count(self, number: int) -> None:
        for total, x in zip(self.total[number], self.moved or [], strict=False):
            total.add_(x)
        self.moved = None

    def _contribute(self, pull: Any) -> Any:
        answer = super()._contribute(pull)
        if self.moved is not None:
            self.asked.add(pull.fragment)
        self._count(pull.fragment)
        return answer

    def _update(self, update: Any) -> None:
        super()._update(update)
        if self.moved is not None:  # what was computed while nobody was there is owed
            assert update.fragment not in self.asked, "what was sent is owed again"
        self._count(update.fragment)
        self.asked.discard(update.fragment)

    def _welcome(self, message: Any) -> Any:
        answer = super()._welcome(message)
        for number, fragment in enumerate(self._fragments):
            if not fragment.keeps:  # from now on
                self.total[number] = self.world.syncer.sum_of("received", self.name, number)
        return answer

    def state_dict(self) -> Any:
        return {**super().state_dict(), "total": copy.deepcopy(self.total), "asked": list(self.asked)}

    def load_state_dict(self, saved: Any) -> None:
        super().load_state_dict(saved)
        self.total, self.asked = copy.deepcopy(saved["total"]), set(saved["asked"])


class RecordedSyncer(syncers.Syncer):
    """A syncer that adds up what has come, and what it has merged."""

    def __init__(self, *args: Any, **more: Any):
        super().__init__(*args, **more)
        self.sums: dict[str, list[Tensor]] = {}

    def sum_of(self, what: str, name: str, fragment: int) -> list[Tensor]:
        zeros = [torch.zeros(n) for n in self.plan.sizes(fragment)]
        return [x.clone() for x in self.sums.get(f"{what} {name} {fragment}", zeros)]

    def _contribution(self, member: Any, message: Any) -> Any:
        answer = super()._contribution(member, message)
        if message.finite:
            delta = [torch.zeros(n) for n in self.plan.sizes(message.fragment)]
            member.shares[message.fragment].up.decode_add_(message.wires, delta, message.number, "")
            self._add("received", member.name, message.fragment, delta)
        return answer

    def _merge(self, fragment: int, now: float) -> Any:
        for name, member in self.members.items():
            if (inbox := member.shares[fragment].inbox) is not None:
                self._add("merged", name, fragment, inbox.tensors)
        return super()._merge(fragment, now)

    def _add(self, what: str, name: str, fragment: int, delta: list[Tensor]) -> None:
        pairs = zip(self.sum_of(what, name, fragment), delta, strict=True)
        self.sums[f"{what} {name} {fragment}"] = [total + x for total, x in pairs]

    def state_dict(self) -> Any:
        return {**super().state_dict(), "sums": dict(self.sums)}

    def load_state_dict(self, saved: Any, now: float) -> None:
        super().load_state_dict(saved, now)
        self.sums = dict(saved["sums"])


class RecordedProcess(Process):
    def new_learner(self) -> Recorded:
        plan, tokens = self._plan, self._tokens
        out = Recorded(self.name, self.parameters, plan, tokens_per_step=tokens, start=self.generation)
        out.world = self.world
        return out


def stored(state: Any) -> Any:
    """The state, after it was on a disk."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Play:
    """A script, played: learners 0 to 2 at first, the last one at half speed."""

    def __init__(self, up: str, down: str, quorum: int = 1):
        self.plan = Plan.of(make(), every=EVERY, fragments=2, overlap=3, up=up, down=down)
        self.settings = SyncerSettings(learners=8, quorum=quorum, forget_after=40.0)
        self.runs, self.saved, self.checks = 0, None, 0
        self.world = World(self.new_syncer(), latency=0.05, rate=2e5)
        for number in range(3):
            self.join(number)

    def new_syncer(self) -> RecordedSyncer:
        self.runs += 1
        return RecordedSyncer(self.settings, f"run {self.runs}", keeps=True)

    def join(self, number: int) -> None:
        seconds = 2.0 if number == 2 else 1.0 + number / 100
        RecordedProcess(self.world, f"l{number}", make, train, seconds=seconds, plan=self.plan, tokens=5, keep_every=11)

    def play(self, script: Any, wait: float = 60.0) -> None:
        for seconds, action, which in script:
            self.world.run(self.world.now + seconds + 0.3)
            self.act(action, which)
            self.check()
        self.world.run(self.world.now + wait)
        self.check()

    def act(self, action: str, which: int) -> None:
        world, processes = self.world, list(self.world.processes.values())
        process = processes[which % len(processes)]
        if action == "join" and len(processes) < 6:
            self.join(len(processes))
        elif action == "kill" and process.alive:
            process.kill()
            world.at(world.now + 7, lambda: process.alive or process.start())
        elif action == "stall" and process.alive:
            process.stall(9.0)
        elif action == "break" and process.alive:
            process.break_link()
        elif action == "leave" and process.alive and sum(p.alive for p in processes) > 2:
            world.to_syncer(process, process.learner.goodbye())
            world.run(world.now + 1)
            process.kill()
        elif action == "save" and world.up:
            self.saved = stored(world.syncer.state_dict())
            world.syncer.saved()
        elif action == "syncer" and world.up:
            world.kill_syncer()
            world.run(world.now + 3)
            other = self.new_syncer()
            if self.saved is not None:
                other.load_state_dict(self.saved, world.now)
            world.restart_syncer(other)

    def check(self) -> None:
        """The conservation laws, where nothing is on its way."""
        syncer = self.world.syncer
        for name, member in syncer.members.items():
            for number, share in enumerate(member.shares):
                counted = syncer.sum_of("merged", name, number)
                if share.inbox is not None:
                    counted = [x + y for x, y in zip(counted, share.inbox.tensors, strict=True)]
                close(counted, syncer.sum_of("received", name, number))
        for name, process in self.world.processes.items():
            assert process.refused is None
            if not (process.alive and process.learner.welcome) or syncer.members[name].link != process.link:
                continue
            for number, share in enumerate(syncer.members[name].shares):
                fragment = process.learner._fragments[number]
                if fragment.returning or fragment.sent != share.received:
                    continue
                sent = syncer.sum_of("received", name, number)
                if fragment.debt is not None:
                    sent = [x + e for x, e in zip(sent, fragment.debt, strict=True)]
                close(sent, process.learner.total[number])
                self.checks += 1
                if share.serial == fragment.serial and share.held is not None:
                    assert all(map(torch.equal, share.held, fragment.reference)), "h is not what the learner holds"


def close(got: list[Tensor], expected: list[Tensor]) -> None:
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("up", "down"), CODECS)
def test_nothing_is_lost_or_counted_twice(up: str, down: str):
    play = Play(up, down)
    play.play(LONG)
    stats = [process.learner.stats for process in play.world.processes.values()]
    assert play.checks > 20
    assert play.world.syncer.stats.late  # all of this has happened
    assert play.world.syncer.stats.written_off
    assert sum(stat.returned for stat in stats)


@settings(max_examples=15)
@given(SCRIPTS, st.sampled_from(CODECS[1:]), st.integers(1, 3))
def test_nothing_is_lost_whatever_happens(script: Any, codecs: tuple[str, str], quorum: int):
    Play(*codecs, quorum=quorum).play(script)


# ---- equal to what is known, and to itself --------------------------------------------------------------------------
def is_diloco(fragments: int) -> None:
    plan = Plan.of(make(), every=EVERY, fragments=fragments)
    settings = SyncerSettings(learners=4, quorum=4, average="plain")
    world = World(syncers.Syncer(settings, "run"))
    for number in range(4):
        Process(world, f"l{number}", make, train, seconds=1.0, plan=plan)
    world.run(4 * EVERY + 0.5)
    assert world.syncer.stats.merges == 4 * fragments
    got = world.syncer.parameters
    assert all(map(torch.equal, got.values(), diloco(plan, steps=4 * EVERY).values())), "not DiLoCo's bits"


@pytest.mark.parametrize("fragments", [1, 2])
def test_in_lockstep_it_is_diloco_to_the_bit(fragments: int):
    is_diloco(fragments)


def diloco(plan: Plan, steps: int) -> dict[str, Tensor]:
    """Algorithm 1 of Douillard et al. (2023), fragments in turn, with torch's own outer optimizer."""
    theta, replicas = make(), [make() for _ in range(4)]
    outer = torch.optim.SGD(list(theta.values()), lr=0.7, momentum=0.9, nesterov=True)
    for step in range(1, steps + 1):
        for number, replica in enumerate(replicas):
            learner = type("", (), {"stats": type("", (), {"steps": step - 1})})
            train(type("", (), {"name": f"l{number}", "learner": learner, "parameters": replica}))
        for p, places in enumerate(plan.fragments):
            if step >= plan.first_due(p) and (step - plan.first_due(p)) % EVERY == 0:
                for name in [plan.names[i] for i in places]:
                    theta[name].grad = sum((theta[name] - replica[name]) * 0.25 for replica in replicas)
        outer.step()
        outer.zero_grad()
        for p, places in enumerate(plan.fragments):
            if step >= plan.first_due(p) and (step - plan.first_due(p)) % EVERY == 0:
                for name in [plan.names[i] for i in places]:
                    for replica in replicas:
                        replica[name].copy_(theta[name])
    return theta


def bits_after(
    script: Any, hook: Any = lambda play: None, up: str = "topk:ratio=0.1", down: str = "lpc:bits=4"
) -> dict[str, Tensor]:
    play = Play(up, down, quorum=2)
    play.play(script, wait=3.0)
    hook(play)
    play.world.run(play.world.now + 40.0)
    return play.world.syncer.parameters


def follows_from_events(up: str = "topk:ratio=0.1") -> None:
    first, second = bits_after(LONG, up=up), bits_after(LONG, up=up)
    assert all(map(torch.equal, first.values(), second.values())), "other bits"
    other = bits_after([(1, "stall", 1), *LONG], up=up)
    assert not all(map(torch.equal, first.values(), other.values())), "no event matters"


@pytest.mark.parametrize("up", ["topk:ratio=0.1", "randomk:ratio=0.2"])
def test_the_same_events_give_the_same_bits(up: str):
    follows_from_events(up)


def learners_go_on() -> None:
    def pause(play: Play) -> Process:
        process = play.world.processes["l1"]
        process.stall(6.0)
        play.world.run(play.world.now + 3.0)  # between two steps
        return process

    def cut(play: Play) -> None:
        pause(play).break_link()

    def load(play: Play) -> None:
        process = pause(play)
        process.kept = stored(process.learner.state_dict())
        process.kill()
        process.start()

    first, second = bits_after(LONG[:2], cut), bits_after(LONG[:2], load)
    assert all(map(torch.equal, first.values(), second.values())), "other bits after a stop"


def test_a_learner_that_is_saved_and_loaded_goes_on_with_the_same_bits():
    learners_go_on()


def syncers_go_on() -> None:
    def restart(play: Play, load: bool) -> None:
        world = play.world
        for process in world.processes.values():  # nothing on its way
            process.stall(8.0)
        world.run(world.now + 5.0)
        syncer = world.syncer
        world.kill_syncer()
        if load:
            syncer, state = play.new_syncer(), stored(syncer.state_dict())
            syncer.load_state_dict(state, world.now)
        else:
            for link in list(syncer._links):
                syncer.left(link, world.now)
        world.restart_syncer(syncer)

    first = bits_after(LONG[:2], lambda play: restart(play, False))
    second = bits_after(LONG[:2], lambda play: restart(play, True))
    assert all(map(torch.equal, first.values(), second.values())), "other bits after a stop"


def test_a_syncer_that_is_saved_and_loaded_goes_on_with_the_same_bits():
    syncers_go_on()


# ---- mutants --------------------------------------------------------------------------------------------------------
def _keeps_no_debt(patch: Any) -> None:
    encode = learners.Learner._contribute

    def contribute(self: Any, pull: Any) -> Any:
        answer = encode(self, pull)
        self._fragments[pull.fragment].debt = None
        return answer

    patch.setattr(learners.Learner, "_contribute", contribute)


def _takes_nothing_back(patch: Any) -> None:
    patch.setattr(learners.Learner, "_take_back", lambda *_: None)


def _believes_old_states(patch: Any) -> None:
    welcome = learners.Learner._welcome

    def believe(self: Any, message: Any) -> Any:
        for fragment, received, mark in zip(self._fragments, message.received, message.marks, strict=True):
            fragment.marks[received] = mark
        return welcome(self, dataclasses.replace(message, known=[True] * len(message.known), run=self.run))

    patch.setattr(learners.Learner, "_welcome", believe)


def _owes_twice(patch: Any) -> None:
    update = learners.Learner._update

    def forget(self: Any, message: Any) -> None:
        self._fragments[message.fragment].pulled = False
        update(self, message)

    patch.setattr(learners.Learner, "_update", forget)


def _drops_late_answers(patch: Any) -> None:
    contribution = syncers.Syncer._contribution

    def drop(self: Any, member: Any, message: Any) -> Any:
        answer = contribution(self, member, message)
        if message.round != self._rounds[message.fragment].number:
            member.shares[message.fragment].inbox = None
        return answer

    patch.setattr(syncers.Syncer, "_contribution", drop)


def _forgets_what_it_sent(patch: Any) -> None:
    send = syncers.Syncer._send

    def forget(self: Any, member: Any, fragment: int) -> Any:
        share = member.shares[fragment]
        held = None if share.held is None else [x.clone() for x in share.held]
        sent = send(self, member, fragment)
        share.held = held if held is not None else share.held
        return sent

    patch.setattr(syncers.Syncer, "_send", forget)


MUTANTS = [
    _keeps_no_debt, _takes_nothing_back, _believes_old_states, _owes_twice, _drops_late_answers, _forgets_what_it_sent,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(mutant: Any, monkeypatch: pytest.MonkeyPatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        Play("topk:ratio=0.1", "lpc:bits=4").play(LONG)


def _steps_without_nesterov(patch: Any) -> None:
    def step(parameters: Any, momenta: Any, delta: Any, lr: float, momentum: float) -> None:
        for theta, b, d in zip(parameters, momenta, delta, strict=True):
            theta.sub_(b.mul_(momentum).add_(d), alpha=lr)

    patch.setattr(rounds, "outer_step_", step)


def _adds_up(patch: Any) -> None:
    patch.setattr(rounds, "weigh", lambda work: [1.0] * len(work))


def _keeps_its_own(patch: Any) -> None:
    """The learner goes on from what it has."""
    update = learners.Learner._update

    def keep(self: Any, message: Any) -> None:
        own = {name: p.clone() for name, p in self._parameters.items()}
        update(self, message)
        if message.serial > 1:
            for name, p in self._parameters.items():
                p.copy_(own[name])

    patch.setattr(learners.Learner, "_update", keep)


@pytest.mark.parametrize("mutant", [_steps_without_nesterov, _adds_up, _keeps_its_own])
def test_what_is_not_diloco_is_caught(mutant: Any, monkeypatch: pytest.MonkeyPatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="not DiLoCo's bits"):
        is_diloco(1)


def _draws_anew(patch: Any) -> None:
    """Random numbers of each run."""
    of, count = Plan.of, itertools.count()
    patch.setattr(Plan, "of", lambda *args, **knobs: of(*args, **knobs, seed=next(count)))


def _asks_the_clock(patch: Any) -> None:
    count = itertools.count()
    patch.setattr(syncers.Syncer, "_budget", lambda self: float(next(count) % 7))


@pytest.mark.parametrize("mutant", [_draws_anew, _asks_the_clock])
def test_bits_that_do_not_follow_from_events_are_caught(mutant: Any, monkeypatch: pytest.MonkeyPatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="other bits"):
        follows_from_events("randomk:ratio=0.2")


def _saves_without(*keys: str) -> Any:
    """A learner's state in which these begin afresh."""

    def mutant(patch: Any) -> None:
        state_dict = learners.Learner.state_dict

        def forget(self: Any) -> Any:
            saved = state_dict(self)
            for fragment in saved["fragments"]:
                fragment.update({key: None if key == "debt" else 0 for key in keys})
            return saved

        patch.setattr(learners.Learner, "state_dict", forget)

    return mutant


def _trains_from_elsewhere(patch: Any) -> None:
    """The parameters that a learner has trained are not in its state."""
    load = learners.Learner.load_state_dict

    def leave(self: Any, saved: Any) -> None:
        own = {name: p.clone() for name, p in self._parameters.items()}
        load(self, saved)
        for name, p in self._parameters.items():
            p.copy_(own[name])

    patch.setattr(learners.Learner, "load_state_dict", leave)


@pytest.mark.parametrize(
    "mutant",
    [_saves_without("debt"), _saves_without("steps", "tokens"), _trains_from_elsewhere],
    ids=["debt", "work", "parameters"],
)
def test_states_of_learners_that_lack_something_are_caught(mutant: Any, monkeypatch: pytest.MonkeyPatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="other bits after a stop"):
        learners_go_on()


def _syncer_without(key: str) -> Any:
    def mutant(patch: Any) -> None:
        state_dict = syncers.Syncer.state_dict

        def forget(self: Any) -> Any:
            saved = state_dict(self)
            if key == "momentum":
                saved["momentum"] = [torch.zeros_like(x) for x in saved["momentum"]]
            else:
                saved["rounds"] = [[0] for _ in saved["rounds"]]
            return saved

        patch.setattr(syncers.Syncer, "state_dict", forget)

    return mutant


@pytest.mark.parametrize("mutant", [_syncer_without("momentum"), _syncer_without("rounds")], ids=["momentum", "rounds"])
def test_states_of_syncers_that_lack_something_are_caught(mutant: Any, monkeypatch: pytest.MonkeyPatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="other bits after a stop"):
        syncers_go_on()
