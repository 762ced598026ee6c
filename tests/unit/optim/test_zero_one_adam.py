"""0/1 Adam: the numbers of a hand, when v is refreshed, and windows of local steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.optim import ZeroOneAdam
from grace.optim.onebit_adam import ONE_BIT
from grace.run import simulate
from tests.unit.optim.workers import ROWS, UNUSED, Point, Workers, everything, flat, small


class LastMomentum(ZeroOneAdam):
    """Goes on with its own m after a window."""

    def _end_window(self) -> Any:
        kept = {p: self.state[p]["exp_avg"].clone() for p in self._names}
        out = yield from ZeroOneAdam._end_window(self)
        for p, m in kept.items():
            self.state[p]["exp_avg"].copy_(m)
        return out


class NeverBack(ZeroOneAdam):
    """Leaves x where the local steps have brought it."""

    def _end_window(self) -> Any:
        kept = [p.clone() for p in self._names]
        out = yield from ZeroOneAdam._end_window(self)
        for p, x in zip(self._names, kept, strict=True):
            p.copy_(x)
        return out


def hand(make: Callable[..., ZeroOneAdam]) -> None:
    """sqrt v = 2, m = 1, two local steps of two workers, exact exchange."""
    workers = Workers(
        make, 2, lambda: Point(1), lr=0.1, betas=(0.5, 0.5), eps=0.0, freeze_step=1, double_every=1,
        method=everything("none"),
    )  # fmt: skip
    workers.step([[[1.0]], [[1.0]]])
    workers.step([[[1.0]], [[1.0]]])  # a window of one step
    for model, optimizer in zip(workers.models, workers.optimizers, strict=True):
        state = optimizer.state[model.x]  # type: ignore[index]
        state["exp_avg"].fill_(1.0)
        state["exp_avg_sq"].fill_(4.0)
        model.x.detach().zero_()  # type: ignore[operator]
    workers.step([[[2.0]], [[0.0]]])
    assert not workers.replicas_equal()
    torch.testing.assert_close(workers.optimizers[0].state[workers.models[0].x]["u"], torch.tensor([0.15]))  # type: ignore[index]
    workers.step([[[0.0]], [[2.0]]])
    assert workers.replicas_equal()
    torch.testing.assert_close(flat(workers.models[0]), torch.tensor([-0.1]))
    for model, optimizer in zip(workers.models, workers.optimizers, strict=True):
        torch.testing.assert_close(optimizer.state[model.x]["exp_avg"], torch.tensor([1.0]))  # type: ignore[index]
        assert optimizer.state[model.x]["u"].item() == 0  # type: ignore[index]


def test_the_numbers_of_a_hand() -> None:
    hand(ZeroOneAdam)


@pytest.mark.parametrize("mutant", [LastMomentum, NeverBack])
def test_the_numbers_of_a_hand_catch(mutant: type[ZeroOneAdam]) -> None:
    with pytest.raises(AssertionError):
        hand(mutant)


class RefreshesAlways(ZeroOneAdam):
    """Refreshes v at each step."""

    def _update(self, gradients: Any) -> Any:
        self._refresh = self.steps
        return (yield from ZeroOneAdam._update(self, gradients))


class DoublesAtOnce(ZeroOneAdam):
    """Forgets kappa: the distance doubles after each refresh."""

    def __init__(self, *args: Any, **knobs: Any):
        ZeroOneAdam.__init__(self, *args, **{**knobs, "kappa": 1})


class TakesCompressed(ZeroOneAdam):
    """v takes compressed gradients, too, in steps without a refresh."""

    def _update(self, gradients: Any) -> Any:
        bad = yield from ZeroOneAdam._update(self, gradients)
        for _, _, _, state in self._each():
            state["exp_avg_sq"].addcmul_(state["exp_avg"], state["exp_avg"], value=0.1)
        return bad


def refreshes_rarely(make: Callable[..., ZeroOneAdam]) -> None:
    workers = Workers(make, 2, lambda: Point(40, 40), freeze_step=40, kappa=2)
    made = torch.Generator().manual_seed(0)
    refreshed, sent, last = [], [], torch.zeros(())
    for step in range(24):
        before = workers.optimizers[0].stats.traffic.sent
        workers.step([[torch.randn(40, 40, generator=made)] for _ in range(2)])
        v = workers.optimizers[0].state[workers.models[0].x]["exp_avg_sq"].sum()  # type: ignore[index]
        if not torch.equal(v, last):
            refreshed.append(step)
        sent.append(workers.optimizers[0].stats.traffic.sent - before)
        last = v.clone()
    assert refreshed == [0, 1, 2, 4, 6, 10, 14, 22]
    assert all((size > 1600 * 4 / 2) == (step in refreshed) for step, size in enumerate(sent))


def test_v_is_refreshed_ever_more_rarely() -> None:
    refreshes_rarely(ZeroOneAdam)


@pytest.mark.parametrize("mutant", [RefreshesAlways, DoublesAtOnce, TakesCompressed])
def test_another_schedule_of_refreshes_is_caught(mutant: type[ZeroOneAdam]) -> None:
    with pytest.raises(AssertionError, match=r"assert \[0, 1, .*\] == \[0, 1, 2, 4, 6, 10, "):
        refreshes_rarely(mutant)


class NeverGrows(ZeroOneAdam):
    @property
    def interval(self) -> int:
        return 1


class GrowsForEver(ZeroOneAdam):
    """Takes no notice of max_interval."""

    @property
    def interval(self) -> int:
        begun = max(0, self.steps - self._taken - self.freeze_step)
        return 1 << begun // self.double_every


class CountsFromTheStart(ZeroOneAdam):
    """Windows double with all steps, not with local ones."""

    @property
    def interval(self) -> int:
        return min(self.max_interval, 1 << (self.steps - self._taken) // self.double_every)


def windows_grow(make: Callable[..., ZeroOneAdam]) -> None:
    workers = Workers(make, 2, small, lr=0.01, freeze_step=20, double_every=4, max_interval=4)
    start = small().get_parameter("0.weight").detach()[ROWS - UNUSED :]
    equal_after, rounds = [], []
    for step in range(44):
        before = workers.optimizers[0].stats.traffic.rounds
        workers.train(range(step, step + 1))
        rounds.append(workers.optimizers[0].stats.traffic.rounds - before)
        if workers.replicas_equal():
            equal_after.append(step)
        assert workers.optimizers[0].synchronized == (step in equal_after)  # type: ignore[attr-defined]
    windows = [step for step in equal_after if step >= 20]
    assert windows == [20, 21, 22, 23, 25, 27, 31, 35, 39, 43]
    assert all((count > 0) == (step < 20 or step in windows) for step, count in enumerate(rounds))
    assert torch.equal(workers.models[0].get_parameter("0.weight").detach()[ROWS - UNUSED :], start)


def test_windows_grow_and_are_equal_at_their_ends() -> None:
    windows_grow(ZeroOneAdam)


@pytest.mark.parametrize("mutant", [NeverGrows, GrowsForEver, CountsFromTheStart])
def test_other_windows_are_caught(mutant: type[ZeroOneAdam]) -> None:
    with pytest.raises(AssertionError, match=r"\] == \[20, 21, 22, 23, 25, 27, "):
        windows_grow(mutant)


def test_windows_that_do_not_end_equal_are_caught() -> None:
    with pytest.raises(AssertionError):
        windows_grow(NeverBack)


def test_a_window_can_be_ended_early_and_dropped() -> None:
    workers = Workers(ZeroOneAdam, 2, small, lr=0.01, freeze_step=10, double_every=1, max_interval=4)
    workers.train(range(15))  # windows of 1 step, of 2, and of 4, of which 2 are made
    ends: list[Any] = workers.optimizers
    assert not ends[0].synchronized
    own = workers.parameters()
    with ends[0].shared(), ends[1].shared():
        assert workers.replicas_equal()
        assert not torch.equal(workers.parameters()[0], own[0])
    assert all(map(torch.equal, own, workers.parameters()))
    simulate([optimizer.synchronizing() for optimizer in ends])
    assert ends[0].synchronized
    assert workers.replicas_equal()
    before = workers.parameters()[0]
    workers.train(range(15, 16))
    workers.step([[torch.full_like(p, torch.nan) for p in workers.models[0].parameters()],
                  [torch.zeros_like(p) for p in workers.models[1].parameters()]])  # fmt: skip
    workers.train(range(17, 19))
    assert ends[0].synchronized
    assert ends[0].stats.nonfinite == 5
    assert workers.replicas_equal()
    assert torch.equal(workers.parameters()[0], before)
    assert ends[0].steps == 18
    workers.train(range(19, 23))
    assert ends[0].synchronized
    assert workers.replicas_equal()
    assert not torch.equal(workers.parameters()[0], before)


def test_memories_of_gradients_are_not_those_of_steps() -> None:
    workers = Workers(ZeroOneAdam, 2, lambda: Point(40, 40), freeze_step=3, method=everything(ONE_BIT), kappa=1)
    made = torch.Generator().manual_seed(0)
    gradients: list[list[list[Tensor]]] = [[[torch.randn(40, 40, generator=made)] for _ in range(2)] for _ in range(5)]
    for step in range(4):
        workers.step(gradients[step])
    u = 1e-3 * float(workers.optimizers[0].state[workers.models[0].x]["exp_avg"].abs().max())  # type: ignore[index]
    debt = workers.optimizers[0].session.worker.state.debts()["x"]
    assert 0 < float(debt.abs().max()) < 10 * u


def test_what_memories_release_is_applied_in_a_window_without_a_learning_rate() -> None:
    workers = Workers(
        ZeroOneAdam, 2, lambda: Point(40, 40), freeze_step=3, betas=(0.9, 0.9), eps=0.0, double_every=1, max_interval=1,
        method=everything("topk:ratio=0.1"),
    )  # fmt: skip
    made = torch.Generator().manual_seed(0)

    def owed() -> Tensor:
        return sum(optimizer.session.worker.state.debts()["x"] for optimizer in workers.optimizers) / 2  # type: ignore[return-value]

    for step in range(8):
        if step == 7:
            for optimizer in workers.optimizers:
                optimizer.param_groups[0]["lr"] = 0.0
        before, debt = flat(workers.models[0]).clone(), owed() if step > 3 else None
        workers.step([[torch.randn(40, 40, generator=made)] for _ in range(2)])
    assert debt is not None
    root = workers.optimizers[0].state[workers.models[0].x]["exp_avg_sq"].sqrt()  # type: ignore[index]
    released = (debt - owed()) / root
    assert float(released.abs().max()) > 1e-4
    torch.testing.assert_close(before - flat(workers.models[0]), released.flatten(), atol=1e-6, rtol=1e-4)


def test_it_finds_a_known_optimum() -> None:
    made = torch.Generator().manual_seed(1)
    goals = [torch.randn(30, 40, generator=made) for _ in range(2)]
    workers = Workers(
        ZeroOneAdam,
        2,
        lambda: Point(30, 40),
        lr=0.05,
        betas=(0.9, 0.99),
        freeze_step=60,
        double_every=60,
        max_interval=4,
    )
    for step in range(380):
        for optimizer in workers.optimizers:
            optimizer.param_groups[0]["lr"] = 0.05 * 0.985**step
        workers.step([[model.x.detach() - goal] for model, goal in zip(workers.models, goals, strict=True)])  # type: ignore[operator]
    simulate([optimizer.synchronizing() for optimizer in workers.optimizers])  # type: ignore[attr-defined]
    best = sum(goals) / 2
    assert workers.replicas_equal()
    assert float((flat(workers.models[0]).view(30, 40) - best).norm() / best.norm()) < 0.05
