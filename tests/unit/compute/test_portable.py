"""Elementary operations that every machine rounds alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from grace.kernels import add_product, add_scaled_, cosine_and_sine, hypotenuse, natural_log, square_root, sum_by_halves
from grace.verify.running import same_bits


def rand(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [1.0, -1.0, 0.5, 1 / 3])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2, 150_000)])
def test_a_scaled_sum_rounds_the_product_first(scale: float, shape: tuple[int, ...]):
    out, x = rand(*shape, seed=1), rand(*shape, seed=2)
    product = x * scale
    assert torch.equal(add_scaled_(out.clone(), x, scale), out + product)


def test_a_scaled_sum_of_what_is_not_contiguous():
    out, x = rand(5, 4, seed=1).mT, rand(4, 5, seed=2)
    expected = out + x * 0.3
    assert torch.equal(add_scaled_(out, x, 0.3), expected)


def nearest(exact: Fraction) -> float:
    """The nearest float32, of two the even one."""
    power = 2**-149 if exact == 0 else max(-149, math.frexp(float(exact))[1] - 24)
    unit = Fraction(2) ** power
    return float(round(exact / unit) * unit)


def test_a_product_that_is_added_is_rounded_once():
    tiny = 2.0**-23
    numbers = [
        1 + tiny,
        1 - tiny,
        -1 - tiny,
        2.0**-24 * (1 + tiny),
        2.0**-24,
        1e-41,
        -3e-45,
        0.0,
        1 / 3,
        3e4,
        2.0**-140,
    ]
    x, y = torch.meshgrid(torch.tensor(numbers), torch.tensor(numbers), indexing="ij")
    factor, wide = rand(*x.shape, seed=1), (rand(3, 999, seed=2), rand(3, 999, seed=3))
    factor[:, :4] = torch.tensor([2.0**-24 * (1 + tiny), 1 + tiny, 1.0, -1.0])
    expected = [nearest(Fraction(a) + Fraction(f) * Fraction(b)) for a, f, b in zip(
        *(z.flatten().double().tolist() for z in (x, factor, y)), strict=True
    )]  # fmt: skip
    assert add_product(x, factor, y).flatten().tolist() == expected
    assert add_product(
        torch.tensor([math.inf, -math.inf, 3e38, math.nan]), torch.tensor(3.0), torch.tensor(2e38)
    ).tolist()[:3] == [math.inf, -math.inf, math.inf]
    assert not torch.equal(add_product(wide[0], torch.tensor(0.3), wide[1]), wide[0] + 0.3 * wide[1])


@pytest.mark.parametrize(("values", "expected"), [([], 0), ([3], 3), ([1, 2, 4], 7), ([1, 2, 3, 4, 5], 15)])
def test_sums(values: list[int], expected: int):
    assert float(sum_by_halves(torch.tensor(values, dtype=torch.float64))) == expected


def test_the_order_of_a_sum():
    """(a + c) + (b + d)"""
    a, b, c, d = 1.0, 2.0**53, 1.0, -(2.0**53)
    assert float(sum_by_halves(torch.tensor([a, b, c, d], dtype=torch.float64))) == (a + c) + (b + d) == 2.0
    assert float(sum_by_halves(torch.tensor([[a, c, b, d], [a, b, d, c]], dtype=torch.float64))[0]) == 1.0


def test_square_roots():
    """Also of numbers whose root is next to a half, or a power of two."""
    random = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = (random * 2**26).round().square()
    some = torch.cat((random, 1 - random * 1e-13, 1 + random * 1e-13, whole, whole + 1, whole - 1)).clamp_min(0.0)
    for scale in (1.0, 2.0, 1e-90, 1e80):
        x = torch.cat((some * scale, torch.tensor([0.0, math.inf, scale], dtype=torch.float64)))
        expected = torch.tensor([math.sqrt(number) for number in x.tolist()], dtype=torch.float64)
        assert torch.equal(square_root(x), expected)
    assert bool(square_root(torch.tensor([-1.0, math.nan], dtype=torch.float64)).isnan().all())


def test_logarithms():
    x = torch.cat(
        [
            torch.linspace(1e-9, 3, 10_001, dtype=torch.float64),
            torch.tensor([1.0, 2.0**-1000, 1 - 2.0**-33], dtype=torch.float64),
        ]
    )
    expected = torch.tensor([math.log(v) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(natural_log(x), expected, rtol=4e-16, atol=2e-16)
    assert float(natural_log(torch.ones(1, dtype=torch.float64))) == 0


def test_cosines_and_sines():
    edges = torch.tensor([1 / 8, 3 / 8, 1 - 2.0**-33], dtype=torch.float64)
    turns = torch.cat([torch.linspace(0, 1, 10_001, dtype=torch.float64), edges])
    cosine, sine = cosine_and_sine(turns)
    angles = [2 * math.pi * v for v in turns.tolist()]
    expected = torch.tensor([[math.cos(a), math.sin(a)] for a in angles], dtype=torch.float64)
    torch.testing.assert_close(torch.stack([cosine, sine], 1), expected, rtol=0, atol=1.5e-15)  # 2 pi v is rounded, too
    torch.testing.assert_close(cosine.square() + sine.square(), torch.ones_like(turns), rtol=0, atol=1e-15)
    exact = cosine_and_sine(torch.tensor([0, 0.25, 0.5, 0.75], dtype=torch.float64))
    assert torch.equal(torch.stack(exact), torch.tensor([[1, 0, -1, 0], [0, 1, 0, -1]]).double())


def test_a_hypotenuse_is_the_nearest_number() -> None:
    made = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 20_000, generator=made) * 10.0 ** torch.randint(-40, 38, (2, 20_000), generator=made)
    want = [math.hypot(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert same_bits(hypotenuse(a, b), torch.tensor(want, dtype=torch.float64).float())


def test_no_hypotenuse_overflows_or_vanishes() -> None:
    largest, least = torch.finfo(torch.float32).max, 2.0**-149
    a = torch.tensor([3.0, largest, least, -0.0, math.inf])
    assert hypotenuse(a, torch.tensor([-4.0, 0.0, 0.0, 0.0, 1.0])).tolist() == [5.0, largest, least, 0.0, math.inf]


def test_a_hypotenuse_may_be_written_over_what_it_is_made_of() -> None:
    a, b = torch.tensor([3.0, 5.0]), torch.tensor([4.0, 12.0])
    assert hypotenuse(a, b, a) is a
    assert a.tolist() == [5.0, 13.0]


def test_hypotenuses_of_what_is_not_contiguous() -> None:
    a, b = torch.tensor([[3.0, 8.0], [5.0, 7.0]]), torch.tensor([[4.0, 12.0], [15.0, 24.0]])
    assert torch.equal(hypotenuse(a.t(), b), torch.tensor([[5.0, 13.0], [17.0, 25.0]]))
    assert hypotenuse(torch.empty(0, 3), torch.empty(0, 3)).shape == (0, 3)


def test_hypotenuses_do_not_hear_of_a_default_dtype() -> None:
    a, b = torch.tensor([3.0]), torch.tensor([4.0])
    torch.set_default_dtype(torch.float64)
    try:
        assert hypotenuse(a, b).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_hypotenuses_of_wide_numbers_are_those_of_torch() -> None:
    a, b = torch.randn(2, 50, dtype=torch.float64)
    assert same_bits(hypotenuse(a, b), torch.hypot(a, b))


class Arithmetic(TorchDispatchMode):  # type: ignore[misc]
    """Notes what computes numbers, and of which dtype they are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noted: set[tuple[str, torch.dtype]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made, name = func(*args, **(kwargs or {})), func._schema.name.removeprefix("aten::").rstrip("_")
        if isinstance(made, Tensor) and name not in ("empty", "view", "_to_copy", "copy"):
            self.noted.add((name, made.dtype))
        return made


def test_hypotenuses_are_made_of_what_all_processors_round_alike() -> None:
    """In float64. Those of torch have other last bits on a GPU, and need not have on this processor."""
    a, b = rand(2, 7, seed=1)
    with Arithmetic() as made:
        hypotenuse(a, b)
    choices = {(name, torch.bool) for name in ("gt", "le")}
    exact = {(name, torch.float64) for name in ("pow", "add", "sub", "mul", "sqrt", "nextafter", "full_like", "where")}
    assert made.noted <= choices | exact


def _in_float32(a: Tensor, b: Tensor) -> Tensor:
    return (a.square() + b.square()).sqrt()


def _scaled_in_float32(a: Tensor, b: Tensor) -> Tensor:
    most, least = torch.maximum(a.abs(), b.abs()), torch.minimum(a.abs(), b.abs())
    return torch.where(least > 0, most * (1 + (least / most).square()).sqrt(), most)


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        (torch.hypot, test_hypotenuses_are_made_of_what_all_processors_round_alike),
        (_in_float32, test_hypotenuses_are_made_of_what_all_processors_round_alike),
        (_in_float32, test_a_hypotenuse_is_the_nearest_number),
        (_in_float32, test_no_hypotenuse_overflows_or_vanishes),
        (_scaled_in_float32, test_a_hypotenuse_is_the_nearest_number),
    ],
)
def test_other_hypotenuses_are_caught(
    mutant: Callable[[Tensor, Tensor], Tensor], law: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "hypotenuse", mutant)
    with pytest.raises(AssertionError):
        law()
