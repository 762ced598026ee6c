"""Bits and ratios for each layer under one budget: L-GreCo's programme, and water-filling, which tells what there is to gain.

Choices c of layer l cost ``cost[l][c]`` and lose ``error[l][c]``, a squared norm: squares add up over layers exactly, so their
sum is the error of the model's gradient.

The programme is whole numbers, ``+ - * /`` and comparisons on Python's doubles, so all ranks come to the same choices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVELS = 2048  # parts of the budget that the programme tells apart
Table = Sequence[Sequence[float]]


def within_cost(cost: Table, error: Table, budget: float, levels: int = LEVELS) -> list[int] | None:
    """The choice of each layer that loses least with costs of at most ``budget`` in sum; None: nothing fits.

    ``best[l][e] = min over c of best[l - 1][e - units(cost[l][c])] + error[l][c]``, with costs in parts of the budget,
    rounded to the nearest part and rounded up; what then exceeds the budget is dropped, what is left is spent where it gains
    most for its cost, and the same choice for all layers competes. O(layers x choices x levels).
    """
    starts = _same(cost)
    if budget > 0:
        for half, slack in ((0.5, len(cost)), (0.5, 0), (1.0 - 1e-9, 0)):  # what exceeds the budget is dropped below
            units = [[math.floor(value / budget * levels + half) for value in row] for row in cost]
            starts += _program(error, units, levels + slack)
    best: list[int] | None = None
    for start in starts:
        if _sum(cost, start) > budget * (1 + 1e-9):
            continue
        chosen = _spend_cost(cost, error, budget, start)
        if best is None or _sum(error, chosen) < _sum(error, best):
            best = chosen
    return best


def fill_bits(
    numbers: Sequence[int], energy: Sequence[float], bits: float, low: float = 1, high: float = 8
) -> list[float]:
    """Real bits for each layer that lose least with ``sum n b = bits``, if ``energy 4^-b`` is lost: every layer that is not
    clipped loses equally much for each of its numbers. A lower bound for whole bits.
    """
    fixed: dict[int, float] = {}
    while True:
        free = [k for k in range(len(numbers)) if k not in fixed]
        left = bits - sum(numbers[k] * b for k, b in fixed.items())
        if not free:
            return [fixed[k] for k in range(len(numbers))]
        total = sum(numbers[k] for k in free)
        level = (sum(numbers[k] * math.log2(energy[k] / numbers[k]) for k in free) - 2 * left) / total
        widths = {k: (math.log2(energy[k] / numbers[k]) - level) / 2 for k in free}
        worst = max(free, key=lambda k: max(low - widths[k], widths[k] - high))
        if low <= widths[worst] <= high:
            return [fixed.get(k, widths.get(k, 0.0)) for k in range(len(numbers))]
        fixed[worst] = low if widths[worst] < low else high


def _same(table: Table) -> list[list[int]]:
    """The same choice for all layers."""
    return [[choice] * len(table) for choice in range(len(table[0]))]


def _sum(table: Table, choice: Sequence[int]) -> float:
    total = 0.0
    for row, c in zip(table, choice, strict=True):
        total += row[c]
    return total


def _program(gain: Table, units: Sequence[Sequence[int]], levels: int) -> list[list[int]]:
    """The choices with the least ``gain`` in sum whose units are at most ``levels``; none if nothing fits."""
    best = [math.inf] * (levels + 1)
    best[0] = 0.0
    back: list[list[int]] = []
    for row, parts in zip(gain, units, strict=True):
        new, chosen = [math.inf] * (levels + 1), [0] * (levels + 1)
        for c, (worth, part) in enumerate(zip(row, parts, strict=True)):
            for at in range(part, levels + 1):
                value = best[at - part] + worth
                if value < new[at]:
                    new[at], chosen[at] = value, c
        best = new
        back.append(chosen)
    at = min(range(levels + 1), key=lambda k: best[k])
    if best[at] == math.inf:
        return []
    path = []
    for chosen, parts in zip(reversed(back), reversed(list(units)), strict=True):
        path.append(chosen[at])
        at -= parts[chosen[at]]
    return [path[::-1]]


def _spend_cost(cost: Table, error: Table, budget: float, start: Sequence[int]) -> list[int]:
    """Better choices, the largest gain for its cost first, as long as costs fit."""
    choice = list(start)
    while True:
        spent = _sum(cost, choice)
        best: tuple[float, int, int] | None = None
        for layer, c in enumerate(choice):
            for other in range(len(cost[layer])):
                gain, more = error[layer][c] - error[layer][other], cost[layer][other] - cost[layer][c]
                if gain > 0 and spent + more <= budget:
                    rate = gain / max(more, 1e-300)
                    if best is None or rate > best[0]:
                        best = (rate, layer, other)
        if best is None:
            return choice
        choice[best[1]] = best[2]
