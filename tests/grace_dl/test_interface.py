"""GRACE's interface without a network: what can be imported, what the helper takes, what it says."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import grace
import grace.verify
import grace_dl
from grace.cli.app import app
from grace.contract.knobs import as_call
from grace.errors import CompositionError, ConfigurationError
from grace_dl import network, table
from grace_dl.horovod.teaching import Teacher, teach
from grace_dl.script import run
from tests.docs.pages import ROOT
from tests.grace_dl.third_parties import Counting, Largest, Sampled, SignScale, Vote
from tests.patience import PATIENCE


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)


# ---- imports ------------------------------------------------------------------------------------------------------------
def test_importing_the_package_imports_no_toolkit() -> None:
    code = "import grace_dl, sys; print([m for m in ('torch', 'tensorflow', 'keras', 'jax', 'horovod') if m in sys.modules])"
    assert python("-c", code).stdout == "[]\n"
    code = "import grace_dl.torch.helper, sys; print([m for m in ('tensorflow', 'keras', 'jax') if m in sys.modules])"
    assert python("-c", code).stdout == "[]\n"


@pytest.mark.parametrize("toolkit", ["torch", "dist"])
def test_every_class_is_at_its_path_and_is_one_for_all_toolkits(toolkit: str) -> None:
    package = importlib.import_module(f"grace_dl.{toolkit}")
    for kind, entries in (("compressor", table.COMPRESSORS), ("memory", table.MEMORIES)):
        for module, entry in entries.items():
            cls = getattr(importlib.import_module(f"grace_dl.{toolkit}.{kind}.{module}"), entry.name)
            assert cls is getattr(importlib.import_module(f"grace_dl.torch.{kind}.{module}"), entry.name)
            assert issubclass(cls, getattr(package, kind.capitalize()))
            assert cls.__name__ == entry.name
    for module, entry in table.COMMUNICATORS.items():
        cls = getattr(importlib.import_module(f"grace_dl.{toolkit}.communicator.{module}"), entry.name)
        assert issubclass(cls, package.Communicator)
    from grace_dl.dist.compressor.qsgd import QSGDCompressor, QSGDCompressor_CUDA

    assert QSGDCompressor is QSGDCompressor_CUDA


def test_what_grace_did_not_have_is_not_there() -> None:
    for name in (
        "grace_dl.torch.compressor.topq",
        "grace_dl.mxnet",
        "grace_dl.torch.helper.more",
        "grace_dl.torch.x",
    ):
        with pytest.raises(ModuleNotFoundError, match=name):
            importlib.import_module(name)
    with pytest.raises(AttributeError, match="adapt"):
        grace_dl.adapt  # noqa: B018


# ---- parts and parameters -----------------------------------------------------------------------------------------------
def test_the_helper_says_what_is_legal() -> None:
    from grace_dl.dist.helper import grace_from_params

    with pytest.raises(NotImplementedError, match=r"compressor='topq'; did you mean 'topk'\? legal: none, fp16, topk"):
        grace_from_params({"compressor": "topq"})
    with pytest.raises(NotImplementedError, match=r"memory='residul'; did you mean 'residual'\? legal: none, residual"):
        grace_from_params({"memory": "residul"})
    with pytest.raises(
        NotImplementedError, match="communicator='ring'; legal: allreduce, allgather, broadcast, alltoall"
    ):
        grace_from_params({"communicator": "ring"})
    with pytest.raises(NotImplementedError, match=r"params has 'compres_ratio'; legal keys: .*compress_ratio"):
        grace_from_params({"compres_ratio": 0.1})
    with pytest.raises(CompositionError, match="cannot be summed"):
        grace_from_params({"compressor": "topk"})


def test_parameters_reach_the_method() -> None:
    cases = {
        "topk:ratio=0.05,memory=none": {"compressor": "topk", "compress_ratio": 0.05, "communicator": "allgather"},
        "topk:ratio=0.3,beta=0.9": {"compressor": "topk", "memory": "residual", "communicator": "allgather"},
        "powersgd:rank=4": {"compressor": "powersgd", "memory": "powersgd", "compress_rank": 4},
        "qsgd:levels=16,bucket=64,norm=l2": {
            "compressor": "qsgd_cuda", "quantum_num": 16, "bucket_size": 64, "communicator": "allgather",
        },
        "dgc:ratio=0.1,momentum=0.5": {
            "compressor": "dgc", "memory": "dgc", "compress_ratio": 0.1, "momentum": 0.5, "communicator": "allgather",
        },
        "inceptionn:p=8,relative=false": {"compressor": "inceptionn", "error_bound": 2e-8, "communicator": "allgather"},
        "signum:beta=0.8": {"compressor": "signum", "momentum": 0.8, "communicator": "allgather"},
        "randomk:ratio=0.2,scale=false,memory=none": {"compressor": "randomk", "compress_ratio": 0.2},
    }  # fmt: skip
    for text, params in cases.items():
        grc = table.grace_from_params(params)
        if "beta=0.9" in text:
            grc.memory.beta = 0.9
        assert grc.method == grace.method(text), params


def test_parts_are_made_as_grace_made_them() -> None:
    from grace_dl.dist.communicator.all_to_all import AllToAll
    from grace_dl.dist.communicator.allgather import Allgather
    from grace_dl.dist.compressor.inceptionn import INCEPTIONNCompressor
    from grace_dl.dist.compressor.powersgd import PowerSGDCompressor
    from grace_dl.dist.compressor.topk import TopKCompressor
    from grace_dl.dist.memory.dgc import DgcMemory
    from grace_dl.dist.memory.none import NoneMemory

    assert repr(TopKCompressor(0.1)) == "TopKCompressor(compress_ratio=0.1, kernel='torch')"
    assert PowerSGDCompressor(0.9, 4).momentum_factor == 0.9  # TensorFlow's order
    assert PowerSGDCompressor(2).rank == 2
    with pytest.raises(TypeError, match=r"TopKCompressor got \['ratio'\]; legal: compress_ratio, kernel"):
        TopKCompressor(ratio=0.1)
    with pytest.raises(TypeError, match="3 arguments"):
        TopKCompressor(0.1, "torch", 3)
    with pytest.raises(ConfigurationError, match="takes a GRACE Compressor, got the class TopKCompressor; make one"):
        Allgather(TopKCompressor, NoneMemory())
    with pytest.raises(ConfigurationError, match="AllToAll cuts a tensor"):
        AllToAll(SignScale(), NoneMemory())
    with pytest.raises(ConfigurationError, match="DgcMemory needs GRACE's own compressors"):
        Allgather(SignScale(), DgcMemory())
    with pytest.raises(ConfigurationError, match="error_bound=2"):
        Allgather(INCEPTIONNCompressor(2), NoneMemory())


def test_a_known_compressor_encodes_alone() -> None:
    from grace_dl.torch.compressor.powersgd import PowerSGDCompressor
    from grace_dl.torch.compressor.signsgd import SignSGDCompressor
    from grace_dl.torch.compressor.topk import TopKCompressor

    x = torch.arange(4.0) - 1.5
    compressor = TopKCompressor(0.5)
    assert compressor.decompress(*compressor.compress(x, "x")).tolist() == [-1.5, 0, 0, 1.5]
    votes = SignSGDCompressor()
    assert votes.aggregate([votes.decompress(*votes.compress(x, "x"))] * 3).tolist() == [-1, -1, 1, 1]
    with pytest.raises(NotImplementedError, match="cannot compress on its own"):
        PowerSGDCompressor().compress(x, "x")


def test_alone_a_step_needs_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "PMI_RANK", "GRACE_TRANSPORT"):
        monkeypatch.delenv(name, raising=False)
    grc = table.grace_from_params({"compressor": "topk", "communicator": "allgather", "compress_ratio": 0.5})
    assert grc.step(torch.tensor([1.0, 0.0, 3.0, 2.0]), "x").tolist() == [0, 0, 3, 2]
    network.leave()


# ---- adopted ------------------------------------------------------------------------------------------------------------
def test_what_cannot_be_adopted_is_told() -> None:
    with pytest.raises(ConfigurationError, match="takes a subclass of"):
        grace_dl.adopt(torch.nn.Linear)
    with pytest.raises(ConfigurationError, match="Largest cannot be made"):
        grace_dl.adopt(Largest, ratio=3)
    with pytest.raises(ConfigurationError, match="arguments go with a class"):
        grace_dl.adopt(Largest(), share=3)
    with pytest.raises(CompositionError, match="votes"):
        grace_dl.adopt(Vote, memory="residual")
    with pytest.raises(ConfigurationError, match="randomness='some'"):
        grace_dl.adopt(Largest, randomness="some")
    simulator = grace.Simulator(grace.Policy([("*", grace_dl.adopt(Counting))]), world=2)
    with pytest.raises(ConfigurationError, match=r"keeps something from step to step .*steps=1"):
        simulator.step({"w": [torch.ones(4)] * 2})


def test_an_adopted_compressor_is_told_by_its_attributes() -> None:
    assert (
        as_call(grace_dl.adopt(Largest, 0.2))
        == "Adopted(Largest(average=True, share=0.2, tensors_size_are_same=False))"
    )
    assert grace_dl.adopt(Largest, 0.2) == grace_dl.adopt(Largest, share=0.2) != grace_dl.adopt(Largest)
    from grace_dl.torch.compressor.topk import TopKCompressor

    assert grace_dl.adopt(TopKCompressor, 0.1, memory="residual") == grace.method("topk:ratio=0.1")


@pytest.mark.parametrize(
    "method",
    [
        grace_dl.adopt(SignScale), grace_dl.adopt(Largest, memory="residual"), grace_dl.adopt(Vote),
        grace_dl.adopt(Sampled, randomness="private"),
    ],
    ids=repr,
)  # fmt: skip
def test_the_laws_hold_for_adopted_compressors(method: grace.Method[object]) -> None:
    report = grace.verify.verify(method, grace.verify.QUICK)
    assert report.holds, report.broken


def test_a_law_is_broken_by_one_that_hides_that_it_is_random() -> None:
    assert "randomness" in grace.verify.verify(grace_dl.adopt(Sampled), grace.verify.QUICK).broken


# ---- the command ----------------------------------------------------------------------------------------------------------
def test_the_command_explains_a_dict() -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["migrate", "--json", "--explain", '{"compressor": "qsgd", "communicator": "allgather"}'])
    document = json.loads(done.stdout)
    assert document["method"] == "qsgd:bits=8,bucket=128,norm=l2"
    assert list(document["differs"]) == ["compressor qsgd", "communicator allgather"]
    done = runner.invoke(
        app, ["migrate", "--explain", "{'compressor': 'efsignsgd', 'communicator': 'broadcast', 'memory': 'efsignsgd'}"]
    )
    assert done.stdout.startswith("efsignsgd:communicator=broadcast\n  compressor efsignsgd: a mean over the workers")
    for bad, text in (
        ("[]", "legal: a dict"),
        ("{'compressor': 'x'}", "compressor='x'; legal"),
        ("{", "legal: a dict"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            runner.invoke(app, ["migrate", "--explain", bad], catch_exceptions=False, standalone_mode=False)


def test_the_page_lists_every_difference() -> None:
    page = " ".join((ROOT / "docs/concepts/coming-from.md").read_text(encoding="utf-8").split())
    for entries in (table.COMPRESSORS, table.MEMORIES, table.COMMUNICATORS):
        for module, entry in entries.items():
            assert f"| `{module}` |" in page, module
            assert entry.differs in page, f"docs/concepts/coming-from.md lacks, for {module}: {entry.differs}"


# ---- Horovod ------------------------------------------------------------------------------------------------------------
def test_horovod_learns_grace_and_is_otherwise_itself() -> None:
    calls = []
    hvd = types.SimpleNamespace(
        DistributedOptimizer=lambda *args, **knobs: calls.append((args, knobs)), Average=0, Sum=1,
        Compression=types.SimpleNamespace(none=object()), global_process_set=object(), is_initialized=lambda: False,
    )  # fmt: skip
    teach(hvd)
    teach(hvd)
    hvd.DistributedOptimizer("optimizer", [("w", 1)], op="Sum")
    assert calls == [(("optimizer", [("w", 1)]), {"op": "Sum"})]
    grc = table.grace_from_params({})
    with pytest.raises(ValueError, match="not been initialized"):
        hvd.DistributedOptimizer("optimizer", grc)
    hvd.is_initialized = lambda: True
    with pytest.raises(ConfigurationError, match="op=1: with Grace an optimizer steps with the mean"):
        hvd.DistributedOptimizer("optimizer", grc, op=hvd.Sum)
    with pytest.raises(ConfigurationError, match="one of all ranks"):
        hvd.DistributedOptimizer("optimizer", grc, process_set="some")
    assert len(calls) == 1
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with warnings.catch_warnings(action="error"):
        optimizer = hvd.DistributedOptimizer(
            optimizer, grc, op=hvd.Average, compression=hvd.Compression.none, process_set=hvd.global_process_set
        )
    assert optimizer.handle.world == 1
    optimizer.handle.detach()
    network.leave()


def test_horovods_side_for_tensorflow_learns_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "horovod"
    (package / "tensorflow").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "tensorflow/__init__.py").write_text(
        "def DistributedGradientTape(*args, **knobs):\n    return args, knobs\n\ndef is_initialized():\n    return False\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ("horovod", "horovod.tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    Teacher().begin()
    Teacher().begin()
    hvd: Any = importlib.import_module("horovod.tensorflow")
    assert hvd.DistributedGradientTape("tape", op=1) == (("tape",), {"op": 1})
    for arguments, knobs in ((("tape", table.grace_from_params({})), {}), (("tape",), {"grace": object()})):
        with pytest.raises(ValueError, match="not been initialized"):
            hvd.DistributedGradientTape(*arguments, **knobs)
    for name in ("horovod", "horovod.tensorflow"):
        monkeypatch.delitem(sys.modules, name)


def test_names_that_the_stand_in_lacks_are_told() -> None:
    code = """
import grace_dl
grace_dl.stand_in()
import horovod.torch as hvd
try:
    hvd.rank()
except ValueError as error:
    print(error)
try:
    hvd.DistributedOptimizer("optimizer")
except ValueError as error:
    assert "not been initialized" in str(error)
else:
    raise AssertionError("workers would train alone")
hvd.init()
print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.nccl_built(), hvd.is_initialized())
import grace
import grace.verify
print(type(grace.transport()).__name__)
import torch
print(hvd.allreduce(torch.tensor([1, 2])).tolist(), hvd.allgather(torch.tensor(3)).tolist(), hvd.broadcast_object([1], 0))
try:
    hvd.elastic
except AttributeError as error:
    print(str(error)[:60])
try:
    hvd.allreduce(torch.ones(1), op=hvd.Adasum)
except ValueError as error:
    print(error)
hvd.shutdown()
"""
    lines = python("-c", code).stdout.splitlines()
    assert lines == [
        "Horovod has not been initialized; use hvd.init().", "0 1 0 0 True", "Alone", "[1, 2] [3] [1]",
        "horovod.torch.elastic is not among what Grace's stand-in for",
        "op=Adasum: Grace's stand-in for Horovod has Average, Sum, Min and Max",
    ]  # fmt: skip


def test_statuses_and_tracebacks_are_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("grace_dl.script.stand_in", lambda: "a stand-in")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    path = tmp_path / "own.py"

    def script(text: str, *arguments: str) -> tuple[int, str, str]:
        path.write_text(text)
        return run(str(path), arguments), *capfd.readouterr()

    status, out, _ = script("import sys\nprint(sys.argv[1:], __name__)\nsys.exit(7)\n", "--epochs", "-x")
    assert (status, out) == (7, "['--epochs', '-x'] __main__\n")
    assert script("import sys\nsys.exit('a text')")[0] == 1
    assert script("import sys\nsys.exit()")[0] == 0
    assert script("raise KeyboardInterrupt")[0] == 130
    status, _, err = script("def f():\n    raise KeyError('mine')\nf()\n")
    lines = err.splitlines()
    assert (status, lines[1]) == (1, "Traceback (most recent call last):")
    assert lines[2] == f'  File "{path}", line 3, in <module>'
    assert "script.py" not in err
    _, _, err = script("raise AttributeError(\"module 'tensorflow' has no attribute 'placeholder'\")")
    assert "a script for TensorFlow 1" in err
    with pytest.raises(ConfigurationError, match=r"there is no script 'none\.py'"):
        run("none.py", [])


def test_what_follows_the_script_is_the_scripts(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("import sys, horovod.torch\nprint(sys.argv[1:])\nsys.exit(3)\n")
    done = python("-m", "grace.cli", "migrate", str(path), "--json", "--explain", "-x")
    assert (done.returncode, done.stdout) == (3, "['--json', '--explain', '-x']\n"), done.stderr
    assert done.stderr == "grace: own.py runs with a stand-in for Horovod\n"
