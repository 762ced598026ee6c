"""Launches of kernels for tensors that are too large to run them in Triton's interpreter: launches are recorded
(:mod:`tests.unit.kernels.launched`), and do not run.
"""

from __future__ import annotations

import contextlib

import pytest
import torch

pytest.importorskip("triton", reason="needs the package triton")

import grace
from grace.errors import PayloadError
from tests.laws.launches import LAUNCHES, RUN
from tests.laws.test_counted import count_work
from tests.unit.kernels.triton_checks import interpreter

__all__ = ["interpreter"]

ODD, EVEN, SMALL = ((16387,), (300, 500), (48,)), ((16384,), (64, 256)), ((7,), (3, 5))
# Whose constants are near the border of what is legal.
BORDERS = (
    "qsgd:levels=200", "qsgd:levels=9999", "strom:quanta=65536", "sketchml:quantiles=2", "sketchml:quantiles=256,groups=256",
    "drive:block=4096", "eden:bits=3,block=16384", "drive:memory=residual", "eden:bits=4,block=4096,memory=residual",
)  # fmt: skip
# Which read numbers at places that a kernel has written.
GATHER = ("chunktopk",)


@pytest.mark.parametrize(
    "spec", [spec for spec in dict.fromkeys([*LAUNCHES, *grace.methods(), *BORDERS]) if spec not in (*RUN, *GATHER)]
)
def test_large_tensors(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype, shapes in (
        (torch.float32, ODD), (torch.float32, EVEN), (torch.bfloat16, ODD[1:]), (torch.float16, EVEN),
    ):  # fmt: skip
        with contextlib.suppress(PayloadError):  # of numbers in a message that no kernel has written
            assert count_work(spec, shapes, monkeypatch, dtype=dtype)


@pytest.mark.parametrize("spec", [*RUN, *GATHER])
def test_narrow_tensors_whose_messages_are_as_long_as_they_say(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        assert count_work(spec, SMALL, monkeypatch, dtype=dtype, runs=True)[0] > 0
