"""``auto`` on GPUs, over devices of virtual time: what it keeps, what counts, and when it gives up."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from grace.auto import device
from grace.auto import driver as driver_module
from grace.auto.device import ASSUMED, LATE, OnDevice
from grace.errors import ConfigurationError
from grace.flags.capturing import pretend_capturing
from tests.unit.auto.gpus import COMPILES, Exchange, Meeting, OnGPU, of, steady, virtual
from tests.unit.auto.handles import AUTO, LIKE, MS, both
from tests.unit.networks import in_threads

__all__ = ["virtual"]

NETWORKS = {  # milliseconds of a bucket under each method, on networks from fast to slow
    "inside a machine": {"none": 1.0, "bf16": 1.3, "topk": 6.0, "qsgd:bits=4": 3.0},
    "casts pay": {"none": 6.0, "bf16": 3.5, "topk": 6.5, "qsgd:bits=4": 5.0},
    "four bits pay": {"none": 40.0, "bf16": 20.0, "topk": 12.0, "qsgd:bits=4": 7.0},
    "the least that is sent": {"none": 300.0, "bf16": 150.0, "topk": 8.0, "qsgd:bits=4": 40.0},
    "codecs that are slower than any link": {"none": 20.0, "bf16": 18.0, "topk": 400.0, "qsgd:bits=4": 90.0},
}


def step_ms(exchange: float) -> float:
    """Milliseconds of a step of two buckets, the first of which travels beside the second half of the model."""
    return max(20.0, 10.0 + exchange) + exchange


def train(
    each: dict[str, float] | Exchange,
    steps: int = 600,
    auto: str = AUTO,
    compute: Callable[[int, int], float] = lambda step, rank: 1.0,
    **knobs: Any,
) -> list[OnGPU]:
    meeting, exchange = Meeting(2), of(each) if isinstance(each, dict) else each

    def job(member: Any, rank: int) -> OnGPU:
        handle = OnGPU(member, auto, meeting, **knobs)
        handle.play(steps, exchange, compute)
        return handle

    return both(job)


@pytest.mark.parametrize("network", NETWORKS)
def test_it_keeps_what_is_fastest_and_nothing_slower_than_fp32_and_bf16(network: str) -> None:
    """Trials cost no more than their budget, of which six seconds are free; and nobody waits for anybody else."""
    each = NETWORKS[network]
    first, second = handles = train(each)
    assert first.used == second.used
    best = min(each, key=lambda name: each[name])
    assert first.used[-1] == best
    assert steady(handles) <= step_ms(min(each["none"], each["bf16"]))
    explained = first.explain()
    assert explained.verified_at is not None
    assert all(candidate.predicted is None for candidate in explained.candidates)
    measured = {candidate.words: candidate.measured for candidate in explained.candidates}
    assert measured["fp32" if best == "none" else best] == pytest.approx(steady(handles) / 1e3)
    better = min(each["none"], each["bf16"])
    verified = next((trial.step for trial in explained.trials if trial.won), 0)  # until then fp32 was used
    unknown = verified * (step_ms(each["none"]) - step_ms(better))
    assert first.seconds < (len(first.used) * step_ms(better) + unknown) / 1e3 + 6.0
    assert len(first._streams.waited) < len(first.used) / 5, "the host waits twice a block"
    for step in range(20, len(first.used)):
        if first.used[step] == first.used[step - 1]:
            assert first.periods[step] == MS * step_ms(each[first.used[step]]), "the device has waited for the host"


def test_steps_that_compile_count_for_nothing() -> None:
    """Four steps of each method compile for two seconds each."""
    each = NETWORKS["four bits pay"]
    handles = train(each, compiles=4)
    assert handles[0].used[-1] == handles[1].used[-1] == "qsgd:bits=4"
    explained = handles[0].explain()
    assert explained.spent["steps that compiled"] >= 8.0
    assert "much slower" not in str(explained)


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


def choice(mutant: type[OnDevice], each: dict[str, float], monkeypatch: pytest.MonkeyPatch, **knobs: Any) -> str:
    monkeypatch.setattr(driver_module, "OnDevice", mutant)
    return train(each, **knobs)[0].used[-1]


def test_mutants_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    each = NETWORKS["four bits pay"]
    assert choice(OnDevice, each, monkeypatch, compiles=4) == "qsgd:bits=4"
    assert choice(Counted, each, monkeypatch, compiles=4) != "qsgd:bits=4"
    assert choice(InTime, each, monkeypatch) != "qsgd:bits=4"
    # the host is 40 steps ahead: what it submits in a block is played in the next
    assert choice(OnDevice, each, monkeypatch, ahead=40) == "qsgd:bits=4"
    assert choice(ByHost, each, monkeypatch, ahead=40) != "qsgd:bits=4"


def test_one_rank_that_compiles_begins_the_block_again_on_all() -> None:
    meeting, each = Meeting(2), NETWORKS["four bits pay"]

    def job(member: Any, rank: int) -> OnGPU:
        handle = OnGPU(member, AUTO, meeting, compiles=5 * rank)
        handle.play(700, of(each))
        return handle

    first, second = both(job)
    assert first.used == second.used
    assert first.used[-1] == "qsgd:bits=4"
    assert first.compiled == 0 < second.compiled


def test_what_never_ends_compiling_is_left() -> None:
    each = {**NETWORKS["four bits pay"], "none": 7.0, "bf16": 7.5}
    handle = train(each, compiles=10_000, steps=300)[0]
    assert set(handle.used) == {"none"}
    assert handle.explain().stage == "measuring", "fp32 compiles for ever, too"


def test_a_challenger_that_never_ends_compiling_is_left_by_all_ranks() -> None:
    """On rank 1 alone every step of top-k compiles."""
    meeting, each = Meeting(2), NETWORKS["the least that is sent"]

    def job(member: Any, rank: int) -> OnGPU:
        handle = OnGPU(member, AUTO, meeting, compiles=10_000 * rank, only="topk")
        handle.play(600, of(each))
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
@pytest.mark.parametrize("network", ["casts pay", "the least that is sent"])
def test_noise_and_uneven_ranks_keep_nothing_slower(network: str, seed: int) -> None:
    each = NETWORKS[network]
    first, second = train(each, compute=noisy(seed), steps=1000)
    assert first.used == second.used
    assert each[first.used[-1]] <= min(each["none"], each["bf16"])


def test_one_slow_rank_decides_for_all() -> None:
    """Rank 1 takes twenty times as long under top-k: rank 0 alone would keep it."""
    each = NETWORKS["the least that is sent"]

    def exchange(method: str, step: int, rank: int) -> float:
        return each[method] * (20 if method == "topk" and rank else 1)

    first, second = train(exchange)
    assert first.used == second.used
    assert first.used[-1] == "qsgd:bits=4"


def test_a_link_that_changes_is_answered() -> None:
    fast, slow = NETWORKS["inside a machine"], NETWORKS["four bits pay"]
    first, second = train(lambda method, step, rank: (fast if step < 500 else slow)[method], steps=1500)
    assert first.used == second.used
    assert first.used[499] == "none"
    assert first.used[-1] == "qsgd:bits=4"
    assert "compares again, as steps take" in str(first.explain())


def test_steps_of_a_second_leave_no_time_and_that_is_said() -> None:
    first = train({"none": 100.0, "bf16": 60.0, "topk": 10.0, "qsgd:bits=4": 20.0}, steps=60, compute=lambda *_: 300.0)[
        0
    ]
    assert set(first.used) == {"none"}
    text = str(first.explain())
    assert "Waits: bf16: trying it may cost" in text
    assert "fp32; compared with nothing yet" in text


def test_a_run_that_ends_too_soon_says_so() -> None:
    handle = train(NETWORKS["four bits pay"], steps=5)[0]
    handle._end_run()
    assert "steps too short for the model to be known: fp32 was used" in str(handle.explain())


def test_what_is_explained_says_what_is_different() -> None:
    handle = train(NETWORKS["four bits pay"], steps=120)[0]
    text = str(handle.explain())
    assert (
        "on Virtual GPU nothing is predicted, and real steps are compared: fp32, which is used first, with bf16" in text
    )
    assert "Auto on GPUs has been tested over a device of virtual time, and was not run on a GPU yet" in text
    assert "ms predicted" not in text
    assert re.search(r"^  bf16: 50\.0 ms a step measured$", text, re.M)
    assert re.search(r"^  topk: not tried yet$", text, re.M)
    document = handle.explain().as_dict()
    assert type(handle.explain()).read(document) == handle.explain()
    assert "2 workers over" in handle._driver.known.fingerprint  # type: ignore[union-attr]
    assert "Virtual GPU each" in handle._driver.known.fingerprint  # type: ignore[union-attr]


def test_a_gpu_without_triton_tries_casts_alone() -> None:
    handle = train(NETWORKS["four bits pay"], steps=300, problem="no Triton for this torch")[0]
    assert set(handle.used) == {"none", "bf16"}
    assert handle.used[-1] == "bf16"
    assert "topk left out: a worker's GPU has no Triton kernels, only torch's casts: no Triton for" in str(
        handle.explain()
    )


def test_a_memory_that_does_not_fit_is_left_out() -> None:
    handle = train(NETWORKS["the least that is sent"], free=100_000)[0]
    assert "topk" not in handle.used
    assert "topk left out: keeps a memory of" in str(handle.explain())


@pytest.mark.parametrize(("error", "kept"), [("1e-6", "bf16"), ("0.9", "qsgd:bits=4")])
def test_errors_decide_in_place_of_a_class_there_too(error: str, kept: str) -> None:
    auto = f"auto:error={error},methods=(topk;qsgd:bits=4)"
    handle = train(NETWORKS["four bits pay"], auto=auto, steps=400)[0]
    assert "topk" not in handle.used, "it has a memory"
    assert handle.used[-1] == kept


def test_gradients_are_exchanged_under_it_and_all_ranks_choose_alike() -> None:
    first, second = train(NETWORKS["four bits pay"], steps=60, real=True)
    assert first.used == second.used
    assert {"none", "bf16"} <= set(first.used)


def test_two_ranks_on_one_gpu_are_refused_on_both() -> None:
    meeting = Meeting(2)
    errors = in_threads(2, lambda member, rank: OnGPU(member, AUTO, meeting, place="the same"))
    for error in errors:
        assert isinstance(error, ConfigurationError)
        assert "ranks 0 and 1 are on one GPU (Virtual GPU)" in str(error)
        assert "grace advise says which" in str(error)


def test_a_captured_step_is_refused_before_anything_is_sent() -> None:
    meeting = Meeting(2)

    def job(member: Any, rank: int) -> str:
        handle = OnGPU(member, AUTO, meeting)
        handle.play(20, of(NETWORKS["four bits pay"]))
        meeting._barrier.wait()
        if rank == 0:
            with pretend_capturing(), pytest.raises(ConfigurationError, match=r"call handle.switch\(METHOD\) before"):
                handle._exchange_bucket({"second": torch.zeros_like(LIKE["second"])}, False)
        meeting._barrier.wait()
        return handle.used[-1]

    assert len(set(both(job))) == 1


def test_candidates_of_a_class_are_few_and_the_others_are_named() -> None:
    handle = train(lambda method, step, rank: 1.0, steps=3, auto="auto")[0]
    methods = handle._driver.methods  # type: ignore[union-attr]
    assert methods[:2] == ["none", "bf16"]
    assert len(methods) <= 2 + device.MOST
    assert methods[2].startswith(device.FIRST)
    left = handle.explain().left_out
    assert any("compiles kernels of its own" in why for why in left.values()) == (len(methods) == 2 + device.MOST)


def test_lateness_is_that_of_flags_and_what_is_assumed_is_dearer() -> None:
    assert LATE == OnDevice.late == 2
    assert ASSUMED > 1
    assert COMPILES > 1e9
