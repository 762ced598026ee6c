"""Use of Triton's kernels, or why they cannot run: what speaks against it is said once, and CUDA tensors then get plain
torch.
"""

from __future__ import annotations

import sys
import types
import warnings

import pytest
import torch

from grace.cli import doctor
from grace.compute import backends, devices
from grace.errors import KernelsWarning


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A CUDA device of the imagination; Triton works there."""
    imagined = types.SimpleNamespace(name="Imagined", major=9, minor=0, total_memory=80 * 10**9, adds_up=lambda _: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (imagined.major, imagined.minor))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: imagined)
    module = types.ModuleType("grace.compute.triton")
    module.triton_adds_up = lambda place: imagined.adds_up(place)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "grace.compute.triton", module)
    monkeypatch.setattr(backends, "current", backends.UNDECIDED)
    monkeypatch.setenv(backends.VARIABLE, "triton")
    monkeypatch.delenv(backends.INTERPRETER, raising=False)
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: object())
    devices.find_triton_problem.cache_clear()
    yield imagined
    devices.find_triton_problem.cache_clear()


def test_where_all_is_well_cuda_gets_triton(device: types.SimpleNamespace):
    assert devices.find_triton_problem() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.backend().modules["cuda"] == "triton"
    assert "CUDA: Imagined, capability 9.0, 80 GB" in shown()


@pytest.fixture
def unasked(device: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """The device, where nobody has said which kernels shall run."""
    monkeypatch.delenv(backends.VARIABLE)
    backends._find_triton.cache_clear()
    yield device
    backends._find_triton.cache_clear()


def test_cuda_gets_triton_without_being_asked_and_not_before_its_first_tensor(unasked: types.SimpleNamespace):
    asked: list[torch.device] = []
    unasked.adds_up = lambda place: asked.append(place) or True
    chosen = backends.backend()
    assert chosen.module_of("cpu") == chosen.modules.get("cpu")
    assert not asked
    assert backends.runs_triton(torch.device("cuda"))
    assert backends.runs_triton(torch.device("cuda"))
    assert len(asked) == 1
    with backends.using("reference"):
        assert not backends.runs_triton(torch.device("cuda"))


def test_where_triton_fails_and_nobody_asked_that_is_said_once(unasked: types.SimpleNamespace):
    unasked.major = 6
    with pytest.warns(
        KernelsWarning, match=r"slower torch kernels: CUDA device 0 .* GRACE_KERNELS=native asks for them"
    ):
        assert not backends.runs_triton(torch.device("cuda"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not backends.runs_triton(torch.device("cuda"))


def test_in_the_interpreter_cuda_gets_plain_torch(unasked: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(backends.INTERPRETER, "1")
    assert not backends.runs_triton(torch.device("cuda"))


def fails(_: torch.device) -> bool:
    raise RuntimeError("PassManager::run failed\nand more")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"major": 6, "minor": 1}, r"CUDA device 0 has the capability 6\.1, and Triton needs 7\.0"),
        ({"adds_up": fails}, "fails with this torch and device: RuntimeError: PassManager::run failed$"),
        ({"adds_up": lambda _: False}, "computes something else than torch on this device"),
    ],
)
def test_what_speaks_against_it_is_said_once(device: types.SimpleNamespace, change: dict[str, object], why: str):
    vars(device).update(change)
    problem = devices.find_triton_problem()
    assert problem is not None
    with pytest.warns(KernelsWarning, match=why.rstrip("$")):
        chosen = backends.backend()
    assert "cuda" not in chosen.modules
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.backend() is chosen
    assert f"so that CUDA tensors get plain torch: {problem}" in shown()
    assert "in use for CUDA" not in shown()


@pytest.mark.parametrize(("version", "fine"), [("3.5.1", False), ("3.6.0", True), ("3.10.0+git1", True), (None, True)])
def test_a_triton_that_flushes_subnormal_quotients_is_not_used(
    device: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, version: str | None, fine: bool
):
    def tell(package: str) -> str:
        if version is None:
            raise devices.metadata.PackageNotFoundError(package)
        return version

    monkeypatch.setattr(devices.metadata, "version", tell)
    problem = devices.find_triton_problem()
    assert (problem is None) == fine
    assert fine or "triton 3.5 makes zeros of quotients of subnormal size; legal: 3.6" in str(problem)


def test_rocm_is_not_tried(device: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.version, "hip", "6.2")
    device.adds_up = fails
    assert "ROCm" in str(devices.find_triton_problem())


def test_another_triton_than_the_tested_one_is_told(device: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "_version", lambda package: "3.9.0")
    assert "triton 3.9.0 is installed, and 3.6.0 and 3.7.1 are what Grace's kernels were tested with" in shown()


def test_without_a_device_nothing_is_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.list_devices() == []
    assert doctor._cuda() == {"devices": [], "triton_problem": None}
    monkeypatch.setattr(doctor, "_version", lambda package: "3.6.0")
    assert "triton 3.6.0, for CUDA tensors, of which there are none without a device" in shown()


def shown() -> str:
    kernels = doctor._kernels([])
    report = {
        "versions": {"grace": "1", "python": "3", "torch": "2", "numpy": "2", "system": "here"},
        "kernels": kernels, "threads": {"torch": 1, "cores": 1, "local_workers": 1}, "extras": [], "errors": [],
        "transports": {
            "gloo": True, "nccl": True, "mpi": False, "cuda_devices": 1, "chosen": None, "no_shared_memory": None,
            "mpi4py": {"library": None, "threads": None, "problem": "none"},
        },
    }  # fmt: skip
    report["warnings"] = doctor._warnings(kernels, report["threads"], report["transports"])
    from rich.console import Console

    console = Console(width=300)
    with console.capture() as capture:
        console.print(doctor.table(report))
    return capture.get()


@pytest.mark.parametrize(("asked", "message"), [(None, "in use for CUDA tensors"), ("reference", "not in use")])
def test_what_triton_is_used_for_is_told(
    device: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, asked: str | None, message: str
):
    monkeypatch.setattr(doctor, "_version", lambda package: "3.6.0")
    if asked is not None:
        monkeypatch.setenv(backends.VARIABLE, asked)
    assert f"triton 3.6.0, {message};" in shown()
