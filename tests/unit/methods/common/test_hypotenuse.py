"""The root of the sum of two squares is rounded as its definition says, wherever it is computed."""

from __future__ import annotations

import math

import torch

from grace.methods.common.hypotenuse import hypotenuse
from grace.verify.running import same_bits


def test_it_is_the_nearest_number() -> None:
    made = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 2000, generator=made) * 10.0 ** torch.randint(-40, 38, (2, 2000), generator=made)
    want = [math.hypot(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert same_bits(hypotenuse(a, b), torch.tensor(want, dtype=torch.float64).float())


def test_nothing_overflows_or_vanishes() -> None:
    largest, least = torch.finfo(torch.float32).max, 2.0**-149
    a = torch.tensor([3.0, largest, least, -0.0, math.inf])
    assert hypotenuse(a, torch.tensor([-4.0, 0.0, 0.0, 0.0, 1.0])).tolist() == [5.0, largest, least, 0.0, math.inf]


def test_it_may_be_written_over_what_it_is_made_of() -> None:
    a, b = torch.tensor([3.0, 5.0]), torch.tensor([4.0, 12.0])
    assert hypotenuse(a, b, a) is a
    assert a.tolist() == [5.0, 13.0]


def test_wide_numbers_are_those_of_torch() -> None:
    a, b = torch.randn(2, 50, dtype=torch.float64)
    assert same_bits(hypotenuse(a, b), torch.hypot(a, b))
