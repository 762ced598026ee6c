"""A method beside itself on another device. Here the CPU stands in for one, with native kernels, or with defects."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import grace
from grace.cli.app import app
from grace.compute import backends
from grace.verify import devices
from grace.verify.devices import compare_devices
from grace.verify.inputs import UGLY, normal

CPU = torch.device("cpu")


@pytest.mark.parametrize("spec", ["qsgd:bits=4", "topk:ratio=0.2", "efsignsgd", "randomk:ratio=0.3"])
def test_native_kernels_have_the_bits_of_plain_torch(spec: str):
    assert set(compare_devices(grace.method(spec), CPU).values()) == {"bits"}


@pytest.mark.parametrize(("factor", "how"), [(1.0, "bits"), (1 + 2**-20, "rounding"), (1.01, "different")])
def test_a_device_that_computes_something_else_is_told(factor: float, how: str, monkeypatch: pytest.MonkeyPatch):
    run = devices.run

    def spoil(*args: Any, **kwargs: Any) -> Any:
        done = run(*args, **kwargs)
        if backends.active()[0] != "reference":
            for out in done:
                out.mean.mul_(factor)
        return done

    monkeypatch.setattr(devices, "run", spoil)
    assert compare_devices(grace.method("topk:ratio=0.2"), CPU, {"some": normal(9, 5)}) == {"some": how}


def test_memories_count_too(monkeypatch: pytest.MonkeyPatch):
    real = devices.leaves

    def spoil(states: Any) -> list[Tensor]:
        return [leaf + (backends.active()[0] != "reference") for leaf in real(states)]

    monkeypatch.setattr(devices, "leaves", spoil)
    assert compare_devices(grace.method("topk:ratio=0.2"), CPU, {"some": normal(9, 5)}) == {"some": "rounding"}


def ask(*args: str) -> Any:
    return CliRunner().invoke(app, ["verify", "signsgd", "--quick", *args])


def test_the_command_compares_devices():
    result = ask("--device", "cpu", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["device"] == {"name": "cpu", "inputs": dict.fromkeys(UGLY, "bits")}
    assert f"cpu: the bits of the CPU for {len(UGLY)} of {len(UGLY)} kinds of input" in ask("--device", "cpu").stdout


def test_a_device_that_is_not_there_is_refused():
    result = ask("--device", "cuda:9")
    assert result.exit_code == 2
    assert "legal: cpu" in result.stderr


def test_a_difference_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "compare_devices", lambda method, device: {"zeros": "bits", "ties": "different"})
    result = ask("--device", "cpu")
    assert result.exit_code == 1
    assert "signsgd does something else on cpu: ties" in result.stderr
    assert "1 different" in result.stdout
