import pytest
import torch

import grace
from grace.bench.optimizers import MAJORITY, adjustment_for, set_momentum


@pytest.mark.parametrize(
    ("method", "adjusted"),
    [("signsgd", True), ("signsgd:memory=momentum", True), ("efsignsgd", False), ("none", False), ("powersgd", False)],
)
def test_a_majority_vote_needs_another_learning_rate(method, adjusted):
    assert adjustment_for(grace.method(method)) == (MAJORITY if adjusted else None)


def test_momentum_is_set_where_there_is_one():
    weights = [torch.zeros(2, requires_grad=True)]
    sgd = torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True)
    assert set_momentum(sgd, 0.0)
    assert sgd.param_groups[0]["momentum"] == 0
    assert not sgd.param_groups[0]["nesterov"]
    assert not set_momentum(torch.optim.Adam(weights), 0.0)
