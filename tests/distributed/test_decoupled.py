"""Learners and a syncer as processes: whoever is killed comes back, and nobody has waited."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import grace
from grace.decoupled.checkpoint import read_parameters
from grace.errors import AgreementError, ConfigurationError, StateError, UnexchangedWarning
from grace_bench.workers.ports import free_port
from tests.distributed.processes import SERVER
from tests.docs.pages import ROOT, run_blocks
from tests.patience import PATIENCE

pytest.importorskip("grpc")


def model(units: int = 32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 64), nn.Linear(64, units), nn.ReLU(), nn.Linear(units, 20))


def attach(net: nn.Module, port: int, name: str, **more: Any) -> Any:
    settings: dict[str, Any] = {
        "every": 10,
        "fragments": 2,
        "overlap": 4,
        "method": "topk:ratio=0.1",
        "down": "lpc:bits=8",
    }
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    return optimizer, grace.decoupled(net, optimizer, f"127.0.0.1:{port}", name=name, **{**settings, **more})


# ---- processes ------------------------------------------------------------------------------------------------------
def sync(port: int, checkpoint: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    grace.decoupled.serve(
        f"127.0.0.1:{port}", learners=2, lr=0.5, momentum=0.5, checkpoint=checkpoint, save_every=0.2, started=pipe.send
    )


def learn(port: int, name: str, file: str, pipe: Connection) -> None:
    """Trains until it is told to stop; answers how it is."""
    torch.set_num_threads(1)
    net = model()
    state = torch.load(file, weights_only=True) if os.path.exists(file) else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer, handle = attach(net, port, name, state=state, tokens_per_step=8, timeout=PATIENCE)
        random = torch.Generator().manual_seed(ord(name))
        while not pipe.poll() or pipe.recv() != "stop":
            x = torch.randint(0, 20, (8,), generator=random)
            optimizer.zero_grad()
            loss = cross_entropy(net(x), (x + 1) % 20)
            loss.backward()
            optimizer.step()
            if handle.stats.steps % 5 == 0:
                torch.save(handle.state_dict(), f"{file}.new")
                os.replace(f"{file}.new", file)
            told = [str(w.message) for w in caught if issubclass(w.category, UnexchangedWarning)]
            pipe.send((dataclasses.asdict(handle.stats), handle.connected, told, loss.item()))
            time.sleep(0.002)
    handle.detach()


class Running:
    """A process; ``last`` is what it said last."""

    def __init__(self, function: Callable[..., None], *args: Any):
        self.pipe, theirs = SERVER.Pipe()
        self.process = SERVER.Process(target=function, args=(*args, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.last: Any = None

    def listen(self) -> Any:
        while self.last is None or self.pipe.poll():
            assert self.pipe.poll(PATIENCE)
            self.last = self.pipe.recv()
        return self.last

    def wait(self, condition: Callable[[Any], bool]) -> None:
        """Until it says so, and it goes on all the time."""
        end = time.monotonic() + PATIENCE
        while not condition(self.listen()):
            assert time.monotonic() < end
            assert self.pipe.poll(PATIENCE)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def stop(self, how: Callable[[], None]) -> None:
        how()
        while self.process.is_alive():
            with contextlib.suppress(EOFError, OSError):
                while self.pipe.poll(0.01):
                    self.pipe.recv()
        assert self.process.exitcode == 0


def test_whoever_is_killed_comes_back_and_nobody_waits(tmp_path: Path):
    port, file = free_port(), str(tmp_path / "syncer.pt")
    syncer = Running(sync, port, file)
    assert syncer.listen() == f"127.0.0.1:{port}"
    a, b = (Running(learn, port, name, str(tmp_path / f"{name}.pt")) for name in "ab")
    for learner in (a, b):
        learner.wait(lambda last: last[0]["contributions"] >= 4)
    b.kill()
    steps = a.listen()[0]["steps"]
    a.wait(lambda last: last[0]["steps"] > steps + 40 and last[0]["updates"] > 8)  # alone
    b = Running(learn, port, "b", str(tmp_path / "b.pt"))
    b.wait(lambda last: last[0]["contributions"] >= 2)
    syncer.kill()
    a.wait(lambda last: bool(last[2]) and not last[1])
    steps = a.listen()[0]["steps"]
    a.wait(lambda last: last[0]["steps"] > steps + 40)
    syncer = Running(sync, port, file)
    for learner in (a, b):
        learner.wait(lambda last: last[1] and last[0]["returns"] == 2)
        counted = learner.last[0]["contributions"]
        learner.wait(lambda last, counted=counted: last[0]["contributions"] >= counted + 4)
        assert len(learner.last[2]) == 1  # it has said once that nobody was there
        assert "trains alone" in learner.last[2][0]
        learner.stop(lambda pipe=learner.pipe: pipe.send("stop"))
    syncer.stop(syncer.process.terminate)
    stats = torch.load(file, weights_only=True)["stats"]
    assert stats["returned"] >= 1
    assert stats["refused"] == 0
    assert stats["written_off"] >= 2
    net = model()
    net.load_state_dict(read_parameters(file))
    x = torch.arange(20)
    assert cross_entropy(net(x), (x + 1) % 20) < 1.0  # from 3.0


# ---- one process ----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def served() -> Iterator[int]:
    port = free_port()
    syncer = Running(sync, port, os.devnull + ".none")
    syncer.listen()
    yield port
    syncer.kill()


def test_another_model_a_learner_too_many_and_a_name_that_is_taken_are_told_at_once(served: int):
    _, first = attach(model(), served, "first")
    with pytest.raises(AgreementError, match=r"learner 'other' differs .* shape of '1\.weight': \[48, 64\]"):
        attach(model(units=48), served, "other")
    with pytest.raises(AgreementError, match="every: 20, here 10"):
        attach(model(), served, "other", every=20)
    _, second = attach(model(), served, "second")
    with pytest.raises(AgreementError, match="2 learners are there, first, second: 'third' is one too many"):
        attach(model(), served, "third")
    _, again = attach(model(), served, "second")
    with pytest.raises(AgreementError, match="another process has come as learner 'second'"):
        wait_for(second.step)
    assert first.connected
    assert "with the syncer" in repr(first)
    assert all(map(torch.equal, first.merged().values(), again.merged().values()))
    again.detach()
    first.detach()


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    port = free_port()
    syncer = Running(sync, port, str(tmp_path / "syncer.pt"))
    syncer.listen()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["learner.py", f"127.0.0.1:{port}", "a"])
    for _ in range(2):  # it goes on where it stopped
        run_blocks(ROOT / "docs/concepts/decoupled.md")
    assert (
        torch.load("merged.pt", weights_only=True).keys() == read_parameters_when_there(tmp_path / "syncer.pt").keys()
    )
    syncer.kill()


def read_parameters_when_there(file: Path) -> dict[str, torch.Tensor]:
    wait_until(file.exists)
    return read_parameters(file)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def wait_for(action: Callable[[], None]) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        action()
        time.sleep(0.01)


def test_without_a_syncer_it_trains_alone_and_says_so_once():
    net = model()
    with pytest.warns(
        UnexchangedWarning, match="trains alone, since the syncer at 127.0.0.1:.* is not there"
    ) as caught:
        optimizer, handle = attach(net, free_port(), "a", timeout=0.1)
    before = [p.clone() for p in net.parameters()]
    for _ in range(25):
        net(torch.arange(4)).sum().backward()
        optimizer.step()
    assert len(caught) == 1
    assert handle.stats.steps == 25
    assert not handle.connected
    assert not torch.equal(before[1], list(net.parameters())[1])
    with pytest.raises(grace.GraceError, match="no merged parameters yet"):
        handle.merged()
    handle.detach()
    assert optimizer.step() is None
    assert handle.stats.steps == 25


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"every": 0}, "every=0"),
        ({"fragments": 99}, "fragments=99"),
        ({"method": "powersgd"}, "is a conversation"),
        ({"tokens_per_step": 0}, "tokens_per_step=0"),
        ({"name": ""}, "name=''"),
    ],
)
def test_bad_settings_are_told_before_anything_is_sent(more: dict[str, Any], text: str):
    with pytest.raises(ConfigurationError, match=text):
        attach(model(), 1, **{"name": "a", **more})


def test_an_address_without_a_port_and_a_wrapped_model_are_refused():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match="address='localhost'; legal: host:port"):
        grace.decoupled(net, optimizer, "localhost", name="a", every=10)
    with pytest.raises(ConfigurationError, match="parameters that are not the model's"):
        grace.decoupled(net[1], optimizer, "localhost:1", name="a", every=10)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path):
    (tmp_path / "x.pt").write_bytes(b"no")
    with pytest.raises(StateError, match=r"x\.pt is no checkpoint of a syncer"):
        grace.decoupled.serve("127.0.0.1:0", learners=1, checkpoint=tmp_path / "x.pt")
