"""Bits and ratios under a budget, against hand-worked vectors and all combinations."""

from __future__ import annotations

import itertools
import random

import pytest

from grace.auto.allocate import fill_bits, within_cost

COST = [[2.0, 4.0, 8.0], [200.0, 400.0, 800.0], [20.0, 40.0, 80.0]]
ERROR = [[9.0, 0.6, 0.002], [30.0, 2.0, 0.008], [60.0, 4.0, 0.016]]


def test_a_budget_of_bytes_by_hand() -> None:
    assert within_cost(COST, ERROR, 242.0) == [0, 0, 1]
    assert within_cost(COST, ERROR, 221.0) is None
    assert within_cost(COST, ERROR, 1e9) == [2, 2, 2]


def models(count: int, layers: int) -> list[tuple[list[list[float]], list[list[float]]]]:
    rng, bits = random.Random(3), (2, 3, 4, 6, 8)
    drawn = []
    for _ in range(count):
        numbers = [10 ** rng.uniform(2, 6) for _ in range(layers)]
        scales = [n * 10 ** rng.uniform(-3, 3) for n in numbers]
        drawn.append(([[n * b for b in bits] for n in numbers], [[s * 4.0**-b for b in bits] for s in scales]))
    return drawn


def total(table: list[list[float]], choice: tuple[int, ...] | list[int]) -> float:
    return sum(row[c] for row, c in zip(table, choice, strict=True))


def test_random_models_against_all_combinations() -> None:
    for cost, error in models(8, 4):
        every = list(itertools.product(range(5), repeat=4))
        budget = total(cost, [2] * 4)
        dual = within_cost(cost, error, budget)
        assert dual is not None
        assert total(cost, dual) <= budget
        assert total(error, dual) <= 1.01 * min(total(error, pick) for pick in every if total(cost, pick) <= budget)


def test_water_filling_by_hand() -> None:
    numbers, energy = [100, 1000, 10_000], [100 * 100.0, 1000 * 4.0, 10_000 * 1.0]
    bits = fill_bits(numbers, energy, 33_300)
    assert bits == pytest.approx([6.2019, 3.8800, 2.8800], abs=1e-4)
    assert sum(e * 4**-b for e, b in zip(energy, bits, strict=True)) == pytest.approx(204.83, abs=0.01)
    clipped = fill_bits(numbers, energy, 77_000)
    assert max(clipped) <= 8
    assert sum(n * b for n, b in zip(numbers, clipped, strict=True)) == pytest.approx(77_000)
    assert fill_bits(numbers, energy, 8 * 11_100) == [8, 8, 8]
    costs = [[float(n * b) for b in range(1, 9)] for n in numbers]
    errors = [[e * 4.0**-b for b in range(1, 9)] for e in energy]
    assert within_cost(costs, errors, 36_000.0) == [7, 4, 2]
    assert within_cost(costs, errors, 33_300.0) == [2, 2, 2]
