import math

import pytest
import torch

from grace_bench.tasks.rmsprop import TensorFlowRMSprop


@pytest.mark.parametrize("centered", [False, True])
def test_against_the_rule(centered):
    """The rule in plain Python numbers."""
    gradients = [0.5, -2.0, 0.0, 3.0, 3.0]
    p = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = TensorFlowRMSprop([p], 0.1, decay=0.9, momentum=0.8, eps=1e-10, centered=centered)
    value, square, mean, buffer = 1.0, 1.0, 0.0, 0.0
    for step, g in enumerate(gradients):
        lr = 0.1 * 0.8**step
        optimizer.param_groups[0]["lr"] = lr
        p.grad = torch.tensor([g], dtype=torch.float64)
        optimizer.step()
        square = 0.9 * square + 0.1 * g * g
        mean = 0.9 * mean + 0.1 * g if centered else 0.0
        buffer = 0.8 * buffer + lr * g / math.sqrt(square - mean * mean + 1e-10)
        value -= buffer
        assert p.item() == pytest.approx(value, rel=1e-12)


def test_it_differs_from_torchs_in_the_first_step():
    ours, theirs = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    ours.grad = theirs.grad = torch.ones(1)
    TensorFlowRMSprop([ours], 0.1).step()
    torch.optim.RMSprop([theirs], 0.1, alpha=0.9).step()
    assert ours.item() == pytest.approx(0.9)  # the mean square starts at 1, so the step is the learning rate
    assert theirs.item() == pytest.approx(1 - 0.1 / math.sqrt(0.1))


def test_parameters_without_a_gradient_stay():
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = TensorFlowRMSprop([p], 0.1, momentum=0.8)
    assert optimizer.step(lambda: 3.0) == 3.0
    assert torch.equal(p, torch.ones(2))
    assert not optimizer.state
