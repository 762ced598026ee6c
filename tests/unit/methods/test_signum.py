from __future__ import annotations

import pytest
import torch

import grace
from grace.errors import CompositionError
from grace.methods.signum import Signum
from grace.run.simulator import Simulator
from tests.unit.methods import quant_checks as check


def test_the_worked_example() -> None:
    sim = Simulator(grace.Policy([("*", "signum")]), 1)
    assert sim.step({"x": [torch.tensor([1.0, -1.0])]})["x"].tolist() == [1, -1]
    torch.testing.assert_close(sim.workers[0].state_dict()["states"]["x"][0], torch.tensor([0.1, -0.1]))
    assert sim.step({"x": [torch.tensor([-0.5, -1.0])]})["x"].tolist() == [1, -1]
    torch.testing.assert_close(sim.workers[0].state_dict()["states"]["x"][0], torch.tensor([0.04, -0.19]))


def test_it_votes_as_signsgd_does_on_momenta() -> None:
    sim = Simulator(grace.Policy([("*", "signum:beta=0.5")]), 3)
    momenta = [torch.zeros(50) for _ in range(3)]
    for step in range(4):
        xs = check.gradients(3, 50, step)
        momenta = [0.5 * m + 0.5 * x for m, x in zip(momenta, xs, strict=True)]
        want = torch.stack([m.sign() for m in momenta]).sum(0).sign()
        assert torch.equal(sim.step({"x": xs})["x"], want)


def test_recipe_memory_and_bits() -> None:
    assert grace.method("signum") == grace.Momentum(grace.Allgather(Signum()), beta=0.9)
    assert grace.method("signum:zero=abstain,beta=0.5") == grace.Momentum(grace.Allgather(Signum("abstain")), beta=0.5)
    with pytest.raises(CompositionError, match="without a scale"):
        grace.method("signum:memory=residual")
    check.assert_agrees_on_nonfinite("signum")
    assert 1 <= check.bits_per_element("signum") < 1.001
