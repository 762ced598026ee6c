from __future__ import annotations

import pytest
import torch

from grace.decoupled.merging import merge, outer_step_, weigh


def test_weights_are_quantity_times_quality():
    assert weigh([(6, 3), (2, 1)]) == [0.75, 0.25]  # tokens in steps
    assert weigh([(6, 3), (0, 0)]) == [1.0, 0.0]
    assert weigh([(0, 0), (0, 0)]) == [0.5, 0.5]


ORTHOGONAL = [[torch.tensor([3.0, 0.0])], [torch.tensor([0.0, 4.0])]]


def test_norms_and_directions_are_averaged_apart():
    radial = merge(ORTHOGONAL, [0.5, 0.5], [False], True)
    torch.testing.assert_close(radial, [torch.tensor([2.4749, 2.4749])], rtol=0, atol=5e-5)
    assert merge(ORTHOGONAL, [0.5, 0.5], [False], False)[0].tolist() == [1.5, 2.0]


def test_the_parameters_of_a_fragment_are_one_vector_and_embeddings_are_averaged_plainly():
    split = [[x[:1], x[1:]] for (x,) in ORTHOGONAL]
    halves = merge(split, [0.5, 0.5], [False, False], True)
    assert torch.cat(halves).tolist() == merge(ORTHOGONAL, [0.5, 0.5], [False], True)[0].tolist()
    embedded = [[*delta, *delta] for delta in ORTHOGONAL]
    both = merge(embedded, [0.5, 0.5], [True, False], True)
    assert both[0].tolist() == [1.5, 2.0]
    assert both[1].tolist() == merge(ORTHOGONAL, [0.5, 0.5], [False], True)[0].tolist()


def test_of_one_learner_the_merge_is_its_own():
    x = torch.tensor([3.0, -4.0])
    torch.testing.assert_close(merge([[x]], [1.0], [False], True), [x])


@pytest.mark.parametrize("radial", [True, False])
def test_zeros_and_opposites_merge_to_zeros(radial: bool):
    zero, x = torch.zeros(2), torch.tensor([1.0, 2.0])
    assert merge([[zero], [zero]], [0.5, 0.5], [False], radial)[0].tolist() == [0, 0]
    assert merge([[x], [-x]], [0.5, 0.5], [False], radial)[0].tolist() == [0, 0]


def test_the_outer_step_is_that_of_torch():
    ours, theirs = torch.ones(3), torch.ones(3, requires_grad=True)
    momentum, outer = torch.zeros(3), torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    for step in range(4):
        delta = torch.tensor([0.4, -0.2, 0.1]) + step
        theirs.grad = delta.clone()
        outer.step()
        outer_step_([ours], [momentum], [delta], 0.7, 0.9)
        assert torch.equal(ours, theirs)


def test_the_vector_of_diloco():
    theta, momentum = torch.ones(1), torch.zeros(1)
    for ends in ((0.6, 0.8), (0.501, 0.401)):
        deltas = [[theta - end] for end in ends]
        outer_step_([theta], [momentum], merge(deltas, [0.5, 0.5], [False], False), 0.7, 0.9)
    torch.testing.assert_close(theta, torch.tensor([0.2314]), rtol=0, atol=5e-5)
