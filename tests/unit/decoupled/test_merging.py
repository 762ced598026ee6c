from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import grace.decoupled.merging as merging
from grace.decoupled.merging import outer_step_


def merge(*given: Any) -> list[Tensor]:
    """As it is now, a mutant or not."""
    return merging.merge(*given)


def test_weights_are_quantity_times_quality():
    weigh = merging.weigh
    assert weigh([(6, 3), (2, 1)]) == [0.75, 0.25]  # tokens in steps
    assert weigh([(6, 3), (6, 1)]) == [0.25, 0.75]  # as many in fewer steps
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


def is_torchs(outer_step_: Callable[..., None] = outer_step_) -> None:
    ours, theirs = torch.ones(3), torch.ones(3, requires_grad=True)
    momentum, outer = torch.zeros(3), torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    for step in range(4):
        delta = torch.tensor([0.4, -0.2, 0.1]) + step
        theirs.grad = delta.clone()
        outer.step()
        outer_step_([ours], [momentum], [delta], 0.7, 0.9)
        assert torch.equal(ours, theirs)


def test_the_outer_step_is_that_of_torch():
    is_torchs()


def test_the_vector_of_diloco():
    theta, momentum = torch.ones(1), torch.zeros(1)
    for ends in ((0.6, 0.8), (0.501, 0.401)):
        deltas = [[theta - end] for end in ends]
        outer_step_([theta], [momentum], merge(deltas, [0.5, 0.5], [False], False), 0.7, 0.9)
    torch.testing.assert_close(theta, torch.tensor([0.2314]), rtol=0, atol=5e-5)


# ---- mutants --------------------------------------------------------------------------------------------------------
def by_tokens(work: Any) -> list[float]:
    """Quantity alone."""
    total = sum(tokens for tokens, _ in work)
    return [tokens / total for tokens, _ in work] if total else [1 / len(work)] * len(work)


def by_speed(work: Any) -> list[float]:
    """Quality alone."""
    rates = [tokens / steps if steps else 0.0 for tokens, steps in work]
    return [rate / sum(rates) for rate in rates] if sum(rates) else [1 / len(work)] * len(work)


def unscaled(work: Any) -> list[float]:
    """Weights that do not add up to 1."""
    return [tokens * tokens / steps if steps else 0.0 for tokens, steps in work]


@pytest.mark.parametrize("mutant", [by_tokens, by_speed, unscaled])
def test_other_weights_are_caught(mutant: Callable[[Any], list[float]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(merging, "weigh", mutant)
    with pytest.raises(AssertionError):
        test_weights_are_quantity_times_quality()


_merge = merging.merge


def plainly(deltas: Any, weights: Any, plain: Any, radial: bool) -> list[Tensor]:
    return _merge(deltas, weights, plain, False)


def directions(deltas: Any, weights: Any, plain: Any, radial: bool) -> list[Tensor]:
    """The mean of directions times the mean of norms: too short, as the plain mean is."""
    norms = [torch.cat(delta).norm() for delta in deltas]
    units = [[x / norm for x in delta] for delta, norm in zip(deltas, norms, strict=True)]
    return [x * (sum(norms) / len(norms)) for x in _merge(units, weights, plain, False)]


def tensor_by_tensor(deltas: Any, weights: Any, plain: Any, radial: bool) -> list[Tensor]:
    """Each parameter as a vector of its own."""
    columns = [[[delta[place]] for delta in deltas] for place in range(len(plain))]
    return [_merge(column, weights, [flat], radial)[0] for column, flat in zip(columns, plain, strict=True)]


def embeddings_too(deltas: Any, weights: Any, plain: Any, radial: bool) -> list[Tensor]:
    return _merge(deltas, weights, [False] * len(plain), radial)


VECTORS = test_norms_and_directions_are_averaged_apart
ONE_VECTOR = test_the_parameters_of_a_fragment_are_one_vector_and_embeddings_are_averaged_plainly


@pytest.mark.parametrize(
    ("mutant", "law"),
    [(plainly, VECTORS), (directions, VECTORS), (tensor_by_tensor, ONE_VECTOR), (embeddings_too, ONE_VECTOR)],
)
def test_other_averages_are_caught(mutant: Any, law: Callable[[], None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(merging, "merge", mutant)
    with pytest.raises(AssertionError):
        law()


def heavy_ball(thetas: Any, momenta: Any, delta: Any, lr: float, momentum: float) -> None:
    for theta, b, d in zip(thetas, momenta, delta, strict=True):
        b.mul_(momentum).add_(d)
        theta.add_(b, alpha=-lr)


def late(thetas: Any, momenta: Any, delta: Any, lr: float, momentum: float) -> None:
    """With the momentum of the round before."""
    for theta, b, d in zip(thetas, momenta, delta, strict=True):
        theta.add_(d.add(b, alpha=momentum), alpha=-lr)
        b.mul_(momentum).add_(d)


@pytest.mark.parametrize("mutant", [heavy_ball, late])
def test_another_outer_step_is_caught(mutant: Callable[..., None]):
    with pytest.raises(AssertionError):
        is_torchs(mutant)
