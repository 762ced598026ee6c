"""No replica drifts in silence: where a flipped bit changes what one rank applies, the check names the step and the rank."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import Exchange
from grace.contract.method import Method
from grace.errors import PayloadError, ReplicasDifferError, RoundMismatch
from grace.run import replicas as replicas_module
from grace.run import simulate
from grace.run.options import Options
from grace.run.replicas import Replicas
from grace.run.worker import Worker
from grace.verify import laws
from tests.laws.cases import CASES, by_night

SPREAD = True
STEPS, WORLD = 4, 3
SHAPE = (13, 7)


def flipped(exchange: Exchange[Any], at: int, dice: random.Random) -> Exchange[Any]:
    """The exchange on a rank whose memory flips one bit of what its ``at``-th collective has brought."""
    seen = 0
    try:
        op = next(exchange)
        while True:
            answer = yield op
            if seen == at and answer.numel():
                answer = answer.contiguous().clone()
                raw = answer.view(-1).view(torch.uint8)
                raw[dice.randrange(raw.numel())] ^= 1 << dice.randrange(8)
            seen += 1
            op = exchange.send(answer)
    except StopIteration as stop:
        return stop.value


def run_step(worker: Worker, check: Replicas, x: Tensor, applied: list[Tensor]) -> Exchange[None]:
    out = yield from worker.exchange({"w": x})
    applied.append(out["w"].mean.clone())
    check.note({"w": applied[-1]})
    worker.advance()
    worker.workspace.reset()


def compare(checks: list[Replicas], step: int) -> ReplicasDifferError | None:
    assert [check.end_step(step) for check in checks] == [True] * WORLD
    try:
        simulate([check.compare() for check in checks])
    except ReplicasDifferError as error:
        return error
    return None


def drift(method: Method, at: int, seed: int) -> str:
    """Fate of a bit that flips on one rank: "refused" by a decoder, "same" means, or "named" by the check."""
    dice = random.Random(seed)
    victim, step_of_fault = dice.randrange(WORLD), dice.randrange(STEPS)
    policy = grace.Policy([("*", method)])
    workers = [Worker(policy, rank, WORLD, Options()) for rank in range(WORLD)]
    checks = [Replicas({"w": torch.empty(SHAPE)}, 1, WORLD) for _ in workers]
    for step in range(STEPS):
        applied: list[list[Tensor]] = [[] for _ in workers]
        runs = [
            run_step(worker, check, torch.randn(SHAPE, generator=torch.Generator().manual_seed(step * 10 + rank)), own)
            for rank, (worker, check, own) in enumerate(zip(workers, checks, applied, strict=True))
        ]
        if step == step_of_fault:
            runs[victim] = flipped(runs[victim], at, dice)
        try:
            simulate(runs)
        except (PayloadError, RoundMismatch):  # the latter: of a damaged length, which the others then do not share
            return "refused"
        apart = [rank for rank in range(WORLD) if not laws.same_bits(applied[rank][0], applied[(rank + 1) % WORLD][0])]
        difference = compare(checks, step)
        if difference is not None:
            assert apart, f"drift: replicas agree in step {step}, and the check says {difference}"
            named = (difference.step, difference.ranks)
            assert named == (step, [victim]), f"drift: rank {victim} in step {step}, not {difference}"
            return "named"
        assert not apart, f"drift: rank {victim} applies another mean in step {step}, and nothing says so"
    return "same"


@pytest.mark.parametrize("first", [0, pytest.param(2, marks=pytest.mark.night("a digest that misses a bit"))])
@pytest.mark.parametrize("spec", by_night("a digest that misses a bit"))
def test_no_replica_drifts_in_silence(spec: str, first: int) -> None:
    fates = [drift(CASES[spec], at, 100 * at + first + trial) for at in range(2) for trial in range(2)]
    assert set(fates) <= {"refused", "same", "named"}


def test_most_flips_of_what_is_not_checked_on_receipt_are_named() -> None:
    assert [drift(grace.method("none"), 0, trial) for trial in range(8)] == ["named"] * 8


# ---- mutants --------------------------------------------------------------------------------------------------------
def sum_of_numbers(xs: Any) -> Tensor:
    """Small bits drown in the sum of large numbers."""
    return torch.stack([x.sum() for x in xs]).sum().to(torch.float16).view(torch.int16).long()


def upper_half(xs: Any) -> Tensor:
    """Without the lower bits of each number."""
    return torch.stack([(x.reshape(-1).float().view(torch.int32) >> 16).sum() for x in xs]).sum()


def first_numbers(xs: Any) -> Tensor:
    """First numbers of a sample."""
    return torch.stack([x.reshape(-1)[::16].float().view(torch.int32).sum() for x in xs]).sum()


def names_itself(rows: list[list[int]], steps: list[int]) -> Any:
    """Whoever stands out is rank 0."""
    difference = find_difference(rows, steps)
    return None if difference is None else replicas_module.Difference(difference.step, (0,), WORLD, 0, steps[-1])


find_difference = replicas_module.find_difference


@pytest.mark.parametrize(
    ("name", "mutant", "message"),
    [
        ("digest", sum_of_numbers, "nothing says so"),
        pytest.param("digest", upper_half, "nothing says so", id="a digest that misses a bit"),
        ("digest", first_numbers, "nothing says so"),
        ("find_difference", names_itself, "not replicas differ"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_law_catches(monkeypatch: pytest.MonkeyPatch, name: str, mutant: Callable[..., Any], message: str) -> None:
    monkeypatch.setattr(replicas_module, name, mutant)
    with pytest.raises(AssertionError, match=message):
        [drift(grace.method("topk:ratio=0.2"), 0, trial) for trial in range(40)]
