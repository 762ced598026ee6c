"""1-bit Adam: the numbers of a hand, torch's Adam, and its rule of when to freeze."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grace
from grace.errors import OptimizerWarning
from grace.optim import OneBitAdam
from grace.optim.onebit_adam import ONE_BIT
from tests.unit.optim.workers import ROWS, UNUSED, Point, Workers, everything, flat, loss_of, small

HALF = {"betas": (0.5, 0.5), "eps": 0.0, "lr": 1.0}


class RawMomentum(OneBitAdam):
    """Starts each step from nothing: m_i = (1 - beta1) g_i."""

    def _compressed_step(self, gradients: Any) -> Any:
        for _, _, _, state in self._each():
            state["exp_avg"].zero_()
        return (yield from OneBitAdam._compressed_step(self, gradients))


class Unfrozen(OneBitAdam):
    """Goes on with v."""

    def _compressed_step(self, gradients: Any) -> Any:
        for name, _, _, state in self._each():
            if gradients[name] is not None:
                state["exp_avg_sq"].mul_(0.5).addcmul_(gradients[name], gradients[name], value=0.5)
        return (yield from OneBitAdam._compressed_step(self, gradients))


class Unmasked(OneBitAdam):
    """Moves where v is 0, too, as the equations say."""

    def _apply(self, p: Tensor, state: Any, entry: Any) -> None:
        OneBitAdam._apply(self, p, state, entry)
        if self.frozen:
            p.add_(torch.where(state["exp_avg_sq"] == 0, 1e-3, 0.0))


class Uncorrected(OneBitAdam):
    def _apply(self, p: Tensor, state: Any, entry: Any) -> None:
        OneBitAdam._apply(self, p, {**state, "step": state["step"] + 1}, entry)


def hand(make: Callable[..., OneBitAdam]) -> None:
    """Two workers, one dense step, one compressed."""
    workers = Workers(make, 2, lambda: Point(4), freeze_step=1, method=everything(ONE_BIT), **HALF)
    workers.step([[(2, -2, 4, 0)], [(0, -2, 0, 4)]])
    before = flat(workers.models[0])
    first, second = workers.optimizers
    assert first.state[workers.models[0].x]["exp_avg_sq"].tolist() == [0.5, 2, 2, 2]  # type: ignore[index]
    workers.step([[(1, 2, -2, 1)], [(3, -1, 1, 2)]])
    state = first.state[workers.models[0].x]  # type: ignore[index]
    assert state["exp_avg"].tolist() == [0.6875, -0.6875, 0.625, 0.625]
    assert state["exp_avg_sq"].tolist() == [0.5, 2, 2, 2]
    moved = before - flat(workers.models[0])
    torch.testing.assert_close(moved, torch.tensor([0.97227, -0.48614, 0.44194, 0.44194]), atol=1e-5, rtol=0)
    (e1, f1), (e2, f2) = (optimizer.session.worker._states["x"][1] for optimizer in (first, second))
    assert e1.tolist() == [0.125, -0.125, 0.25, 0.25]
    assert e2.tolist() == [0.375, 0.375, -0.25, 0.25]
    assert [*f1.debt.tolist(), *f2.debt.tolist()] == [0.3125, 0.3125, -0.375, 0.375]
    debts = [optimizer.session.worker.state.debts()["x"] for optimizer in (first, second)]
    assert (state["exp_avg"] + sum(debts) / 2).tolist() == [1.25, -0.25, 0.25, 1.25]
    assert workers.replicas_equal()


def test_the_numbers_of_a_hand() -> None:
    hand(OneBitAdam)


@pytest.mark.parametrize("mutant", [RawMomentum, Unfrozen])
def test_the_numbers_of_a_hand_catch(mutant: type[OneBitAdam]) -> None:
    with pytest.raises(AssertionError):
        hand(mutant)


# ---- torch's Adam ---------------------------------------------------------------------------------------------------
def against_torch(make: Callable[..., OneBitAdam], corrected: bool, world: int = 3) -> None:
    """Before the freeze it is Adam on the mean gradient; with ``none`` after it, Adam whose v stays."""
    knobs: dict[str, Any] = {"lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-15, "weight_decay": 0.1}
    workers = Workers(make, world, small, bias_correction=corrected, freeze_step=12, method=everything("none"), **knobs)
    single, frozen = small(), dict[Tensor, Tensor]()
    plain = torch.optim.AdamW(single.parameters(), **knobs)
    for step in range(20):
        workers.train(range(step, step + 1))
        single.zero_grad()
        sum(loss_of(single, step, rank) for rank in range(world)).div(world).backward()  # type: ignore[union-attr]
        if not corrected:  # torch's has no such knob: the learning rate makes up for it, and eps is as good as 0
            plain.param_groups[0]["lr"] = 3e-3 * (1 - 0.8 ** (step + 1)) / (1 - 0.95 ** (step + 1)) ** 0.5
            plain.param_groups[0]["weight_decay"] = 0.1 * 3e-3 / plain.param_groups[0]["lr"]
        if step < 12:
            plain.step()
            frozen = {p: plain.state[p]["exp_avg_sq"].clone() for p in single.parameters()}
        else:
            reference(plain, frozen, 12, corrected)
        torch.testing.assert_close(flat(workers.models[0]), flat(single), atol=3e-6, rtol=3e-5)


def reference(plain: torch.optim.Optimizer, frozen: dict[Tensor, Tensor], freeze: int, corrected: bool) -> None:
    with torch.no_grad():
        for p, v in frozen.items():
            state = plain.state[p]
            state["step"] += 1
            m = state["exp_avg"].mul_(0.8).add_(p.grad, alpha=0.2)  # type: ignore[arg-type]
            root = (v / (1 - 0.95**freeze) if corrected else v).sqrt() + 1e-15
            p.mul_(1 - 3e-3 * 0.1)
            p.sub_(
                torch.where(v > 0, m / root, 0.0), alpha=3e-3 / (1 - 0.8 ** float(state["step"])) if corrected else 3e-3
            )


@pytest.mark.parametrize("corrected", [True, False])
def test_with_an_exact_method_it_is_torchs_adam(corrected: bool) -> None:
    against_torch(OneBitAdam, corrected)


@pytest.mark.parametrize("mutant", [Uncorrected, Unfrozen])
def test_another_adam_is_caught(mutant: type[OneBitAdam]) -> None:
    with pytest.raises(AssertionError):
        against_torch(mutant, True)


# ---- rows that nobody uses ------------------------------------------------------------------------------------------
def leave_unused_rows(make: Callable[..., OneBitAdam]) -> None:
    workers = Workers(make, 2, small, lr=0.01, freeze_step=20, method=everything(ONE_BIT))
    start = small().get_parameter("0.weight").detach()[ROWS - UNUSED :]
    workers.train(range(60))
    assert workers.replicas_equal()
    table = workers.models[0].get_parameter("0.weight").detach()
    assert torch.equal(table[ROWS - UNUSED :], start)
    assert not torch.equal(table[: ROWS - UNUSED], small().get_parameter("0.weight").detach()[: ROWS - UNUSED])
    state = workers.optimizers[0].state[workers.models[0].get_parameter("0.weight")]
    assert not state["exp_avg"][ROWS - UNUSED :].any()


def test_rows_that_nobody_uses_stay() -> None:
    leave_unused_rows(OneBitAdam)


def test_rows_that_move_are_caught() -> None:
    with pytest.raises(AssertionError):
        leave_unused_rows(Unmasked)


def test_parameters_without_a_gradient_before_the_freeze_are_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = OneBitAdam(model.named_parameters(), freeze_step=2, method="none")
    for step in range(2):
        model[0](torch.ones(1, 3)).sum().backward()
        if not step:
            optimizer.step()
    with pytest.warns(OptimizerWarning, match=r"'1\.weight', '1\.bias' had no gradient in the first 2 steps"):
        optimizer.step()
    assert float(optimizer.state[model[1].weight]["step"]) == 0


# ---- when to freeze -------------------------------------------------------------------------------------------------
def freezes_at(
    make: Callable[..., OneBitAdam], scales: Callable[[int], float], rates: Callable[[int], float] = lambda step: 0.01
) -> int | None:
    """With beta2 = 0.9 the rule looks every 10 steps."""
    workers = Workers(make, 2, lambda: Point(40, 40), betas=(0.9, 0.9), lr=0.01)
    made = torch.Generator().manual_seed(0)
    for step in range(100):
        for optimizer in workers.optimizers:
            optimizer.param_groups[0]["lr"] = rates(step)
        workers.step([[scales(step) * torch.randn(40, 40, generator=made)] for _ in range(2)])
        assert len({optimizer.freeze_step for optimizer in workers.optimizers}) == 1
        if workers.optimizers[0].frozen:
            return workers.optimizers[0].steps
    return None


class Impatient(OneBitAdam):
    """Freezes at the second look, however much v has fallen."""

    def _look(self, step: int, corrected: float) -> Any:
        if self._seen is not None:
            self._seen = (0.0, self._seen[1])
        yield from OneBitAdam._look(self, step, corrected)


class IgnoresTheRate(OneBitAdam):
    """Freezes while the learning rate rises."""

    def _look(self, step: int, corrected: float) -> Any:
        if self._seen is not None:
            self._seen = (self._seen[0], float("inf"))
        yield from OneBitAdam._look(self, step, corrected)


class FromZero(OneBitAdam):
    """Takes v as it is, which grows at first, wherever gradients go."""

    def _look(self, step: int, corrected: float) -> Any:
        yield from OneBitAdam._look(self, step, 1.0)


class LooksAlways(OneBitAdam):
    """Looks after each step, in which v hardly changes."""

    def _consider_freezing(self, step: int) -> Any:
        if self.freeze_step is None:
            yield from self._look(step, 1 - 0.9**step)


def waits(make: Callable[..., OneBitAdam]) -> None:
    assert freezes_at(make, lambda step: 1.0) == 20  # the second look
    assert freezes_at(make, lambda step: 0.5 if step >= 25 else 2.0 - step / 20) == 80
    assert freezes_at(make, lambda step: 1.0 if step < 10 else 0.85) == 40
    assert freezes_at(make, lambda step: 0.9**step) is None
    assert freezes_at(make, lambda step: 1.0, lambda step: min(1.0, (step + 1) / 32) * 0.01) == 50


def test_the_rule_waits_until_v_has_settled_and_the_learning_rate_has_risen() -> None:
    waits(OneBitAdam)


@pytest.mark.parametrize(
    ("mutant", "got"),
    [(Impatient, "20 == 80"), (IgnoresTheRate, "20 == 50"), (FromZero, "20 == 40"), (LooksAlways, "== 20")],
)
def test_a_rule_that_does_not_wait_is_caught(mutant: type[OneBitAdam], got: str) -> None:
    with pytest.raises(AssertionError, match=got):
        waits(mutant)


# ---- training -------------------------------------------------------------------------------------------------------
def test_it_finds_a_known_optimum() -> None:
    """The optimum of ``sum of a (x - b_i)^2 / 2`` over workers is the mean of b_i, where no worker has a gradient of 0."""
    made = torch.Generator().manual_seed(1)
    scale = torch.rand(30, 40, generator=made) + 0.5
    goals = [torch.randn(30, 40, generator=made) for _ in range(2)]
    workers = Workers(OneBitAdam, 2, lambda: Point(30, 40), lr=0.05, betas=(0.9, 0.99), freeze_step=40)
    for step in range(400):
        for optimizer in workers.optimizers:
            optimizer.param_groups[0]["lr"] = 0.05 * 0.985**step
        workers.step([[scale * (model.x.detach() - goal)] for model, goal in zip(workers.models, goals, strict=True)])  # type: ignore[operator]
    best = sum(goals) / 2
    far = (flat(workers.models[0]).view(30, 40) - best).norm() / best.norm()
    assert float(far) < 0.02
    plan = workers.optimizers[0].session.plan()
    assert plan is not None
    assert grace.method(ONE_BIT) in {workers.optimizers[0].session.policy.method_for("x", goals[0], 0)}


class NeverCompresses(OneBitAdam):
    """Averages momenta as they are."""

    def _compressed_step(self, gradients: Any) -> Any:
        yield from self._average(gradients)
        return []


def one_bit(make: Callable[..., OneBitAdam], world: int = 4, **knobs: Any) -> None:
    """Each rank sends a bit for each number that another rank serves, and one to each other rank for what it serves itself."""
    workers = Workers(make, world, lambda: Point(128, 64), freeze_step=1, **knobs)
    made = torch.Generator().manual_seed(0)
    sent = []
    for _ in range(3):
        workers.step([[torch.randn(128, 64, generator=made)] for _ in range(world)])
        sent.append(workers.optimizers[0].stats.traffic.sent)
    dense, compressed = sent[0], sent[2] - sent[1]
    share = 128 * 64 * (world - 1) / world
    assert dense >= 2 * 4 * share
    bits = 8 * compressed / share
    assert 2 <= bits <= 2.2


def test_a_compressed_step_sends_a_bit_for_each_number_both_ways() -> None:
    one_bit(OneBitAdam)


@pytest.mark.parametrize(
    ("make", "knobs", "got"),
    [
        (NeverCompresses, {}, "64"), (OneBitAdam, {"method": "efsignsgd"}, "4"), (OneBitAdam, {"method": "fp16"}, "32"),
    ],
)  # fmt: skip
def test_more_bits_are_noticed(make: type[OneBitAdam], knobs: dict[str, Any], got: str) -> None:
    with pytest.raises(AssertionError, match=rf"assert {got}\S* <= 2\.2"):
        one_bit(make, **knobs)


def test_the_correction_of_v_counts_the_gradients_that_v_has_seen() -> None:
    """A parameter that had one gradient of 1 before the freeze, and only such ones after it, moves by the learning rate."""
    workers = Workers(
        OneBitAdam, 1, lambda: Point(1), lr=1.0, betas=(0.9, 0.9), eps=0.0, freeze_step=10, bias_correction=True,
        method=everything("none"),
    )  # fmt: skip
    places = []
    for step in range(14):
        workers.step([[torch.ones(1) if step == 0 or step >= 10 else None]])
        places.append(float(flat(workers.models[0])))
    moves = [before - after for before, after in itertools.pairwise(places[9:])]
    assert moves == pytest.approx([1.0] * 4, abs=1e-5)
