"""``auto`` at work between threads, with clocks and links that are only modelled: what it decides, step by step."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grace.auto import classes, sources
from grace.auto import driver as driver_module
from grace.auto.calibrate import Told
from grace.auto.classes import Frontier, Known, StepsMultiple
from grace.auto.explain import Explanation
from grace.auto.settings import Auto
from grace.errors import AgreementError, ConfigurationError, GraceWarning, InputError, StateError
from grace.registry import method, spell
from grace.run.options import Options
from grace.run.session import Session
from grace.transports.alone import Alone
from tests.unit.auto.handles import AUTO, LIKE, MS, Handle, both, calibration, real
from tests.unit.networks import in_threads


def test_ranks_choose_alike_what_is_fastest_and_say_so(link: dict[str, float], tmp_path: Path) -> None:
    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.train(120, real(link))
        return handle

    first, second = both(job)
    assert first.used == second.used
    assert first.method_of("second") == "topk"
    assert first.method_of("bias") == "none"
    explained = first.explain()
    assert explained.policy == second.explain().policy
    assert explained.verified_at is not None
    assert not any(trial.won for trial in explained.trials)
    assert explained.compute == pytest.approx(0.1)
    text = str(explained)
    assert "topk; verified at step" in text
    assert "fp32" in text
    assert "topk may be used: at worst" in text
    assert "spent" in text
    explained.save(tmp_path / "auto.json")
    assert Explanation.load(tmp_path / "auto.json") == explained
    values = first._log_values()
    assert values["auto/speedup"] > 1
    assert 0 < values["auto/spent_share"] < 1
    for damage in ("{}", "[", '{"schema": "grace.auto", "version": 9}'):
        (tmp_path / "other.json").write_text(damage)
        with pytest.raises(InputError, match="is no explanation of auto"):
            Explanation.load(tmp_path / "other.json")


def test_each_decision_is_a_line_of_the_log_and_of_what_is_explained(
    link: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.train(120, lambda method, step: {"topk": 0.2, "qsgd:bits=4": 0.2}.get(method, link[method] / 1e3))
        handle.switch("topk")
        return handle

    with caplog.at_level(logging.INFO, "grace"):
        first, _ = both(job)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("auto, step")]
    text = "\n".join(lines)
    for wanted in (
        r"auto, step 0: measured 4 codecs and the link in 0.0 s: AllReduce of 4 KiB takes 40.0 ms, .*; topk until the model",
        r"step 7: a step takes 100.0 ms without communication; predicted: bf16 \d+\.\d ms, fp32 .*; uses topk; tries bf16",
        r"step 7: bucket 1, 4,160 numbers: topk, 2\.\d ms predicted; rejected: qsgd:bits=4 8\.\d ms; bf16 25\.\d ms; fp32",
        r"auto, step \d+: bf16 replaces topk: \d of \d pairs for it; \d+\.\d ms a step beside \d+\.\d"
        r" in the median of \d pairs \(to see whether",
        r"auto, step \d+: bucket 0, 4,096 numbers: bf16, 25\.\d ms predicted, .* ms measured; rejected: topk",
        r"auto, step 120: ended: the user has switched to",
    ):
        assert re.search(wanted, text), f"{wanted}\n{text}"
    assert len([line for line in lines if "a step takes" in line]) == 1, "rank 0 alone"
    explained = str(first.explain())
    for line in lines:
        words = line.removeprefix("auto, ")
        assert words in explained or ": bucket" in words or ": ended" in words or ": waits" in words
    measured = first.explain().buckets[1].measured
    assert measured is not None
    assert 0 <= measured < 0.3


def test_a_model_whose_buckets_are_as_guessed_is_listened_to(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.buckets = (tuple(reversed(LIKE)),)  # a small model has one
        assert handle.buckets == handle._driver.buckets.names  # type: ignore[union-attr]
        handle.train(30, real(link))
        return handle

    handle = both(job)[0]
    assert handle.explain().compute == pytest.approx(0.1)
    assert handle.used[-1] == "topk"


def test_what_is_too_dear_to_try_is_passed_over_and_that_is_said(
    link: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    link.update({"none": 9000.0, "bf16": 5000.0, "topk": 25.0, "qsgd:bits=4": 25.5})

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.train(40, real(link))
        return handle

    with caplog.at_level(logging.INFO, "grace"):
        first, second = both(job)
    assert first.used == second.used
    assert "qsgd:bits=4" in first.used
    assert not {"bf16", "none"} & set(first.used[10:])
    assert re.search(r"waits: bf16: trying it may cost \d+\.\d s, and .*; qsgd:bits=4 is tried meanwhile", caplog.text)
    assert re.search(
        r"^Waits: bf16: trying it may cost \d+\.\d s, and the budget has \d\.\d", str(first.explain()), re.M
    )


def test_what_its_pairs_have_left_open_waits_for_another_trial_and_that_is_said(
    link: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    link.update({"none": 1.0, "bf16": 1.2, "topk": 1.5, "qsgd:bits=4": 30.0})

    def job(member: Any, rank: int) -> tuple[Handle, str]:
        handle = Handle(member, AUTO)

        def noisy(method: str, step: int) -> float:
            """Two pairs of three are 10 % faster under bf16, and one is 8 % slower; after 16 all are faster."""
            controller = handle._driver.controller  # type: ignore[union-attr]
            lost = controller is not None and controller.trying and controller._now.count in range(1, 16, 3)
            return {"none": 0.02, "bf16": 0.0256 if lost else 0.013}.get(method, 0.04)

        handle.train(10, noisy)
        while not handle._driver.controller.waits:  # type: ignore[union-attr]
            handle.train(1, noisy)
        waiting = str(handle.explain())
        handle.train(60, noisy)
        return handle, waiting

    with caplog.at_level(logging.INFO, "grace"):
        (first, waiting), (second, _) = both(job)
    assert first.used == second.used
    words = "11 of 16 pairs for it"
    assert f"Waits: bf16: {words}, and it is tried again after others; topk is tried meanwhile." in waiting
    assert f"waits: bf16: {words}, and it is tried again after others; topk is tried meanwhile" in caplog.text
    assert re.search(
        rf"step \d+: bf16 does not replace fp32: {words}: it is tried again, with these counted; ", waiting
    )
    assert re.search(r"step \d+: bf16 replaces fp32: 14 of 19 pairs for it; ", str(first.explain()))


def test_what_was_predicted_wrongly_is_left(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.train(120, lambda method, step: {"topk": 0.2, "qsgd:bits=4": 0.2}.get(method, link[method] / 1e3))
        return handle

    first, second = both(job)
    assert first.used == second.used
    assert first.method_of("second") == "bf16"
    assert "nothing that may be used was faster" in str(first.explain()) or "bf16; verified" in str(first.explain())
    assert "replaces" in str(first.explain())


def test_a_link_that_needs_nothing_gets_fp32(link: dict[str, float]) -> None:
    link.update({"none": 0.5, "bf16": 0.8, "topk": 2.0, "qsgd:bits=4": 4.0})

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.train(100, real(link))
        return handle

    first, _ = both(job)
    assert first.method_of("second") == "none"


def test_a_class_is_obeyed(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, "auto:quality=exact")
        handle.train(60, real(link))
        return handle

    first, _ = both(job)
    assert set(first.used[10:]) <= {"bf16", "none"}
    assert first.method_of("second") == "bf16"


def test_what_is_kept_is_kept(link: dict[str, float]) -> None:
    link.update({"none": 90.0, "bf16": 60.0})

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, "auto:methods=(topk;qsgd:bits=4),keep=(fir*=bf16)")
        handle.train(60, real(link))
        return handle

    first, _ = both(job)
    assert first.method_of("first") == "bf16"
    assert first.method_of("second") == "topk"


def test_errors_decide_in_place_of_a_class(link: dict[str, float]) -> None:
    def job(most: float) -> Callable[[Any, int], Handle]:
        def train(member: Any, rank: int) -> Handle:
            handle = Handle(member, f"auto:methods=(topk;qsgd:bits=4),error={most}")
            handle.train(60, real(link))
            return handle

        return train

    strict, lax = both(job(1e-6))[0], both(job(0.5))[0]
    assert "qsgd:bits=4" not in strict.used
    assert lax.method_of("second") == "qsgd:bits=4"
    assert "has a memory" in lax.explain().left_out["topk"]


def test_a_link_that_changes_is_answered(link: dict[str, float]) -> None:
    """The link becomes fast and the model slow: steps change their pace, and a look finds that topk's codec does not pay."""
    fast = {"none": 0.2, "bf16": 0.3, "topk": 2.0, "qsgd:bits=4": 8.0}
    lock = threading.Lock()

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.train(120, real(dict(link)))
        with lock:
            link.update(fast)
        handle.compute = 140
        handle.train(150, real(fast))
        return handle

    first, second = both(job)
    assert first.used == second.used
    assert first._driver is not None
    assert first._driver.controller is not None
    assert first._driver.controller.looks >= 1
    assert first.method_of("second") == "none"
    words = [text for _, text in first.explain().history]
    noticed = next(k for k, text in enumerate(words) if text.startswith("steps take 14"))
    assert words[noticed + 1].startswith("measured the link again, as steps take 14")
    assert first.explain().spent["looks"] > 0


class OwnNumbers(driver_module.Driver):
    """Rank 1 decides by its own numbers."""

    def tell(self, values: Any) -> list[list[int]]:
        rows = super().tell(values)
        return (
            [[10 * value for value in row] for row in rows] if self.session.rank and self.controller is None else rows
        )


def test_ranks_that_decide_by_their_own_numbers_are_caught(
    link: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grace.adapters.choosing.Driver", OwnNumbers)

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.train(200, lambda method, step: {"topk": 0.09}.get(method, link[method] / 1e3))
        return handle

    errors = in_threads(2, job)
    assert all(isinstance(error, AgreementError) for error in errors), errors


# ---- what can go wrong ----------------------------------------------------------------------------------------------
def test_one_worker_exchanges_nothing() -> None:
    handle = Handle(Alone(), "auto")
    handle.train(3, lambda method, step: 0.0)
    assert str(handle.explain()).startswith("auto, 1 workers over alone")
    assert "one worker exchanges nothing" in str(handle.explain())
    assert handle.method_of("second") == "none"


@pytest.mark.parametrize("granularity", ["bucket", "model"])
def test_groups_of_parameters_are_refused(granularity: Any) -> None:
    session = Session(LIKE, "none", Alone(), Options(granularity=granularity))
    with pytest.raises(ConfigurationError, match="legal: granularity='parameter'"):
        driver_module.Driver(session, Auto())


def test_a_slow_rank_is_named(link: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told("topk", (10 * MS, 10 * MS, 31 * MS))
    monkeypatch.setattr(sources, "calibrate", lambda *_, **__: replace(calibration(link), codecs=(told,)))

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.train(20, real(link))
        return handle

    with pytest.warns(GraceWarning, match="rank 2 takes 3.1 times as long as the median.*compression cannot mend that"):
        first, _ = both(job)
    assert "Rank 2 takes 3.1 times" in str(first.explain())


def test_a_switch_by_the_user_ends_it_and_another_begins_it(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.train(60, real(link))
        handle.switch("qsgd:bits=4")
        handle.train(40, real(link))
        assert handle.method_of("second") == "qsgd:bits=4"
        assert "ended: the user has switched to" in str(handle.explain())
        assert "auto" not in handle.state_dict()
        handle.switch(AUTO)
        handle.train(60, real(link))
        return handle

    first, _ = both(job)
    assert first.method_of("second") == "topk"


def test_a_fixed_method_explains_nothing() -> None:
    with pytest.raises(ConfigurationError, match='legal where it is "auto"'):
        Handle(Alone(), None, "topk").explain()


# ---- checkpoints ----------------------------------------------------------------------------------------------------
def owed(handle: Handle) -> float:
    return float(sum(x.sum() for x in handle._session.worker.state.debts().values()))


def test_a_state_of_a_fixed_method_is_where_auto_goes_on(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Handle:
        fixed = Handle(member, None, "topk")
        fixed.train(5, real(link))
        saved = fixed.state_dict()
        handle = Handle(member, AUTO)
        handle.load_state_dict(saved)
        assert handle._session.worker.step == 5
        assert owed(handle) == pytest.approx(owed(fixed), abs=1e-2)
        handle.train(2, real(link))
        assert handle.used[:2] == ["topk", "topk"]
        handle.train(100, real(link))
        with pytest.raises(StateError, match="not a Grace state"):
            handle.load_state_dict({"methods": 3})
        return handle

    first, _ = both(job)
    assert first.explain().verified_at is not None


def test_a_state_of_auto_is_where_it_goes_on_or_a_fixed_method_does(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Handle:
        first = Handle(member, AUTO)
        first.train(100, real(link))
        saved = first.state_dict()
        assert saved["auto"]["methods"] == {"first": "topk", "bias": "none", "second": "topk"}
        again = Handle(member, AUTO)
        again.load_state_dict(saved)
        again.train(1, real(link))
        assert again.used == ["topk"]
        fixed = Handle(member, None, "qsgd:bits=4")
        fixed.load_state_dict(saved)
        assert owed(fixed) == pytest.approx(owed(first), abs=1e-2)
        fixed.train(30, real(link))
        assert set(fixed.used) == {"qsgd:bits=4"}
        assert owed(fixed) == pytest.approx(0.0, abs=1e-2), "paid in instalments"
        return first

    both(job)


def test_a_state_in_the_middle_of_a_trial_is_that_of_the_incumbent(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, AUTO)
        handle.train(8, real(link))
        while not (handle._driver is not None and handle._driver.controller and handle._driver.controller.plan != 2):
            handle.train(1, real(link))
        assert handle.method_of("second") != "topk"
        saved = handle.state_dict()
        assert saved["auto"]["methods"]["second"] == "topk"
        assert saved["methods"]["second"] == "topk"
        again = Handle(member, AUTO)
        again.load_state_dict(saved)
        assert owed(again) == pytest.approx(owed(handle), abs=1e-2)
        return handle

    both(job)


# ---- goals ----------------------------------------------------------------------------------------------------------
TOPK = Known(None, 0.2, "a", 2, 6, StepsMultiple(1.2, 1.1, 1.3, "gpt_small"))
QUANTISED = Known(0.0, 0.0, "a", 2, 6, StepsMultiple(1.0, 0.9, 1.05, "ncf_small"))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A survey in which top-k takes 1.3 times the steps at most, and 4 bits 1.05 times."""
    methods = {spell(method("topk")): TOPK, spell(method("qsgd:bits=4")): QUANTISED}
    monkeypatch.setattr(classes, "frontier", lambda: Frontier(methods, (4,), ("torch",)))


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(("goal", "chosen"), [("steps", "topk"), ("time", "qsgd:bits=4")])
def test_the_goal_decides_whether_steps_or_time_to_quality_counts(
    link: dict[str, float], goal: str, chosen: str, tmp_path: Path
) -> None:
    """By the step: top-k 104 ms, 4 bits 116, bf16 150. To bf16's quality: 135, 122, 150."""

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, f"{AUTO},goal={goal}")
        handle.train(200, real(link))
        return handle

    first, second = both(job)
    assert first.used == second.used
    assert first.method_of("second") == chosen
    explained = first.explain()
    text = str(explained)
    assert explained.goal == goal
    assert f"{chosen} may be used: " in text
    assert "Measured with 4 workers and gradients of torch; taken to hold for 2 workers." in text
    if goal == "time":
        assert "to bf16's quality: 1 times bf16's steps (0.9 to 1.05) on ncf_small" in text
        assert "; times 1.05, the steps to bf16's quality: " in text
        assert "with at most 1.05 times the steps: " in text
        assert any("times 1.05 as many steps" in words for _, words in explained.history)
    else:
        assert "to bf16's quality: 1.2 times bf16's steps (1.1 to 1.3) on gpt_small" in text
        assert ", the steps to bf16's quality: " not in text
    explained.save(tmp_path / "auto.json")
    assert Explanation.load(tmp_path / "auto.json") == explained
    older = {key: value for key, value in explained.as_dict().items() if key not in ("goal", "steps", "extrapolated")}
    assert Explanation.read(older).candidates == explained.candidates
    nulls = {**older, "goal": None, "steps": None, "extrapolated": None}
    assert str(Explanation.read(nulls)) == str(Explanation.read(older))


@pytest.mark.usefixtures("measured")
def test_under_the_goal_time_bf16_stays_where_it_is_there_first(link: dict[str, float]) -> None:
    link["bf16"] = 9.0

    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, f"{AUTO},goal=time")
        handle.train(200, real(link))
        return handle

    first, _ = both(job)
    assert first.method_of("second") == "bf16", "118 ms, and 122 of 4 bits; steps alone would say 116"


def test_what_nobody_knows_the_steps_of_is_left_out_of_the_goal_time(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Handle:
        handle = Handle(member, "auto:goal=time,methods=(topk:ratio=0.123)")
        handle.train(20, real(link))
        return handle

    first, _ = both(job)
    assert "topk:ratio=0.123 left out: nobody measured how many steps it takes to bf16's quality" in str(
        first.explain()
    )
