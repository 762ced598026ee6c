"""The scale of a GradScaler, where it lies."""

from __future__ import annotations

import pytest
import torch

from grace.adapters.scaling import scale_of
from grace.errors import ConfigurationError
from grace.flags.capturing import pretend_capturing
from grace.flags.finite import cpu_as_accelerator

CPU = torch.device("cpu")


def scaler(enabled: bool = True) -> torch.amp.GradScaler:
    made = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=enabled)
    made.scale(torch.ones(1))
    return made


def test_the_host_reads_a_scale_that_it_has() -> None:
    assert scale_of(scaler(), CPU) == 8.0
    assert scale_of(scaler(enabled=False), CPU) == 1.0
    assert scale_of(torch.amp.GradScaler("cpu", init_scale=4.0), CPU) == 4.0


def test_nobody_waits_for_a_scale_on_the_device() -> None:
    with cpu_as_accelerator():
        there = scaler()
        assert scale_of(there, CPU) is there._scale
        assert scale_of(there, torch.device("meta")) == 8.0, "of a scale on another device the number is needed"
        assert scale_of(scaler(enabled=False), CPU) == 1.0
        assert scale_of(torch.amp.GradScaler("cpu", init_scale=4.0), CPU) == 4.0


def test_a_capture_is_refused() -> None:
    with (
        pretend_capturing(),
        pytest.raises(ConfigurationError, match="decides on the host whether the optimizer steps"),
    ):
        scale_of(scaler(), CPU)
