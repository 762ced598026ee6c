"""``auto`` on GPUs, over devices of virtual time: what it predicts and keeps, what counts, and when it gives up."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from grace.auto import device
from grace.auto import driver as driver_module
from grace.auto import model as model_module
from grace.auto import planner as planner_module
from grace.auto.device import LATE, OnDevice
from grace.errors import ConfigurationError
from grace.flags.capturing import pretend_capturing
from grace.predict.probe import Timing
from grace.predict.timeline import Host
from tests.unit.auto.gpus import COMPILES, Machine, Meeting, OnGPU, Timed, steady, virtual
from tests.unit.auto.handles import AUTO, LIKE, both
from tests.unit.networks import in_threads

__all__ = ["virtual"]

LINK = {"none": 40.0, "bf16": 20.0, "topk": 12.0, "qsgd:bits=4": 7.0}
CODEC = {
    "bf16": ((0.1, 0.3), (0.1, 0.3)), "topk": ((1.0, 2.0), (0.2, 0.1)), "qsgd:bits=4": ((0.5, 0.5), (0.3, 0.4)),
}  # fmt: skip
ISSUE = {"none": (0.1, 0.0), "bf16": (0.2, 0.01), "topk": (2.0, 0.1), "qsgd:bits=4": (0.4, 0.05)}


def faster(times: float) -> dict[str, float]:
    return {name: ms / times for name, ms in LINK.items()}


def dearer(times: float) -> dict[str, tuple[float, float]]:
    return {name: (times * start, each) for name, (start, each) in ISSUE.items()}


SLOW = Machine(LINK, codec=CODEC, issue=ISSUE)
MACHINES = {
    "a slow link": SLOW,
    "a host that waits for each step": replace(SLOW, ahead=1),
    "a host that waits, and comes late": Machine(faster(8), codec=CODEC, issue=dearer(5), host=4.0, ahead=1),
    "a host that issues for longer than the device works": Machine(faster(20), codec=CODEC, issue=dearer(6), host=2.0),
    "a link of much latency": Machine(faster(20), codec=CODEC, issue=ISSUE, latency=6.0),
    "a fast link": Machine(faster(30), codec=CODEC, issue=ISSUE),
    "the least that is sent": Machine({"none": 300.0, "bf16": 150.0, "topk": 8.0, "qsgd:bits=4": 40.0}, issue=ISSUE),
    "codecs that are slower than any link": Machine(
        {"none": 20.0, "bf16": 18.0, "topk": 2.0, "qsgd:bits=4": 9.0},
        codec={"topk": ((300.0, 0.0), (100.0, 0.0)), "qsgd:bits=4": ((40.0, 0.0), (40.0, 0.0))},
    ),
}
NEVER_WAITS = Machine(faster(20), codec=CODEC, issue=ISSUE, host=11.0)


def train(
    machine: Machine, steps: int = 600, auto: str | None = AUTO,
    compute: Callable[[int, int], float] = lambda step, rank: 1.0, **knobs: Any,
) -> list[OnGPU]:  # fmt: skip
    meeting = Meeting(2)

    def job(member: Any, rank: int) -> OnGPU:
        handle = OnGPU(member, auto, meeting, machine, **knobs)
        handle.play(steps, compute)
        return handle

    return both(job)


def played(machine: Machine, method: str) -> float:
    """Milliseconds of a step under one method."""
    return steady(train(machine, steps=40, auto=None, method=method))


def predicted(handles: list[OnGPU], method: str) -> float:
    """The same as it is predicted."""
    plan = handles[0]._driver.source.problem().uniform(method)  # type: ignore[union-attr]
    assert plan is not None
    return 1e3 * plan.seconds


@pytest.mark.parametrize("name", MACHINES)
def test_predicted_is_played_and_nothing_is_kept_that_is_slower_than_fp32_and_bf16(name: str) -> None:
    """And trials cost no more than their budget, of which six seconds are free; nobody waits for anybody else."""
    machine = MACHINES[name]
    steps = {method: played(machine, method) for method in LINK}
    first, second = handles = train(machine, auto=AUTO)
    for method, ms in steps.items():
        assert predicted(handles, method) == pytest.approx(ms, rel=1e-4)
    assert first.used == second.used
    better = min(steps["none"], steps["bf16"])
    assert steady(handles) <= min(steps.values()) * 1.001 <= better * 1.001
    explained = first.explain()
    assert explained.verified_at is not None
    for candidate in explained.candidates:
        if candidate.measured is not None:
            assert candidate.predicted == pytest.approx(candidate.measured, rel=1e-3)
    listening = OnDevice.listens + 2  # until then fp32 is used
    unknown = listening * max(0.0, steps["none"] - better)
    assert first.seconds < (len(first.used) * better + unknown) / 1e3 + 6.0
    assert len(first.gpu.waited) < len(first.used) / 5 + 250, "beside measurements the host waits twice a block"


def test_a_host_that_never_waits_is_the_slowest_lane() -> None:
    """Nobody sees there what the device would take alone: a prediction is too long by what last exchanges differ."""
    handles = train(NEVER_WAITS, steps=200)
    host = handles[0]._driver.model.host  # type: ignore[union-attr]
    assert host is not None
    assert not host.arrives
    assert host.own == pytest.approx(22e-3)
    for method in LINK:
        ms = played(NEVER_WAITS, method)
        assert ms <= predicted(handles, method) * 1.0001 <= 1.02 * ms
    assert handles[0].used[-1] == "none"


def test_the_host_decides_where_two_methods_take_the_device_as_long() -> None:
    """4 bits are the fastest on the link and on the device; their host issues for longer than bf16's."""
    machine = Machine(
        faster(4), codec=CODEC, issue={"none": (0.5, 0.0), "bf16": (0.5, 0.0), "topk": (9.0, 0.0), "qsgd:bits=4": (9.0, 0.0)},
        host=4.0, ahead=1,
    )  # fmt: skip
    assert played(machine, "bf16") < played(machine, "qsgd:bits=4")
    light = replace(machine, issue={})
    assert played(light, "bf16") > played(light, "qsgd:bits=4")
    handles = train(machine)
    assert steady(handles) <= played(machine, "bf16")


def close(machine: Machine) -> bool:
    """True if all methods are predicted as they are played."""
    handles = train(machine, steps=OnDevice.listens + 4)
    return all(predicted(handles, method) == pytest.approx(played(machine, method), rel=1e-3) for method in LINK)


def ignores_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    play = planner_module.play
    monkeypatch.setattr(planner_module, "play", lambda *args, **kwargs: play(*args[:5], None, **kwargs))


def ignores_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "issued", property(lambda self: []))


def ignores_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Timing.at
    monkeypatch.setattr(Timing, "at", lambda self, size: at(self, size) - self.latency)


def does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timed, "hold", lambda self, nanoseconds: None)


def shares_fairly(monkeypatch: pytest.MonkeyPatch) -> None:
    play = planner_module.play
    monkeypatch.setattr(planner_module, "play", lambda *args, urgent: play(*args[:1], 1, 2.0, *args[3:], urgent=False))


def forgets_what_it_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    host_of = model_module._host_of

    def without(told: Any, issues: Any) -> Host:
        return host_of(told, [0.0] * len(issues))

    monkeypatch.setattr(model_module, "_host_of", without)


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (ignores_the_host, "a host that waits, and comes late"),
        (ignores_the_host, "a host that issues for longer than the device works"),
        (ignores_its_place, "a host that waits, and comes late"),
        (ignores_latency, "a link of much latency"),
        (does_not_hold, "a slow link"),
        (shares_fairly, "a slow link"),
        (forgets_what_it_issued, "a host that issues for longer than the device works"),
    ],
)
def test_mutants_of_predictions_are_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert close(MACHINES[name])
    mutant(monkeypatch)
    assert not close(MACHINES[name])


@pytest.mark.parametrize("goal", ["steps", "time"])
def test_goals_hold_there_too(goal: str) -> None:
    """Under the goal "time" the steps that a method needs count: 4 bits gain less than a factor of two, and need that."""
    auto = f"auto:goal={goal},methods=(topk;qsgd:bits=4)"
    meeting = Meeting(2)

    def job(member: Any, rank: int) -> OnGPU:
        handle = OnGPU(member, auto, meeting, SLOW)
        handle._driver.factors.update({"qsgd:bits=4": 2.0} if goal == "time" else {})  # type: ignore[union-attr]
        handle.play(400)
        return handle

    handles = both(job)
    driver = handles[0]._driver
    assert driver is not None
    cost = {name: played(SLOW, name) * driver.factors.get(name, 1.0) for name in driver.methods}
    assert handles[0].used[-1] == min(cost, key=lambda name: cost[name])
    assert (handles[0].used[-1] == "qsgd:bits=4") == (goal == "steps")


def test_steps_that_compile_count_for_nothing() -> None:
    """Four exchanges of each method that are measured, and four of its steps, compile for two seconds each."""
    handles = train(SLOW, compiles=4, kernels=4)
    assert handles[0].used[-1] == handles[1].used[-1] == "qsgd:bits=4"
    explained = handles[0].explain()
    assert explained.spent["steps that compiled"] >= 4.0
    assert explained.spent["codecs"] < 1.0
    for method in LINK:
        assert predicted(handles, method) == pytest.approx(played(SLOW, method), rel=1e-3)


class Counted(OnDevice):
    """Counts steps that compile."""

    def known(self, step: int, *, due: bool) -> list[tuple[int, int, bool]]:
        return [(number, period, False) for number, period, _ in super().known(step, due=due)]


class ByHost(OnDevice):
    """Goes by the host's clock, which is ahead of the device."""

    def ended(self, step: int, counts: bool) -> int:
        now, before = self._driver.clock(), getattr(self, "_before", 0)
        self._before = now
        super().ended(step, counts)
        self._pending = type(self._pending)((s, 0, 0, c) for s, _, _, c in self._pending)
        self._took = {**getattr(self, "_took", {}), step: now - before}
        return 0

    def known(self, step: int, *, due: bool) -> list[tuple[int, int, bool]]:
        return [(number, self._took[number], compiled) for number, _, compiled in super().known(step, due=due)]


class InTime(OnDevice):
    """Believes that what a step took is known when it ends."""

    late = 0


def measured(mutant: type[OnDevice], machine: Machine, monkeypatch: pytest.MonkeyPatch, **knobs: Any) -> bool:
    """True if what steps took was measured right, and 4 bits were kept for it."""
    monkeypatch.setattr(driver_module, "OnDevice", mutant)
    first = train(machine, steps=300, **knobs)[0]
    taken = {c.words: c.measured for c in first.explain().candidates if c.measured is not None}
    names = {"fp32": "none"}
    return first.used[-1] == "qsgd:bits=4" and all(
        1e3 * seconds == pytest.approx(played(machine, names.get(words, words)), rel=1e-2)
        for words, seconds in taken.items()
    )


def test_mutants_of_periods_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(OnDevice, SLOW, monkeypatch, compiles=8)
    assert not measured(Counted, SLOW, monkeypatch, compiles=8)
    assert not measured(InTime, SLOW, monkeypatch)
    # the host is 40 steps ahead: what it submits in a block is played in the next
    far = replace(SLOW, ahead=40)
    assert measured(OnDevice, far, monkeypatch)
    assert not measured(ByHost, far, monkeypatch)


def test_one_rank_that_compiles_begins_the_block_again_on_all() -> None:
    meeting = Meeting(2)

    def job(member: Any, rank: int) -> OnGPU:
        handle = OnGPU(member, AUTO, meeting, SLOW, compiles=5 * rank)
        handle.play(700)
        return handle

    first, second = both(job)
    assert first.used == second.used
    assert first.used[-1] == "qsgd:bits=4"
    assert first.compiled == 0 < second.compiled


def test_what_never_ends_compiling_is_left() -> None:
    handle = train(SLOW, compiles=10_000, steps=300)[0]
    assert set(handle.used) == {"none"}
    assert handle.explain().stage == "measuring", "fp32 compiles for ever, too"


def test_a_challenger_that_never_ends_compiling_is_left_by_all_ranks() -> None:
    """On rank 1 alone every step of top-k compiles."""
    meeting, machine = Meeting(2), MACHINES["the least that is sent"]

    def job(member: Any, rank: int) -> OnGPU:
        handle = OnGPU(member, AUTO, meeting, machine, compiles=10_000 * rank, only="topk")
        handle.play(600)
        return handle

    first, second = both(job)
    assert first.used == second.used
    assert first.used[-1] == "qsgd:bits=4"
    assert "its steps went on compiling" in str(first.explain())


def noisy(seed: int) -> Callable[[int, int], float]:
    """Noise of 8 %, the same on all ranks of a step or not, with stalls."""

    def times(step: int, rank: int) -> float:
        draw = random.Random(f"{seed} {step} {rank}")
        return math.exp(draw.gauss(0, 0.08)) * (1 + (draw.random() < 0.03) * draw.expovariate(0.7))

    return times


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["a fast link", "the least that is sent"])
def test_noise_and_uneven_ranks_keep_nothing_slower(name: str, seed: int) -> None:
    machine = MACHINES[name]
    first, second = train(machine, compute=noisy(seed), steps=1000)
    assert first.used == second.used
    assert played(machine, first.used[-1]) <= min(played(machine, "none"), played(machine, "bf16"))


def test_one_slow_rank_decides_for_all() -> None:
    """Rank 1 takes twenty times as long under top-k: rank 0 alone would keep it."""
    first, second = train(
        MACHINES["the least that is sent"],
        factor=lambda method, step, rank: 20.0 if method == "topk" and rank else 1.0,
    )
    assert first.used == second.used
    assert first.used[-1] == "qsgd:bits=4"


def test_a_link_that_changes_is_answered() -> None:
    fast = MACHINES["a fast link"]
    first, second = train(fast, factor=lambda method, step, rank: 1.0 if step < 500 else 30.0, steps=1500)
    assert first.used == second.used
    assert first.used[499] == "none"
    assert first.used[-1] == "qsgd:bits=4"
    assert "measured the link again, as steps take" in str(first.explain())


def test_steps_of_a_second_cost_nothing_to_try_where_they_are_predicted_to_be_faster() -> None:
    """Before that they are not used."""
    slow = Machine({"none": 100.0, "bf16": 60.0, "topk": 10.0, "qsgd:bits=4": 20.0}, compute=1000.0)
    first = train(slow, steps=160)[0]
    (trial, *_), text = first.explain().trials, str(first.explain())
    assert set(first.used[: OnDevice.listens + 1]) == {"none"}
    assert "uses bf16; tries topk, then fp32, then qsgd:bits=4" in text
    assert first.explain().candidates[trial.rival].words == first.used[-1] == "topk"
    assert trial.won


def test_a_run_that_ends_too_soon_says_so() -> None:
    handle = train(SLOW, steps=5)[0]
    handle._end_run()
    assert "steps too short for the model to be known: fp32 was used" in str(handle.explain())


def test_what_is_explained_says_what_is_different() -> None:
    handle = train(SLOW, steps=120)[0]
    text = str(handle.explain())
    assert "Auto on GPUs has been tested over a device of virtual time, and was not run on a GPU yet" in text
    assert re.search(r"^  bf16: (\d+\.\d) ms a step measured, \1 predicted$", text, re.M)
    assert re.search(r"fp32 until the model is known$", text, re.M)
    assert all(bucket.measured is None for bucket in handle.explain().buckets), "the host's time is none of an exchange"
    document = handle.explain().as_dict()
    assert type(handle.explain()).read(document) == handle.explain()
    assert "2 workers over" in handle._driver.known.fingerprint  # type: ignore[union-attr]
    assert "Virtual GPU each" in handle._driver.known.fingerprint  # type: ignore[union-attr]


def test_a_gpu_without_triton_tries_casts_alone() -> None:
    handle = train(SLOW, steps=300, problem="no Triton for this torch")[0]
    assert set(handle.used) == {"none", "bf16"}
    assert handle.used[-1] == "bf16"
    assert "topk left out: a worker's GPU has no Triton kernels, only torch's casts: no Triton for" in str(
        handle.explain()
    )


def test_a_memory_that_does_not_fit_is_left_out() -> None:
    handle = train(MACHINES["the least that is sent"], free=100_000)[0]
    assert "topk" not in handle.used
    assert "topk left out: keeps a memory of" in str(handle.explain())


@pytest.mark.parametrize(("error", "kept"), [("1e-6", "bf16"), ("0.9", "qsgd:bits=4")])
def test_errors_decide_in_place_of_a_class_there_too(error: str, kept: str) -> None:
    auto = f"auto:error={error},methods=(topk;qsgd:bits=4)"
    handle = train(SLOW, auto=auto, steps=400)[0]
    assert "topk" not in handle.used, "it has a memory"
    assert handle.used[-1] == kept


def test_gradients_are_exchanged_under_it_and_all_ranks_choose_alike() -> None:
    first, second = train(SLOW, steps=60, real=True)
    assert first.used == second.used
    assert {"none", "bf16"} <= set(first.used)


def test_two_ranks_on_one_gpu_are_refused_on_both() -> None:
    meeting = Meeting(2)
    errors = in_threads(2, lambda member, rank: OnGPU(member, AUTO, meeting, SLOW, place="the same"))
    for error in errors:
        assert isinstance(error, ConfigurationError)
        assert "ranks 0 and 1 are on one GPU (Virtual GPU)" in str(error)
        assert "grace advise says which" in str(error)


def test_a_captured_step_is_refused_before_anything_is_sent() -> None:
    meeting = Meeting(2)

    def job(member: Any, rank: int) -> str:
        handle = OnGPU(member, AUTO, meeting, SLOW)
        handle.play(20)
        meeting._barrier.wait()
        if rank == 0:
            with pretend_capturing(), pytest.raises(ConfigurationError, match=r"call handle.switch\(METHOD\) before"):
                handle._exchange_bucket({"second": torch.zeros_like(LIKE["second"])}, False)
        meeting._barrier.wait()
        return handle.used[-1]

    assert len(set(both(job))) == 1


def test_candidates_of_a_class_are_few_and_the_others_are_named() -> None:
    handle = train(SLOW, steps=3, auto="auto")[0]
    methods = handle._driver.methods  # type: ignore[union-attr]
    assert methods[:2] == ["none", "bf16"]
    assert len(methods) <= 2 + device.MOST
    left = handle.explain().left_out
    assert any("compiles kernels of its own" in why for why in left.values()) == (len(methods) == 2 + device.MOST)


def test_lateness_is_that_of_flags() -> None:
    assert LATE == OnDevice.late == 2
    assert COMPILES > 1e9
