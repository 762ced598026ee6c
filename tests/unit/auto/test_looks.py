"""Looks: measurements that are repeated between two steps, and when."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from grace.auto import sources
from grace.auto.calibrate import calibrate, unsure_of
from grace.auto.controller import LOOK_STEPS, Controller
from grace.auto.drift import EXCHANGES
from grace.predict.links import UNSHAPED
from grace.predict.probe import Probe, Timing, Timings
from grace.predict.rates import NUMBERS, Rate, Rater, Sample
from grace.transports.alone import Alone
from tests.unit.networks import in_threads

MS = 1_000_000


# ---- codecs ---------------------------------------------------------------------------------------------------------
class Paced(Rater):
    """Each exchange takes so many times as long as it did, by method."""

    times: dict[str, float] = {}  # noqa: RUF012
    ran: list[str] = []  # noqa: RUF012

    def run(self, method: Any, world: int, numbers: int, patience: float = 0.0) -> Sample:
        self.ran.append(str(method))
        return Sample(numbers, (int(numbers * self.times[str(method)]), 0), (("AllReduce", 4 * numbers),))


def looked(monkeypatch: pytest.MonkeyPatch, times: dict[str, float], **changes: Any) -> tuple[Any, Any]:
    """Knowledge before a look, a nanosecond for each number, and after it."""
    monkeypatch.setattr(sources, "Rater", Paced)
    monkeypatch.setattr(Paced, "times", times)
    monkeypatch.setattr(Paced, "ran", [])

    def job(member: Any, rank: int) -> Any:
        known = calibrate(member, ["none"], 4096)
        rate = Rate(2, ((0.0, 1e-9), (0.0, 0.0)), (("AllReduce", 0.0, 4.0),))
        known = replace(known, rates=dict.fromkeys(("none", "bf16", "topk"), rate), **changes)
        return known, sources.look(member, known, list(known.rates), first=["topk"])

    results = in_threads(2, job)
    assert results[0] == results[1], "all ranks know the same"
    known, after = results[0]
    return known, after


def test_codecs_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known, after = looked(monkeypatch, {"none": 1.0, "bf16": 3.0, "topk": 2.0})
    at = {name: rate.seconds(NUMBERS[1]) / known.rates[name].seconds(NUMBERS[1]) for name, rate in after.rates.items()}
    assert at == pytest.approx({"none": 1.0, "bf16": 3.0, "topk": 2.0}, rel=1e-3)
    assert Paced.ran[:2] == ["topk", "topk"], "what is used comes first, on both ranks"
    assert {codec.what: codec.ns[0] for codec in after.codecs}["topk"] == 2 * NUMBERS[1]
    assert after.rates["topk"].moved == known.rates["topk"].moved


def test_what_there_is_no_time_for_changes_as_the_others_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CODEC_NS", 3 * NUMBERS[1])
    known, after = looked(monkeypatch, {"topk": 2.5})
    assert set(Paced.ran) == {"topk"} or not Paced.ran
    if Paced.ran:  # telling takes a while as well
        assert after.rates["bf16"].seconds(1000) == pytest.approx(2.5 * known.rates["bf16"].seconds(1000), rel=1e-3)
    monkeypatch.setattr(sources, "CODEC_NS", 0)
    known, after = looked(monkeypatch, {})
    assert after.rates == known.rates


# ---- the link -------------------------------------------------------------------------------------------------------
def test_small_sizes_that_load_has_slowed_do_not_keep_larger_ones_from_being_measured() -> None:
    probe = Probe(Alone(), 1, most_seconds=0.1)
    timing = Timing([4, 1 << 14], [0.030, 0.045])  # medians on a machine with other work
    assert probe._estimate("AllGather", timing, 1 << 17) > 0.1
    probe._quickest.update({("AllGather", 4): 0.001, ("AllGather", 1 << 14): 0.0015})
    assert probe._estimate("AllGather", timing, 1 << 17) == pytest.approx(0.005, rel=1e-3)
    assert Probe(Alone(), 1)._estimate("AllGather", Timing([1 << 14], [0.01]), 1 << 15) == pytest.approx(0.02)


def test_what_is_known_to_few_bytes_only_is_unsure() -> None:
    timings = Timings(
        UNSHAPED,
        2,
        2,
        {"AllGather": Timing([4, 1 << 14], [1e-3, 2e-3]), "AllReduce": Timing([4, 1 << 17], [1e-3, 2e-3])},
    )
    assert unsure_of(timings, {"AllGather": 1 << 20, "AllReduce": 1 << 26}) == ("AllGather",)
    assert unsure_of(timings, {"AllGather": 1 << 14}) == ()


# ---- when -----------------------------------------------------------------------------------------------------------
def watch(
    steps: int, change: int, before: float, after: float, *, share: float = 0.5, noise: float = 0.08
) -> Controller:
    """A plan whose step hardly changes while its exchanges take other times from one step on; ``share``: of the step."""
    rng = random.Random(3)
    controller = Controller([250 * MS, 200 * MS], 1, [], baselines=1)
    for step in range(steps):
        moved = before if step < change else after
        period = 200 * MS * rng.gauss(1.0 if step < change else 0.97, 0.02)
        exchanges = int(200 * MS * share * moved * rng.gauss(1.0, noise))
        record = controller.ended(int(period), 200 * MS * (step + 1), 0, exchanges)
        if record is not None:
            controller.heard([record, [*record[:6], 3 * record[6], *record[7:]]])
            if controller.look is not None:
                controller.looked([250 * MS, 200 * MS], [], "the link has changed")
    return controller


def test_a_link_that_became_faster_shows_in_exchanges() -> None:
    controller = watch(460, 300, 1.0, 0.4)
    noticed = [step for step, text in controller.events if text.startswith("exchanges take")]
    assert noticed
    assert 300 < noticed[0] <= 300 + 64
    assert controller.looks == 1
    assert not controller.pressing, "the baseline need not be tried for it"


def test_without_exchanges_it_takes_until_the_next_look() -> None:
    assert watch(460, 300, 1.0, 0.4, share=0.0).looks == 0
    assert watch(460, 300, 1.0, 0.4, share=0.5 * EXCHANGES).looks == 0, "they are too small a part of the step"


def test_noise_in_exchanges_costs_no_looks() -> None:
    controller = watch(LOOK_STEPS - 20, 300, 1.0, 1.0, noise=0.3)
    assert not controller.events
    assert controller.looks == 0


def test_a_look_that_is_asked_for_comes_after_a_block() -> None:
    controller = Controller([250 * MS, 200 * MS], 1, [], baselines=1)
    controller.ask("the link is known only so far")
    for step in range(20):
        record = controller.ended(200 * MS, 200 * MS * (step + 1))
        if record is not None:
            controller.heard([record])
            break
    assert controller.look == "the link is known only so far"
    assert not controller.pressing
