"""Failures under ``auto``, case by case: what it does then, and says. Others are in ``test_driver``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from grace.auto import sources
from grace.auto.calibrate import Calibration
from grace.auto.calibrate import calibrate as really
from grace.auto.sources import look as really_look
from grace.collectives import Collective
from grace.errors import StateError, TransportError
from grace.registry.policy import Policy, Rule
from tests.unit.auto.handles import AUTO, MS, Handle, both, calibration, real
from tests.unit.networks import in_threads


class Failing:
    """A transport that fails on all ranks once it has been asked so often."""

    def __init__(self, inner: Any, left: int):
        self.inner, self.left = inner, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run(self, op: Collective) -> Any:
        self.left -= 1
        if self.left < 0:
            raise TransportError("a worker died")
        return self.inner.run(op)


def controller(handle: Handle) -> Any:
    assert handle._driver is not None
    return handle._driver.controller  # type: ignore[union-attr]


def test_a_step_too_short_to_measure(link: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.auto.controller.SPAN_NS", MS)  # a block would have thousands of such steps
    link.update({"none": 0.03, "bf16": 0.02, "topk": 0.03, "qsgd:bits=4": 0.03})

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO, compute=0)
        handle.train(80, real(link))
        return handle

    first, _ = both(job)
    assert not first.explain().trials
    assert "which is too short to be compared" in str(first.explain())
    assert first.method_of("second") in ("none", "bf16")


def test_a_link_that_fails_while_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def job(member: Any, rank: int) -> Any:
        monkeypatch.setattr(sources, "calibrate", lambda transport, *given, **_: really(Failing(transport, 3), *given))
        return Handle(member, AUTO)

    for error in in_threads(2, job):
        assert isinstance(error, TransportError), error
        assert "while auto measured the link and the codecs: a worker died" in str(error)


def unsure(monkeypatch: pytest.MonkeyPatch, link: dict[str, float]) -> None:
    """All that is known of one kind of collective is a small buffer."""

    def measure(transport: Any, candidates: Any, largest: int, **_: Any) -> Calibration:
        return replace(
            calibration({name: ms for name, ms in link.items() if name in candidates}), unsure=("AllGather",)
        )

    monkeypatch.setattr(sources, "calibrate", measure)


def test_a_link_that_was_hardly_measured_is_looked_at_soon(
    link: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load a kind is known to a few bytes only, and looks bad: so it was until the first look, minutes later."""
    unsure(monkeypatch, {**link, "topk": 80.0})

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, "auto:methods=(topk)")
        handle.train(120, real(link))
        return handle

    first, second = both(job)
    assert first.used == second.used
    assert first.used[30] in ("bf16", "none")
    assert first.method_of("second") == "topk"
    looked = [
        step for step, text in first.explain().history if "as the link is known only so far: AllGather to 4," in text
    ]
    assert looked
    assert looked[0] <= 40
    assert len(looked) == 1


def test_a_look_that_confirms_a_plan_does_not_spare_it_its_trial(
    link: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    unsure(monkeypatch, link)

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, "auto:methods=(topk)")
        handle.train(70, real(link))
        return handle

    first, second = both(job)
    assert first.used == second.used
    assert first.method_of("second") == "topk"
    assert first.explain().verified_at is not None


def test_a_look_that_fails_ends_the_job_on_all_ranks(link: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    unsure(monkeypatch, link)

    def broken(transport: Any, known: Calibration, methods: Any, *, first: Any, **_: Any) -> Calibration:
        return really_look(Failing(transport, 2), known, methods, first=first)  # type: ignore[arg-type]

    monkeypatch.setattr(sources, "look", broken)

    def job(member: Any, rank: int) -> Any:
        handle = Handle(member, AUTO)
        with pytest.raises(TransportError, match="while auto measured the link and the codecs again: a worker died"):
            handle.train(60, real(link))
        return handle

    for handle in both(job):
        assert isinstance(handle._session.error, TransportError)
        with pytest.raises(TransportError, match="again"):
            handle.train(1, real(link))


def test_a_class_that_leaves_nothing(link: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    why = "its codec takes 60 ns a number, more than 50"
    left = replace(calibration({"none": 40.0, "bf16": 25.0}), left_out={"topk": why})
    monkeypatch.setattr(sources, "calibrate", lambda *_, **__: left)

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, "auto:methods=(topk)")
        handle.train(40, real(link))
        return handle

    first, _ = both(job)
    assert first.method_of("second") == "bf16"
    assert first.explain().left_out["topk"] == why
    assert why in str(first.explain())


# ---- checkpoints ----------------------------------------------------------------------------------------------------
def saved_by(world: int, link: dict[str, float], steps: int = 40) -> list[Any]:
    def job(member: Any, rank: int) -> Any:
        handle = Handle(member, AUTO)
        handle.train(steps, real(link))
        return handle.state_dict()

    return in_threads(world, job)


def test_a_state_among_others_is_refused_on_all_ranks_and_nothing_has_changed(link: dict[str, float]) -> None:
    saved = saved_by(3, link)

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.train(20, real(link))
        before = controller(handle)
        with pytest.raises(StateError, match="3"):
            handle.load_state_dict(saved[rank])
        assert controller(handle) is before
        handle.train(40, real(link))
        return handle

    first, _ = both(job)
    assert first.method_of("second") == "topk"


@pytest.mark.parametrize("where", ["2 workers over mpi, 2 cores each", "2 workers over threads, 1 cores each"])
def test_a_state_from_elsewhere_gives_its_methods_and_no_numbers(where: str, link: dict[str, float]) -> None:
    """Another transport, or machines with other cores: the plan is the incumbent, and the ledger begins anew."""
    saved = saved_by(2, {**link, "topk": 90.0})

    def job(member: Any, rank: int) -> Handle:
        state = {**saved[rank], "auto": {**saved[rank]["auto"], "fingerprint": where}}
        state["auto"]["methods"] = {**state["auto"]["methods"]}
        handle = Handle(member, AUTO)
        handle.train(3, real(link))
        handle.load_state_dict(state)
        handle.train(2, real(link))
        assert handle.used[-1] == state["auto"]["methods"]["second"]
        assert controller(handle) is None
        handle.train(8, real(link))
        assert controller(handle).spent < 2 * 6 * MS * 40, "what this attach has measured, and no more"
        return handle

    first, _ = both(job)
    words = [text for _, text in first.explain().history]
    assert any(
        f"a state that was saved among {where}; here are 2 workers over threads, 2 cores each" in text for text in words
    )


def test_a_policy_that_follows_the_step_takes_a_state_of_auto_over_at_once(link: dict[str, float]) -> None:
    saved = saved_by(2, link)

    def job(member: Any, rank: int) -> Handle:
        policy = Policy([Rule("*", "none", until_step=1), Rule("*", "qsgd:bits=4")])
        handle = Handle(member, None, policy)
        handle.load_state_dict(saved[rank])
        handle.step = handle._session.worker.step
        assert handle.step == 40
        handle.train(3, real(link))
        return handle

    first, _ = both(job)
    assert set(first.used) == {"qsgd:bits=4"}
    assert not first._session.worker.state.debts()
