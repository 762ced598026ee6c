"""Transports of installed packages: by name, by what a launcher implies, and broken ones that harm nobody."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import grace
from grace.errors import ConfigurationError, UnknownNameError
from grace.transports import candidates, choose
from grace.transports.base import describe
from grace.transports.choose import TransportChoice
from tests.unit.packages import installed

CARRIER = """
import os
import grace
from grace.transports.alone import Alone

@grace.register_transport("carrier", launched=lambda: "PIGEONS is set" if "PIGEONS" in os.environ else None)
class Carrier(Alone):
    name = "carrier"
"""
POINTS = {"broken": "grace_broken:Broken", "carrier": "grace_carrier:Carrier", "silent": "grace_silent:Nothing"}
MODULES = {
    "grace_carrier": CARRIER, "grace_broken": "raise RuntimeError('no antenna')\n", "grace_silent": "class Nothing: pass\n",
}  # fmt: skip


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Grace's own transports and these, in an environment that says nothing."""
    for name in (
        "GRACE_TRANSPORT",
        "RANK",
        "WORLD_SIZE",
        "PMI_RANK",
        "PMIX_RANK",
        "OMPI_COMM_WORLD_RANK",
        "SLURM_PROCID",
    ):
        monkeypatch.delenv(name, raising=False)
    own = candidates.TRANSPORTS.copy()
    monkeypatch.setattr(candidates, "TRANSPORTS", own)
    monkeypatch.setattr(choose, "TRANSPORTS", own)
    with installed(tmp_path, monkeypatch, "grace.transports", POINTS, MODULES):
        yield


def test_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe(grace.transport("carrier")) == "carrier (asked for)"
    assert "grace_broken" not in sys.modules
    monkeypatch.setenv("GRACE_TRANSPORT", "carrier")
    assert choose.choose() == TransportChoice("carrier", "GRACE_TRANSPORT asks for it")


def test_in_a_door() -> None:
    weight = torch.nn.Parameter(torch.zeros(40, 40))
    optimizer = grace.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), "topk", transport="carrier")
    assert optimizer.handle.transport == "carrier (asked for)"  # type: ignore[attr-defined]
    optimizer.handle.detach()  # type: ignore[attr-defined]


def test_by_what_the_launcher_implies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIGEONS", "2")
    assert choose.choose() == TransportChoice("carrier", "PIGEONS is set")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert choose.choose().name == "gloo", "Grace's own come first"


def test_those_that_do_not_load_harm_nobody_who_does_not_name_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "grace"):
        assert choose.choose().name == "alone"
    assert "transport 'broken' of entry point 'grace_broken:Broken' does not load: no antenna" in caplog.text
    with pytest.raises(ConfigurationError, match="does not load: no antenna"):
        grace.transport("broken")
    with pytest.raises(ConfigurationError, match="loads, but does not register a transport named 'silent'"):
        grace.transport("silent")


def test_unknown_names_list_them() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'carrier'.*alone, auto, broken, carrier, gloo"):
        grace.transport("carier")


def test_torch_is_what_it_was_initialized_with() -> None:
    with pytest.raises(ConfigurationError, match="'torch' is what torch"):
        grace.transport("torch")


def test_a_name_is_taken_once() -> None:
    with pytest.raises(
        ConfigurationError, match=r"transport name 'mpi' is taken by grace\.transports\.choose\._make_mpi"
    ):
        grace.register_transport("mpi")(candidates.TransportMaker)  # type: ignore[arg-type]
