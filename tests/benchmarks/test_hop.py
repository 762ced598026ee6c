"""Output of ``python -m benchmarks.hop``."""

from __future__ import annotations

import torch

from benchmarks.hop import HEADS, KINDS, rows
from grace.transports.alone import Alone


def test_ratios_are_those_of_one_round() -> None:
    samples = {"gloo": [(0.001, 0.002), (0.004, 0.004)], "shared": [(0.0005, 0.0002), (0.001, 0.0006)]}
    (line,) = rows([{"kind": "hop", "size": 16, "samples": samples}])
    cells = dict(zip(HEADS, line, strict=True))
    assert cells["shared / gloo"] == "0.38 (0.25 to 0.50)"
    assert cells["gloo, ms"] == "2.500 (1.000 to 4.000)"
    assert cells["shared, processor ms"] == "0.400 (0.200 to 0.600)"


def test_what_is_measured_runs() -> None:
    for run in KINDS.values():
        run(Alone(), torch.ones(8))
