import pytest
import torch

import grace
from grace_bench.runs.optimizers import adjust, set_momentum


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1, momentum=0.9, nesterov=True)


@pytest.mark.parametrize(
    ("method", "lr_scale", "momentum"),
    [("signsgd", 0.02, 0.0), ("topk:memory=dgc", 1.0, 0.0), ("signsgd:memory=momentum,lossless=zlib", 0.02, 0.0)],
)
def test_the_optimizer_becomes_what_the_method_declares(method: str, lr_scale: float, momentum: float) -> None:
    optimizer = sgd()
    change = adjust(optimizer, grace.method(method))
    assert change is not None
    assert (change.lr_scale, change.momentum) == (lr_scale, momentum)
    assert optimizer.param_groups[0]["momentum"] == momentum
    assert grace.method(method).needs.why in str(change)


@pytest.mark.parametrize("method", ["efsignsgd", "none", "powersgd"])
def test_most_methods_leave_it(method: str) -> None:
    optimizer = sgd()
    assert adjust(optimizer, grace.method(method)) is None
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_adam_keeps_its_learning_rate_under_votes() -> None:
    assert adjust(torch.optim.Adam([torch.zeros(2, requires_grad=True)]), grace.method("signsgd")) is None


def test_momentum_is_set_where_there_is_one() -> None:
    optimizer = sgd()
    assert set_momentum(optimizer, 0.0)
    assert optimizer.param_groups[0]["momentum"] == 0
    assert not optimizer.param_groups[0]["nesterov"]
    assert not set_momentum(torch.optim.Adam([torch.zeros(2, requires_grad=True)]), 0.0)
