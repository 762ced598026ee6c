"""Rounds, refusals and write-offs of a syncer, message by message."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.decoupled.learner import Learner
from grace.decoupled.messages import Contribution, Goodbye, Hello, Progress, Pull, Refusal, Seed, Update, Welcome
from grace.decoupled.packing import pack, read_learner, read_syncer
from grace.decoupled.plan import Plan
from grace.decoupled.settings import SyncerSettings
from grace.decoupled.syncer import Syncer
from grace.errors import AgreementError, PayloadError, StateError

EVERY = 4


def parameters() -> dict[str, Tensor]:
    return {"w": torch.ones(40, 30), "b": torch.zeros(3)}


class Table:
    """A syncer and learners at one table: messages pass at once, and in order."""

    def __init__(self, learners: int = 3, up: str = "none", **settings: Any):
        self.plan = Plan.of(parameters(), every=EVERY, overlap=4, up=up, down="none")
        self.syncer = Syncer(SyncerSettings(**{"learners": learners, **settings}), "run")
        self.learners: dict[int, Learner] = {}
        self.log: list[tuple[int, Any]] = []
        self.now = 0.0
        self.deaf: set[int] = set()

    def join(self, link: int, name: str = "", start: int = 0) -> Learner:
        learner = self.learners[link] = Learner(name or f"l{link}", parameters(), self.plan, start=start)
        self.send(link, [learner.hello()])
        return learner

    def send(self, link: int, messages: list[Any]) -> None:
        for message in messages:
            self.deliver(self.syncer.receive(link, read_learner(pack(message), "a test"), self.now))

    def deliver(self, sent: list[tuple[int, Any]]) -> None:
        self.log += sent
        for link, message in sent:
            if link in self.learners and link not in self.deaf:
                self.send(link, self.learners[link].receive(read_syncer(pack(message), "a test"), 1.0))

    def step(self, link: int, steps: int = 1, by: float = 1.0) -> None:
        """Steps of one learner, each of which moves its parameters."""
        for _ in range(steps):
            for p in self.learners[link]._parameters.values():
                p.sub_(by)
            self.send(link, self.learners[link].step(1.0))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.deliver(self.syncer.tick(self.now))

    def kinds(self, kind: type) -> list[int]:
        return [link for link, message in self.log if isinstance(message, kind)]

    @property
    def merges(self) -> int:
        return self.syncer.stats.merges


def test_the_first_learner_brings_the_parameters_and_all_get_them():
    table = Table()
    first = table.join(1)
    other = table.join(2)
    assert first.synchronized
    assert other.synchronized
    assert table.syncer.parameters["w"].equal(parameters()["w"])
    assert table.kinds(Update) == [1, 2]


def waits_for_its_quorum() -> None:
    table = Table(quorum=2, margin=0.5)
    for link in (1, 2, 3):
        table.join(link)
    table.step(1, EVERY)
    assert table.merges == 0  # one of two
    table.now = 1.0
    table.step(3, EVERY - 1)
    table.step(2, EVERY)
    # The quorum has taken a second, steps take one, four may pass: half of the other three are waited for.
    assert (table.merges, table.syncer.due(table.now)) == (0, 2.5)
    table.tick(1.4)
    assert table.merges == 0
    table.tick(0.2)
    assert table.merges == 1
    assert sorted(table.kinds(Pull)) == [1, 2, 3]  # who is not ready has made steps, too


def test_a_fragment_waits_for_its_quorum_and_then_for_a_part_of_the_slack():
    waits_for_its_quorum()


_opens, _pull = Syncer._opens, Syncer._pull


def of_one(self: Syncer, fragment: int, now: float) -> bool:
    """The first learner that is ready is enough."""
    self.settings = dataclasses.replace(self.settings, quorum=1)
    return _opens(self, fragment, now)


def at_once(self: Syncer, fragment: int, now: float) -> bool:
    """Waits for nobody but the quorum."""
    self.settings = dataclasses.replace(self.settings, margin=0.0)
    return _opens(self, fragment, now)


def all_the_slack(self: Syncer, fragment: int, now: float) -> bool:
    self.settings = dataclasses.replace(self.settings, margin=0.999)
    return _opens(self, fragment, now)


def for_all(self: Syncer, fragment: int, now: float) -> bool:
    """Waits for every learner, however long."""
    return _opens(self, fragment, now) and all(m.shares[fragment].steps >= EVERY for m in self.present)


def the_ready_ones(self: Syncer, fragment: int, now: float) -> Any:
    """Asks those alone who have made all steps."""
    late = [share for m in self.present if (share := m.shares[fragment]).steps < EVERY]
    counts = [share.steps for share in late]
    for share in late:
        share.steps = 0
    sent = _pull(self, fragment, now)
    for share, steps in zip(late, counts, strict=True):
        share.steps = steps
    return sent


@pytest.mark.parametrize(
    ("name", "mutant", "got"),
    [
        ("_opens", of_one, r"\(0, 2\.0\) == \(0, 2\.5\)"), ("_opens", at_once, r"\(1, None\)"),
        ("_opens", all_the_slack, r"\(0, 3\.997\)"), ("_opens", for_all, "assert 0 == 1"),
        ("_pull", the_ready_ones, r"== \[1, 2, 3\]"),
    ],
)  # fmt: skip
def test_another_quorum_or_window_is_caught(name: str, mutant: Any, got: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Syncer, name, mutant)
    with pytest.raises(AssertionError, match=got):
        waits_for_its_quorum()


def test_all_who_are_there_are_ready_and_nobody_is_waited_for():
    table = Table(quorum=1)
    for link in (1, 2):
        table.join(link)
        table.step(link, EVERY - 1)
    table.step(1)
    assert table.merges == 0
    table.step(2)
    assert table.merges == 1


def test_who_does_not_answer_is_late_and_counts_in_the_next_round():
    table = Table(quorum=1, margin=0.0, timeout=5.0, average="plain", momentum=0.0, lr=1.0)
    for link in (1, 2):
        table.join(link)
    table.step(2)
    table.deaf.add(2)
    table.step(1, EVERY)
    assert table.merges == 0
    table.tick(5.0)
    assert table.merges == 1
    pull, update = [message for link, message in table.log if link == 2][-2:]
    table.deaf.clear()
    table.deliver([(2, pull), (2, update)])
    assert table.syncer.stats.late == 1
    before = table.syncer.parameters["b"].clone()
    table.step(1, EVERY)
    table.tick(20.0)
    weight = 1 / (EVERY + 1)  # one token in one step, and four in four
    expected = before - (1 - weight) * EVERY - weight * 1.0
    torch.testing.assert_close(table.syncer.parameters["b"], expected)


def test_who_dies_when_it_was_asked_is_not_waited_for():
    table = Table(quorum=1)
    for link in (1, 2):
        table.join(link)
    table.step(2)
    table.deaf.add(2)
    table.step(1, EVERY)
    table.tick(3.0)
    assert table.merges == 0
    table.deliver(table.syncer.left(2, table.now))
    assert table.merges == 1


def test_a_quorum_that_is_no_longer_there_waits_for_others():
    table = Table(quorum=2)
    for link in (1, 2):
        table.join(link)
    table.step(2, EVERY)
    table.deaf.add(2)
    table.step(1, EVERY)
    table.deliver(table.syncer.left(2, table.now))
    assert table.merges == 0
    assert table.syncer.due(table.now) is not None
    table.join(3)
    table.step(3)
    assert table.merges == 1


@pytest.mark.parametrize("up", ["none", "topk:ratio=0.1"])
def test_a_delta_that_is_not_finite_is_not_sent_and_its_learner_gets_the_fragment(up: str):
    table = Table(up=up, margin=0.0)
    for link in (1, 2):
        table.join(link)
    table.step(2, by=math.nan)
    table.step(1, EVERY)
    table.tick(20.0)
    assert (table.merges, table.syncer.stats.nonfinite, table.learners[2].stats.nonfinite) == (1, 1, 1)
    assert all(bool(p.isfinite().all()) for p in table.syncer.parameters.values())
    assert all(bool(p.isfinite().all()) for p in table.learners[2]._parameters.values())
    table.step(2, EVERY)
    assert table.learners[2].stats.contributions == 1  # it goes on


def test_what_a_learner_owes_is_written_off_when_it_is_gone_for_good_or_comes_back_without_it():
    table = Table(up="topk:ratio=0.1", forget_after=100.0, margin=0.0)
    for link in (1, 2, 3):
        table.join(link)
        table.step(link, EVERY)
    debts = [learner.stats and learner._fragments[0].norm for learner in table.learners.values()]
    assert min(debts) > 0
    table.send(1, table.learners[1].goodbye())
    assert table.syncer.stats.written_off_debt == pytest.approx(debts[0])
    table.deliver(table.syncer.left(2, table.now))
    table.join(12, "l2", start=7)  # a fresh process
    assert table.syncer.stats.written_off_debt == pytest.approx(sum(debts[:2]))
    table.deliver(table.syncer.left(3, table.now))
    assert table.syncer.due(table.now) == table.now + 100.0
    table.tick(100.0)
    assert table.syncer.stats.written_off == 3
    assert table.syncer.stats.written_off_debt == pytest.approx(sum(debts))
    assert set(table.syncer.members) == {"l2"}


def test_one_learner_too_many_and_another_plan_are_refused():
    table = Table(learners=2)
    table.join(1)
    table.join(2)
    with pytest.raises(AgreementError, match="2 learners are there, l1, l2: 'l3' is one too many"):
        table.join(3)
    table.deliver(table.syncer.left(2, 0.0))
    table.learners[4] = Learner("l4", parameters(), dataclasses.replace(table.plan, every=9))
    with pytest.raises(AgreementError, match="learner 'l4' differs from this run in every: 9, here 4"):
        table.send(4, [table.learners[4].hello()])


def test_a_model_without_room_is_refused_and_others_are_not(monkeypatch: pytest.MonkeyPatch):
    table = Table()
    hello = Learner("l1", parameters(), table.plan).hello()

    def fail(*shape: int, **more: object) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", fail)
        ((_, refusal),) = table.syncer.receive(1, hello, 0.0)
    assert isinstance(refusal, Refusal)
    assert "no memory for a model of 1,203 numbers" in refusal.reason
    assert table.syncer.plan is None
    assert table.join(2).synchronized


CONTRIBUTION = Contribution(0, 0, 1, 1, 1, 1, 0.0, True, [bytes(4 * 1200), bytes(12)])
BAD = [
    (Progress(-1, 1.0, [1], [1]), "step -1"),
    (Progress(1, math.nan, [1], [1]), "nan seconds"),
    (Progress(1, 1.0, [9], [1]), "update 9 of 1"),
    (Progress(1, 1.0, [1], [-1]), "-1 steps"),
    (Progress(1, 1.0, [1, 1], [1, 1]), "2 fragments of 1"),
    (Seed(0, [bytes(4800), bytes(12)]), "nobody has asked for"),
    (CONTRIBUTION, "for which it was not asked"),
    (dataclasses.replace(CONTRIBUTION, fragment=7), "fragment 7 of 1"),
    (Hello("l1", 0, "", [{}], Table().plan), "a second Hello"),
]
ASKED = [
    ({"number": 5}, "contribution 5 after 0"),
    ({"tokens": -1}, "-1 tokens"),
    ({"debt": math.inf}, "counts 1 tokens"),
    ({"debt": -1.0}, "owes -1.0"),
    ({"wires": []}, "0 wires"),
    ({"wires": [bytes(4 * 1200), bytes(8)]}, "'b': 8 bytes; 3 numbers have 12"),
    ({"wires": [b"\xff" * 4800, bytes(12)]}, "'w': an inf or NaN"),
]


@pytest.mark.parametrize(("message", "text"), BAD)
def test_messages_that_no_learner_sends_are_refused_and_the_sender_is_named(message: Any, text: str):
    table = Table()
    table.join(1)
    with pytest.raises(PayloadError, match=f"l1.*{text}"):
        table.send(1, [message])
    assert table.syncer.stats.refused == 1
    assert not table.syncer.present  # it has to come again


@pytest.mark.parametrize(("change", "text"), ASKED)
def test_contributions_that_no_learner_sends_are_refused_and_nothing_is_merged(change: dict[str, Any], text: str):
    table = Table()
    table.join(1)
    table.deaf.add(1)
    table.step(1, EVERY)
    before = table.syncer.parameters["w"].clone()
    table.deaf.clear()
    with pytest.raises(PayloadError, match=text):
        table.send(1, [dataclasses.replace(CONTRIBUTION, **change)])
    assert table.syncer.parameters["w"].equal(before)
    assert table.merges == 0


def test_a_message_before_hello_is_refused():
    syncer = Syncer(SyncerSettings(1), "run")
    (answer,) = syncer.receive(5, Goodbye(), 0.0)
    assert answer == (5, Refusal("a Goodbye before any Hello", again=True))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x92\xa5Hello\xc0", pack(Pull(0, 0)), b"\x92\xa4Seed\x82\xa8fragment\xa1x\xa7tensors\x90"]
)
def test_bytes_that_are_no_message_are_refused_and_the_sender_is_named(data: bytes):
    with pytest.raises(PayloadError, match="the learner at ipv4:1"):
        read_learner(data, "the learner at ipv4:1")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Pull(3, 0), "fragment 3 of 1"),
        (Update(0, 9, True, 0, [bytes(4800), bytes(12)]), "update 9 after 1"),
        (Update(0, 2, True, 0, [bytes(12)]), "1 tensors of 2"),
        (Update(0, 2, True, 5, [bytes(4800), bytes(12)]), "5 saved of 0"),
        (Update(0, 2, True, 0, [bytes(4800), bytes(8)]), "8 bytes; 3 numbers have 12"),
        (Welcome("run", [0, 0], [0], [True], False), "fragments"),
    ],
)
def test_messages_that_no_syncer_sends_are_refused_and_change_nothing(message: Any, text: str):
    table = Table()
    learner = table.join(1)
    before = learner.merged()
    with pytest.raises(PayloadError, match=f"the syncer.*{text}"):
        learner.receive(message)
    assert before is not None
    assert all(map(torch.equal, before.values(), (learner.merged() or {}).values()))


def test_states_of_something_else_are_refused_and_change_nothing():
    table = Table()
    learner = table.join(1)
    state = learner.state_dict()
    for change, text in [
        ({"name": "other"}, "name 'other'"),
        ({"codecs": ["qsgd", "none"]}, "codecs"),
        ({"fragments": []}, "other fragments"),
        ({"kind": "grace-syncer"}, "not the state of a learner"),
    ]:
        with pytest.raises(StateError, match=text):
            learner.load_state_dict({**state, **change})
    assert learner.welcome
    with pytest.raises(StateError, match="not the state of a syncer"):
        Syncer(SyncerSettings(1), "run").load_state_dict(state, 0.0)
    with pytest.raises(StateError, match="has begun already"):
        table.syncer.load_state_dict(table.syncer.state_dict(), 0.0)


def test_a_narrow_parameter_moves_from_its_rounded_reference():
    narrow = {"w": torch.ones(40, 30, dtype=torch.bfloat16)}
    table = Table()
    table.plan = Plan.of(narrow, every=1, down="none")
    learner = table.learners[1] = Learner("l1", narrow, table.plan)
    table.send(1, [learner.hello()])
    table.syncer._theta[0] = torch.full((1200,), 1.001)  # which bfloat16 does not have
    table.step(1, by=0.0)
    assert table.merges == 1
    torch.testing.assert_close(table.syncer.parameters["w"], torch.full((40, 30), 1.001))
    table.step(1, by=0.0)
    assert narrow["w"].eq(1).all()
    torch.testing.assert_close(table.syncer.parameters["w"], torch.full((40, 30), 1.001), rtol=0, atol=0)
