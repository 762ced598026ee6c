"""The doors that ``attach`` asks: Grace's own first, then those of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.adapters import doors
from grace.adapters.torch_ddp import DDPDoor
from grace.adapters.trainers import AttachingCallback
from grace.errors import ConfigurationError
from tests.unit.packages import installed

TOWERS = """
import torch
import grace
from grace.run.session import Session
from grace.run.steps import Steps
from grace.transports.alone import Alone

class Towers(torch.nn.Linear):
    pass

class TowersHandle(grace.Handle):
    def detach(self):
        self._session.close()

@grace.register_door("towers")
class TowersDoor:
    def takes(self, model):
        return None if isinstance(model, Towers) else "for Towers wrap it: towers.parallel(model)"

    def open(self, model, method, options, *, optimizer, scaler, transport):
        session = Session(dict(model.named_parameters()), method, Alone(), options)
        return TowersHandle(Steps(session))
"""


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(doors, "DOORS", doors.DOORS.copy())
    points = {"broken": "grace_broken:Door", "towers": "grace_towers:TowersDoor"}
    modules = {"grace_towers": TOWERS, "grace_broken": "raise RuntimeError('no hinges')\n"}
    with installed(tmp_path, monkeypatch, "grace.doors", points, modules):
        yield


def towers() -> Any:
    doors.DOORS.find("towers")
    return sys.modules["grace_towers"].Towers(40, 40)


def test_a_door_of_a_package_opens_its_models() -> None:
    handle = grace.attach(towers(), "topk:ratio=0.1", seed=7, check=True)
    assert type(handle).__name__ == "TowersHandle"
    assert isinstance(handle, grace.Handle)
    assert handle._session.options == grace.run.options.Options(seed=7, check=True)
    assert [row.method for row in handle.plan().rows] == ["topk:ratio=0.1", "none"]
    handle.detach()


def test_trainers_ask_the_same_doors() -> None:
    callback = AttachingCallback("topk:ratio=0.1", seed=7)
    callback._attach(towers(), "wrap it", None, None)
    assert type(callback.handle).__name__ == "TowersHandle"
    callback._detach()


def test_an_error_has_what_every_door_says() -> None:
    with pytest.raises(ConfigurationError) as raised:
        grace.attach(torch.nn.Linear(2, 2), "topk")
    own, broken, theirs = str(raised.value).split("\n")
    assert own.startswith("attach takes a DistributedDataParallel model, got a bare Linear: wrap it first")
    assert broken == "door 'broken' of entry point 'grace_broken:Door' does not load: no hinges"
    assert theirs == "for Towers wrap it: towers.parallel(model)"


def test_packages_are_not_loaded_for_graces_own() -> None:
    model = DistributedDataParallel.__new__(DistributedDataParallel)
    assert isinstance(doors.find_door(model), DDPDoor)
    assert "grace_broken" not in sys.modules
    assert "grace_towers" not in sys.modules


def test_options_are_checked_before_a_door_is_asked() -> None:
    with pytest.raises(ConfigurationError, match="nonfinite='ignore'"):
        grace.attach(torch.nn.Linear(2, 2), "topk", nonfinite="ignore")  # type: ignore[arg-type]
