"""Steps of optimizers, and the parameters that they hold."""

from __future__ import annotations

import gc

import pytest
import torch

from grace.adapters.optimizer_steps import HeldParameters, listen, stepping


class Ear:
    def __init__(self) -> None:
        self.heard: list[torch.optim.Optimizer] = []

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self.heard.append(optimizer)


def sgd(*parameters: torch.Tensor, **knobs: bool) -> torch.optim.Optimizer:
    for p in parameters:
        p.grad = torch.ones_like(p)
    return torch.optim.SGD(parameters, lr=0.1, **knobs)


def leaf() -> torch.Tensor:
    return torch.nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("knobs", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_a_step_of_any_optimizer_is_heard(knobs: dict[str, bool]):
    ear, optimizer = Ear(), sgd(leaf(), **knobs)
    listen(ear)
    listen(ear)
    optimizer.step()
    assert ear.heard == [optimizer]


def test_a_step_that_a_scaler_skips_is_not_heard():
    ear, p = Ear(), leaf()
    optimizer, scaler = sgd(p), torch.amp.GradScaler("cpu", init_scale=2.0)
    listen(ear)
    scaler.scale((p * torch.inf).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert ear.heard == []


def test_who_is_gone_hears_nothing():
    ear, heard, optimizer = Ear(), [], sgd(leaf())
    ear.heard = heard
    listen(ear)
    del ear
    gc.collect()
    optimizer.step()
    assert heard == []


def test_steps_that_are_under_way():
    p = leaf()
    inner = sgd(p)
    seen = []

    class Around(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__([p], {})

        def step(self, closure=None):
            seen.append(list(stepping()))
            inner.step(lambda: seen.append(list(stepping())))

    ear, outer = Ear(), Around()
    listen(ear)
    outer.step()
    assert seen == [[outer], [outer, inner]]
    assert ear.heard == [inner, outer]
    assert list(stepping()) == []


def test_a_step_that_has_raised_is_forgotten_by_the_next():
    ear, optimizer = Ear(), sgd(leaf())
    listen(ear)

    def closure():
        raise KeyError("no data")

    with pytest.raises(KeyError):
        optimizer.step(closure)
    assert list(stepping()) == [optimizer]
    optimizer.step()
    assert list(stepping()) == []


def test_what_an_optimizer_holds():
    own, other, late = leaf(), leaf(), leaf()
    held = HeldParameters({own: "mine", late: "late"})
    optimizer = sgd(own, other)
    assert held.by(optimizer) == {"mine": own}
    optimizer.add_param_group({"params": [late]})
    assert held.by(optimizer).keys() == {"mine", "late"}
