"""All ranks measure, and decide by the same numbers."""

from __future__ import annotations

import itertools
import statistics
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.auto import calibrate as module
from grace.auto.calibrate import SLOW_NS, Told, calibrate, stragglers
from grace.auto.sources import look
from grace.collectives import AllGather, Collective
from grace.errors import TransportError
from grace.predict.costs import Cost, Step
from grace.predict.rates import NUMBERS, Rater, Sample
from grace.predict.replay import Replayer
from grace.predict.timeline import play
from grace.transports.alone import Alone
from tests.unit.networks import Loopback, in_threads

CANDIDATES = ("none", "bf16", "topk", "qsgd:bits=8,communicator=scatterreduce", "powersgd")
LARGEST = 300_000


def run(member: Any, rank: int) -> Any:
    return calibrate(member, CANDIDATES, LARGEST)


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_know_the_same(world: int) -> None:
    first, *others = in_threads(world, run)
    assert not isinstance(first, Exception), first
    assert all(other == first for other in others)
    assert set(first.rates) | set(first.left_out) == set(CANDIDATES)
    assert {"none", "bf16"} <= set(first.rates)
    assert {"AllReduce", "AllReduce in 16 bits"} <= set(first.timings.kinds)
    for timing in first.timings.kinds.values():
        assert timing.sizes[:2] == [4, 1 << 14]
        assert timing.sizes == sorted(timing.sizes)
        assert all(seconds > 0 for seconds in timing.seconds)
    assert first.timings.kinds["AllReduce"].sizes[-1] <= 4 * LARGEST + 4
    assert [measurement.what for measurement in first.codecs] == list(first.rates)
    assert {measurement.what for measurement in first.links} == set(first.timings.kinds)
    assert all(len(measurement.ns) == world for measurement in (*first.codecs, *first.links))
    assert set(first.spent) == {"codecs", "link"}
    assert first.fingerprint == f"{world} workers over threads, {first.cores:g} cores each"


def test_a_worker_alone_measures_nothing() -> None:
    known = calibrate(Alone(), CANDIDATES, LARGEST)
    assert (known.world, known.rates, known.timings.kinds, known.spent) == (1, {}, {}, {})


def test_a_link_that_fails_says_what_was_going_on() -> None:
    class Two(Loopback):
        world = 2

        def run(self, op: Collective) -> Tensor:
            answer = super().run(op)
            return answer.expand(2, *answer.shape[1:]).clone() if isinstance(op, AllGather) else answer

    for fail_at in (0, 1, 4):
        with pytest.raises(TransportError, match="while auto measured the link and the codecs: a worker died"):
            calibrate(Two(fail_at), ["none"], 1000)


class Given(Rater):
    """Rates that are given, by rank and method: nanoseconds a number."""

    costs: dict[tuple[int, str], float] = {}  # noqa: RUF012
    rank = threading.local()

    def run(self, method: Any, world: int, numbers: int, patience: float = 0.0) -> Sample:
        each = self.costs.get((self.rank.value, str(method)), 1.0)
        if each < 0:
            raise RuntimeError("no such kernel")
        return Sample(numbers, (int(each * numbers), 1000), (("AllReduce", 4 * numbers),))


def given(
    monkeypatch: pytest.MonkeyPatch, costs: dict[tuple[int, str], float], world: int = 3, clock: Any = None
) -> list[Any]:
    monkeypatch.setattr(module, "Rater", Given)
    monkeypatch.setattr(Given, "costs", costs)

    def job(member: Any, rank: int) -> Any:
        Given.rank.value = rank
        return calibrate(member, ["none", "topk"], 1000, **({} if clock is None else {"clock": clock}))

    return in_threads(3, job)


def test_the_slowest_rank_counts_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    results = given(monkeypatch, {(1, "topk"): 7.0})
    assert all(result == results[0] for result in results)
    start, each = results[0].rates["topk"].codec[0]
    assert (start, each) == (pytest.approx(0.0, abs=1e-9), pytest.approx(7e-9))
    assert stragglers(results[0].codecs) == [
        "rank 1 takes 7.0 times as long as the median of the ranks (topk): all wait for it"
    ]
    assert stragglers(results[0].codecs[:1]) == []


def test_of_two_ranks_the_slower_is_compared_with_the_other() -> None:
    assert stragglers([Told("the model", (20, 50))]) == [
        "rank 1 takes 2.5 times as long as rank 0 (the model): all wait for it"
    ]
    assert stragglers([Told("the model", (20, 29))]) == []


def test_what_is_too_slow_on_one_rank_is_left_out_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    results = given(monkeypatch, {(2, "topk"): 60.0})
    assert all(result == results[0] for result in results)
    assert list(results[0].rates) == ["none"]
    assert results[0].left_out == {"topk": f"its codec takes 60 ns a number, more than {SLOW_NS}"}


def test_what_one_rank_cannot_run_is_left_out_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    results = given(monkeypatch, {(1, "topk"): -1.0})
    assert all(result == results[0] for result in results)
    assert results[0].left_out == {"topk": "rank 1 cannot run it"}


def test_the_last_candidates_are_left_out_where_time_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(0, 2_000_000_000)
    results = given(monkeypatch, {}, clock=lambda: next(now))
    assert all(result == results[0] for result in results)
    assert list(results[0].rates) == ["none"]
    assert results[0].left_out == {"topk": "not measured: 1.5 s had passed"}


def test_methods_of_machines_need_the_grid() -> None:
    results = in_threads(2, lambda member, rank: calibrate(member, ["none", "topk:machine=2"], 1000))
    assert results[0].left_out == {
        "topk:machine=2": "needs {'machines': 1, 'machine': 2}, and these workers lie on no grid"
    }


def test_a_slow_link_is_not_measured_at_sizes_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the slope of 16 KiB, and within the time that there is."""
    asked: list[int] = []

    def slow(self: Any, kind: str, size: int) -> tuple[float, float]:
        asked.append(size)
        self.spent += 1
        self.last = [1, 1]
        return size * 1e-6 + 1e-4, 0.0

    monkeypatch.setattr(module.Probe, "_time", slow)
    monkeypatch.setattr(module, "Rater", Given)

    def job(member: Any, rank: int) -> Any:
        Given.rank.value = rank
        return calibrate(member, ["none"], 1 << 24)

    results = in_threads(2, job)
    assert results[0].timings.kinds["AllReduce"].sizes == [4, 1 << 14]
    monkeypatch.setattr(module, "LINK_NS", 0)
    assert in_threads(2, job)[0].timings.kinds["AllReduce"].sizes == [4, 1 << 14], "two are measured in any case"


def test_a_look_measures_the_link_again_and_keeps_the_rest() -> None:
    def job(member: Any, rank: int) -> Any:
        known = calibrate(member, ["none", "topk"], LARGEST)
        return known, look(member, known, ["none"])

    (known, looked), *others = in_threads(2, job)
    assert all(other == (known, looked) for other in others)
    assert looked.rates.keys() == known.rates.keys()
    assert looked.timings.kinds["AllReduce"] != known.timings.kinds["AllReduce"]
    assert looked.timings.kinds["AllReduce"].sizes[:1] == [4]
    assert looked.timings.kinds["AllGather"] == known.timings.kinds["AllGather"]
    assert looked.spent["looks"] > 0
    assert known.spent.get("looks") is None


def test_phases_of_a_bucket_alternate_between_codec_and_move() -> None:
    known = in_threads(2, run)[0]
    shapes = [(64, 64), (300, 1000)]
    for name in known.rates:
        phases = known.phases(name, shapes)
        assert len(phases) % 2 == 1
        assert all(seconds >= 0 and cpu >= 0 for cpu, seconds in phases)
    (encode, move, decode) = known.phases("none", shapes)
    assert move[1] == pytest.approx(known.timings.seconds("AllReduce", 4 * (4096 + 300_000)), rel=0.01)
    assert encode == (encode[0], encode[0])
    assert decode[0] >= 0


def test_a_rate_predicts_what_a_replay_measures() -> None:
    """Two ways to measure one codec: of the whole model, and a line through two sizes. Bytes are the same, times alike."""
    shapes = {"a.weight": (500, 400), "b.weight": (300, 600)}
    replayer = Replayer(shapes, [list(shapes)], samples=5)
    replay = replayer.run("topk", 4)
    known = in_threads(2, lambda member, rank: calibrate(member, ["topk"], LARGEST))[0]
    from grace.predict.rates import Rate

    rate = Rate.through(4, [Rater().run("topk", 4, numbers) for numbers in NUMBERS])
    step = Step(0.0, (0.0,), (sum(replayer.numbers),), 1.0, replayer.add_seconds / sum(replayer.numbers), copies=0.0)
    network = step.over(module.UNSHAPED)
    whole = Cost(lambda world: replay).seconds(step, network, 4)
    lines = play(0.0, 1, 1.0, (0.0,), [rate.phases([200_000, 180_000], network)])
    assert lines == pytest.approx(whole, rel=0.9), "a machine with other work to do"
    moved = rate.phases([200_000, 180_000], network)[1]
    assert moved[1] == pytest.approx(network.move("AllGather", replay.moved[0]["AllGather"], 4)[1], rel=0.02)
    assert known.world == 2


# ---- who is slow -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("ns", "slowest", "times"), [((5, 9, 5), 1, 1.8), ((4, 2), 0, 2.0), ((0, 0), 0, 0.0)])
def test_who_is_slow(ns: tuple[int, ...], slowest: int, times: float) -> None:
    told = Told("topk", ns)
    assert (told.slowest, told.straggles) == (slowest, times)
    assert statistics.median(ns) <= max(ns)


def test_numbers_travel_whole() -> None:
    """Whole nanoseconds of any length: a float32 would lose some."""

    def job(member: Any, rank: int) -> Any:
        return module.Probe(member, 1).all_gather_numbers([2**53 + rank, -rank])

    assert in_threads(2, job)[0] == [[2**53, 0], [2**53 + 1, -1]]
    assert torch.tensor([2**53 + 1], dtype=torch.int64).tolist() == [2**53 + 1]
