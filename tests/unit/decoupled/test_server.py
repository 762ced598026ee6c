"""Checkpoints of the process of a syncer: one save at a time, and none ends the saving."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

from grace.decoupled import server
from grace.decoupled.checkpoint import load_checkpoint, read_parameters, write_checkpoint
from tests.unit.decoupled.test_syncer import Table


def begun() -> Any:
    table = Table()
    table.join(1)
    return table.syncer


def test_a_signal_during_a_save_waits_for_it_before_the_last_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stops: list[Callable[[], None]] = []
    saves: list[str] = []

    def write(state: Any, path: Path) -> None:
        saves.append("begins")
        if len(saves) == 1:
            stops[0]()
            time.sleep(0.2)
        saves.append("ends")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(
            loop, "add_signal_handler", lambda _, stop: stops.append(lambda: loop.call_soon_threadsafe(stop))
        )
        await server.SyncerServer(begun(), tmp_path / "syncer.pt", 0.01).run("127.0.0.1:0", lambda address: None)

    monkeypatch.setattr(server, "write_checkpoint", write)
    asyncio.run(run())
    assert saves == ["begins", "ends"] * 2


def test_a_directory_that_is_not_there_is_logged_and_saving_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    made = server.SyncerServer(begun(), tmp_path / "later" / "syncer.pt", 1.0)
    asyncio.run(made._save())
    assert "syncer.pt was not written" in caplog.text
    (tmp_path / "later").mkdir()
    asyncio.run(made._save())
    assert read_parameters(tmp_path / "later" / "syncer.pt").keys() == {"w", "b"}


def test_a_checkpoint_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "syncer.pt"
    write_checkpoint({"a": 1}, place)
    with pytest.raises(Exception, match="pickle"):
        write_checkpoint({"a": lambda: None}, place)

    def fail(*_: Any) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", fail)
        with pytest.raises(OSError, match="no room"):
            write_checkpoint({"a": 2}, place)
    assert list(tmp_path.iterdir()) == [place]
    assert load_checkpoint(place) == {"a": 1}
