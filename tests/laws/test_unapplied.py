"""An exchange that is not applied owes nothing: after it everything is as if it had not been exchanged, to the bit. What is
accumulated is applied, and goes on as where nobody could undo it.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

from grace.contract.workspace import Workspace
from grace.registry.policy import Policy
from grace.run import worker as workers
from grace.run.unapplied import Unapplied
from grace.run.worker import Worker
from tests.laws.bucket_runs import ALL, Run, in_bytes
from tests.laws.cases import CASES, by_night

SHAPES = ((15, 17), (7,), (8, 32), (40, 41), (8, 32))
NAMES = [f"layer{i}" for i in range(len(SHAPES))]
FAST = ("topk:ratio=0.2", "efsignsgd:block=32", "powersgd:rank=2,min_rate=0.1", "topk:ratio=0.2,memory=ef21")


class Undone(Run):
    """Workers that can undo, or cannot."""

    def __init__(self, spec: str, *, undoes: bool = True):
        super().__init__(Policy([("layer1", "none"), ("*", CASES[spec])], strict=False), 2, SHAPES, ALL)
        for worker in self.workers if undoes else ():
            worker.keep_unapplied()

    def skip(self) -> None:
        """A step in which nothing is exchanged."""
        for worker in self.workers:
            worker.advance()

    def settle(self, dropped: Collection[str] = (), waiting: Collection[str] = ()) -> int:
        (undone,) = {worker.settle(dropped, waiting) for worker in self.workers}
        return undone

    def held(self) -> object:
        """States, without the count of steps."""
        keys = ("states", "owed", "instalments")
        return [{key: dict(told).get(key) for key in keys} for told in self.states()]


def assert_dropped_is_undone(spec: str) -> None:
    """Steps are applied or dropped in turn; the twin skips what the other drops."""
    undone, twin = Undone(spec), Undone(spec)
    for step in range(7):
        undone.seen.clear()
        twin.seen.clear()
        undone.settle()
        if step % 3 == 2:
            before = undone.held()
            undone.step()
            assert undone.settle(NAMES) == 1
            assert undone.held() == before
            twin.skip()
        else:
            assert undone.step()[:2] == twin.step()[:2], step
            assert undone.seen == twin.seen, step


def assert_accumulated_goes_on(spec: str) -> None:
    """Three exchanges for each step; the last three are dropped together."""
    undone, plain = Undone(spec), Undone(spec, undoes=False)
    for step in range(6):
        undone.settle(waiting=() if step % 3 == 0 else NAMES)
        if step == 3:
            before = undone.held()
        assert undone.step() == plain.step(), step
    assert undone.settle(NAMES) == 3
    assert undone.held() == before


@pytest.mark.parametrize("spec", by_night("a dropped exchange that stays"))
def test_what_is_dropped_was_never_exchanged(spec: str):
    assert_dropped_is_undone(spec)


@pytest.mark.parametrize("spec", by_night("an accumulated exchange that is undone"))
def test_what_is_accumulated_goes_on(spec: str):
    assert_accumulated_goes_on(spec)


@pytest.mark.parametrize("spec", FAST)
def test_of_a_bucket_some_tensors_are_dropped(spec: str):
    undone = Undone(spec)
    part = {"layer0", "layer4"}
    for step in range(4):
        undone.settle()
        before = undone.workers[0].state_dict()["states"]
        undone.step()
        applied = undone.workers[0].state_dict()["states"]
        undone.settle(dropped=part)
        after = undone.workers[0].state_dict()["states"]
        for name in NAMES:
            expected = before if name in part else applied
            if name in expected:
                assert in_bytes(after[name]) == in_bytes(expected[name]), (step, name)


# ---- mutants --------------------------------------------------------------------------------------------------------
def never_undoes(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Worker.settle
    monkeypatch.setattr(Worker, "settle", lambda self, dropped=(), waiting=(): own(self, (), waiting))


def undoes_what_was_accumulated(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Worker.settle
    monkeypatch.setattr(Worker, "settle", lambda self, dropped=(), waiting=(): own(self, {*dropped, *waiting}))


def undoes_the_last_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Unapplied.note

    def note(self, name, held, owed):
        count = own(self, name, held, owed)
        self._before[name] = held
        return count

    monkeypatch.setattr(Unapplied, "note", note)


def writes_where_the_first_state_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "part", lambda name, workspace: None)


def frees_what_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Workspace.release
    monkeypatch.setattr(Workspace, "release", lambda self, kept=(): own(self))


@pytest.mark.parametrize(
    ("mutant", "spec"),
    [
        pytest.param(never_undoes, "topk:ratio=0.2", id="a dropped exchange that stays"),
        (never_undoes, "powersgd:rank=2,min_rate=0.1"),
        pytest.param(undoes_what_was_accumulated, "topk:ratio=0.2", id="an accumulated exchange that is undone"),
        (undoes_the_last_alone, "topk:ratio=0.2"),
        (writes_where_the_first_state_is, "topk:ratio=0.2"),
        (frees_what_is_put_back, "topk:ratio=0.2,memory=ef21"),
    ],
)
def test_mutants_are_caught(mutant, spec: str, monkeypatch: pytest.MonkeyPatch):
    def laws() -> None:
        assert_dropped_is_undone(spec)
        assert_accumulated_goes_on(spec)

    laws()
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        laws()
