"""A file that Grace reads runs no code: what it names may be registered, or named before by the user, and is not imported."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from typer.testing import CliRunner

import grace
from grace.adapters.handover import Handover
from grace.auto.explain import Explanation
from grace.cli.app import app
from grace.errors import ConfigurationError, GraceError, StateError
from grace.registry import discovery, read_method
from grace.run.checkpoint import pack, unpack
from grace.run.options import Options
from grace.run.simulator import Simulator
from grace.state import flat, nested
from grace.transports.alone import Alone
from grace_bench.runs.results import DocumentError, encode
from grace_bench.survey.archive import merge, read_archive, read_runs, write_archive
from grace_bench.survey.plan import read_plan
from tests.unit.grace_bench.documents import document
from tests.unit.grace_bench.survey.test_compare import row

SPEC = "topk:ratio=0.1"
SOURCE = """
from dataclasses import dataclass
import grace
open("ran", "w").close()

@dataclass(frozen=True)
class Evil(grace.TopK): ...
"""
TEXTS = ["evil.py:Evil", "evil_module:Evil:ratio=0.5", "rht:inner=(evil_module:Evil)"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with a module that leaves a file when it is imported."""
    for name in ("evil.py", "evil_module.py"):
        (tmp_path / name).write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(discovery, "_named", {})
    yield tmp_path
    for name in ("evil_module", "_grace_file_evil"):
        sys.modules.pop(name, None)


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# ---- doors of states: each loads a good state with this text for the method of its tensors -----------------------------
def named(saved: Any, text: str) -> Any:
    """A state with another text for the methods."""
    methods = saved["methods"] or ["weight"]
    return {**saved, "methods": dict.fromkeys(methods, text), "states": saved["states"] or {"weight": ()}}


def make(spec: Any = SPEC) -> Any:
    """A model and its distributed optimizer after one step."""
    net = nn.Linear(40, 40, bias=False)
    optimizer = grace.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1), spec, net.named_parameters(), transport="alone"
    )
    net(torch.ones(1, 40)).sum().backward()
    optimizer.step()
    return optimizer


def by_optimizer(text: str) -> None:
    saved, other = make().state_dict(), make()
    buffer = io.BytesIO()
    torch.save({**saved, "grace": named(saved["grace"], text)}, buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))


def by_handle(text: str) -> None:
    make().handle.load_state_dict(named(make().handle.state_dict(), text))


def by_choice(text: str) -> None:
    saved = make().handle.state_dict()
    make("qsgd").handle.load_state_dict({**saved, "auto": {"methods": {"weight": text}}})


def by_checkpoint(text: str) -> None:
    saved = make().handle.checkpoint("all").state_dict()
    saved["worker.0"] = pack(named(unpack(saved["worker.0"]), text))
    make().handle.checkpoint("all").load_state_dict(saved)


def by_dcp(text: str) -> None:
    saved = make().handle.checkpoint("all").state_dict()
    hostile = pack(named(unpack(saved["worker.0"]), text))
    dcp.save({"grace": {**saved, "worker.0": hostile}}, checkpoint_id="dcp")
    dcp.load({"grace": make().handle.checkpoint("all")}, checkpoint_id="dcp")


def handover() -> Handover:
    made = Handover(["w"], [(40, 40)], [torch.float32], SPEC, transport=Alone(), options=Options())
    made.mean([torch.ones(40, 40)])
    return made


def by_npz(text: str) -> None:  # as Keras, TensorFlow and JAX load theirs
    np.savez("state.npz", **flat(named(handover().state_dict(), text)))
    with np.load("state.npz") as arrays:
        handover().load_state_dict(nested(dict(arrays)))


def by_simulator(text: str) -> None:
    like = {"w": torch.ones(40, 40)}

    def begun() -> Simulator:
        simulator = Simulator(SPEC, 1, seed=0)
        simulator.step({"w": [torch.ones(40, 40)]})
        return simulator

    saved = begun().state_dict()
    begun().load_state_dict({"workers": [named(saved["workers"][0], text)]}, like)


def by_local(text: str) -> None:
    def begun() -> Any:
        net = nn.Linear(40, 40, bias=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        handle = grace.local(net, optimizer, SPEC, every=1, transport="alone")
        net(torch.ones(1, 40)).sum().backward()
        optimizer.step()
        return handle

    begun().load_state_dict(named(begun().state_dict(), text))


def by_ddp(text: str) -> None:
    def begun() -> Any:
        ddp = nn.parallel.DistributedDataParallel(nn.Linear(40, 40, bias=False))
        handle = grace.attach(ddp, SPEC)
        ddp(torch.ones(1, 40)).sum().backward()
        return handle

    begun().load_state_dict(named(begun().state_dict(), text))


def by_sharded(text: str) -> None:
    from torch.distributed.fsdp import fully_shard

    def begun() -> Any:
        net = fully_shard(nn.Linear(40, 40, bias=False))
        handle = grace.attach(net, SPEC)
        net(torch.ones(1, 40)).sum().backward()
        return handle

    begun().load_state_dict(named(begun().state_dict(), text))


# ---- doors of the bench ------------------------------------------------------------------------------------------------
def by_plan(text: str) -> None:
    Path("plan.toml").write_text(f'[[runs]]\ntasks = ["digits"]\nmethods = ["{text}"]\nsteps = 1\n')
    read_plan(Path("plan.toml"))


def task_by_plan(text: str) -> None:
    Path("plan.toml").write_text(f'[[runs]]\ntasks = ["{text}"]\nmethods = ["none"]\nsteps = 1\n')
    read_plan(Path("plan.toml"))


def by_runs(text: str) -> None:
    Path("runs").mkdir()
    Path("runs/one.json").write_text(encode(row(method=text)))
    read_runs(Path())


def by_archive(text: str) -> None:
    write_archive(Path("a.parquet"), [row(method=text)])
    read_archive(Path("a.parquet"))


def task_by_archive(text: str) -> None:
    write_archive(Path("a.parquet"), [row(task=text)])
    read_archive(Path("a.parquet"))


def by_command(command: str, *rest: str) -> Callable[[str], None]:
    def read(text: str) -> None:
        write_archive(Path("a.parquet"), [row(method=text)])
        done = CliRunner().invoke(app, ["survey", command, "a.parquet", *rest])
        assert done.exit_code
        raise done.exception if isinstance(done.exception, GraceError) else DocumentError(done.stderr)

    return read


STATES = [by_optimizer, by_handle, by_choice, by_checkpoint, by_dcp, by_npz, by_simulator, by_local, by_ddp, by_sharded]
METHODS = [
    by_plan, by_runs, by_archive, by_command("report", "--out", "o.html"), by_command("merge", "--out", "o.parquet"),
    by_command("steps", "--out", "o.json"),
]  # fmt: skip


def check_harmless(door: Callable[[str], None], text: str) -> None:
    """Loading at this door is an error that says what to do, and runs nothing."""
    before = list(sys.path)
    with pytest.raises(GraceError, match=r"(?s)stands in a file.*legal there: registered.*name it yourself"):
        door(text)
    assert not Path("ran").exists(), "the file ran code"
    assert sys.path == before, "the file changed sys.path"
    assert not {"evil_module", "_grace_file_evil"} & sys.modules.keys()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("door", [*STATES, *METHODS])
def test_no_file_runs_code(door: Any, text: str, group: None) -> None:
    check_harmless(door, text)


@pytest.mark.parametrize("door", [task_by_plan, task_by_archive])
@pytest.mark.parametrize("text", ["evil.py:Evil", "evil_module:Evil"])
def test_no_task_of_a_file_runs_code(door: Any, text: str) -> None:
    check_harmless(door, text)


@pytest.mark.parametrize("door", [*STATES, *METHODS, task_by_plan])
def test_a_mutant_that_trusts_files_is_caught(door: Any, group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trusting:
        set = reset = get = staticmethod(lambda *_: None)

    monkeypatch.setattr(discovery, "_refused", Trusting)
    with pytest.raises((AssertionError, pytest.fail.Exception, ConfigurationError)):
        check_harmless(door, "evil.py:Evil")
    assert Path("ran").exists()


def test_what_is_only_shown_is_not_looked_up() -> None:
    """Results and explanations say methods as texts."""
    folder = Path("results/runs")
    folder.mkdir(parents=True)
    folder.joinpath("one.json").write_text(encode(msgspec.structs.replace(document(), method="evil.py:Evil")))
    before = list(sys.path)
    assert CliRunner().invoke(app, ["report", "results", "--json"]).exit_code == 0
    explained = dict.fromkeys(Explanation.__dataclass_fields__)
    explained |= {"schema": "grace.auto", "version": 1, "candidates": [], "buckets": [], "trials": [], "events": []}
    explained |= {
        "settings": "auto",
        "policy": "evil.py:Evil",
        "workers": 2,
        "replicas": 1,
        "transport": "x",
        "cores": 1.0,
        "stage": "running",
    }
    explained |= {
        "step": 1,
        "spent": {},
        "elapsed": 1.0,
        "left_out": {"evil.py:Evil": "slow"},
        "evidence": {},
        "stragglers": [],
        "goal": "steps",
        "steps": {},
        "extrapolated": [],
    }
    Path("run.json").write_text(json.dumps(explained))
    assert CliRunner().invoke(app, ["explain", "--run", "run.json"]).exit_code == 0
    assert not Path("ran").exists()
    assert sys.path == before


def test_a_class_that_the_user_has_named_is_found_again() -> None:
    """In code or on the command line, by this or another spelling of its place, with any knobs."""
    with pytest.raises(ConfigurationError, match="stands in a file"):
        read_method("evil.py:Evil")
    made = make("evil.py:Evil:ratio=0.1")
    assert Path("ran").exists(), "the user's own text is trusted"
    other = make("evil.py:Evil:ratio=0.1")
    other.load_state_dict(made.state_dict())
    assert read_method(f"{Path.cwd()}/evil.py:Evil:ratio=0.5") == grace.method("evil.py:Evil:ratio=0.5")
    with pytest.raises(
        ConfigurationError, match=r"evil_module.*that you have named in this process \(.*evil\.py:Evil\)"
    ):
        read_method("evil_module:Evil")


def test_a_class_of_the_command_line_may_stand_in_the_files_of_the_command() -> None:
    write_archive(
        Path("a.parquet"),
        rows := [row(task="digits", method="evil_module:Evil", recipe="Allgather(compressor=Evil())")],
    )
    done = CliRunner().invoke(app, ["survey", "merge", "a.parquet", "--out", "o", "--trust", "evil_module:Evil"])
    assert "its recipe is not what" in done.stderr, "it was looked up"
    assert merge(read_archive(Path("a.parquet"))) == rows


def test_an_error_of_a_state_names_the_tensor() -> None:
    with pytest.raises(StateError, match=r"'weight' was saved under evil\.py:Evil"):
        by_handle("evil.py:Evil")
