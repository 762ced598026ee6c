from __future__ import annotations

import json
import os

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import grace
from grace.cli import doctor
from grace.cli.app import app
from grace.compute import backends, native


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of kernels is made anew, in an environment that says nothing."""
    monkeypatch.setattr(backends, "current", backends.UNDECIDED)
    for name in (backends.VARIABLE, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_the_choice_of_a_transport_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRACE_TRANSPORT", "gloo")
    assert "grace.transport() gives gloo here: GRACE_TRANSPORT asks for it" in shown(doctor.examine())
    monkeypatch.setenv("GRACE_TRANSPORT", "tcp")
    report = doctor.examine()
    assert report["transports"]["chosen"] is None
    assert any("GRACE_TRANSPORT='tcp'; legal:" in text for text in report["errors"])


def test_whether_workers_can_share_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_why_alone", lambda world: None)
    assert "shared memory inside a machine: yes" in shown(doctor.examine())
    monkeypatch.undo()
    monkeypatch.setenv("GRACE_LOCAL_WORLD_SIZE", "1")
    assert "shared memory inside a machine: no, GRACE_LOCAL_WORLD_SIZE=1" in shown(doctor.examine())
    monkeypatch.setenv("GRACE_LOCAL_WORLD_SIZE", "x")
    assert any("GRACE_LOCAL_WORLD_SIZE='x'; legal:" in text for text in doctor.examine()["errors"])


def test_where_workers_share_no_memory_but_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    text = shown(doctor.examine())
    assert "shared memory inside a machine: no, this system has no memfd_create and pidfd_open, as Linux has" in text


def shown(report: dict[str, object]) -> str:
    console = Console(width=300)
    with console.capture() as capture:
        console.print(doctor.table(report))
    return capture.get()


def test_it_tells_what_is_active() -> None:
    ran = CliRunner().invoke(app, ["doctor", "--json"])
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert (report["schema"], report["version"]) == ("grace.doctor", 1)
    assert report["versions"]["grace"] == grace.__version__
    assert report["versions"]["torch"] == torch.__version__
    assert report["kernels"]["active"] == backends.active()[0]
    assert report["kernels"]["available"] == backends.available()
    assert report["threads"]["torch"] == torch.get_num_threads()
    assert report["threads"]["cores"] >= 1
    assert report["transports"]["gloo"] is True
    assert report["transports"]["chosen"]["name"] == "alone"
    mpi = report["transports"]["mpi4py"]
    assert (mpi["library"] is None) == (mpi["problem"] is not None)
    text = shown(report)
    for expected in (backends.active()[0], backends.active()[1], torch.__version__, native.library(), "gloo"):
        assert expected in text


def test_extras_are_those_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["torch>=2.6", 'rich>=13; extra == "cli"', "no-such-package>=1 ; extra == 'zstd'",
              'grace-dl[cli]; extra == "bench"', 'pytest; extra == "dev"',
              'no-such-package>=2; python_version < "3.10" and extra == "cli"']  # fmt: skip
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: wanted)
    extras = doctor.examine()["extras"]
    assert [(extra["extra"], extra["package"], bool(extra["version"])) for extra in extras] == [
        ("cli", "rich", True), ("zstd", "no-such-package", False),
    ]  # fmt: skip
    text = shown(doctor.examine())
    assert "not installed, and needed by nothing else: zstd" in text
    assert "missing" not in text
    wanted.append('no-such-package; extra == "cli"')
    assert "; not installed: no-such-package" in shown(doctor.examine())


@pytest.mark.parametrize(("asked", "told"), [("fast", "legal: reference, native"), ("native-avx512", "was not built")])
def test_what_cannot_be_had_is_an_error(asked: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backends.VARIABLE, asked)
    monkeypatch.setattr(native, "_loaded", "the native library was not built")
    ran = CliRunner().invoke(app, ["doctor"])
    assert ran.exit_code == 1
    assert told in ran.stdout
    report = doctor.examine()
    assert report["kernels"]["active"] is None
    assert report["kernels"]["asked"] == asked


def test_the_torch_kernels_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_loaded", "the native library was not built")
    report = doctor.examine()
    told = {key: report["kernels"][key] for key in ("active", "why", "asked", "available", "library")}
    assert told == {
        "active": "reference", "why": "the native library was not built", "asked": None, "available": ["reference"],
        "library": "the native library was not built",
    }  # fmt: skip
    assert any("slower: the native library was not built" in text for text in report["warnings"])
    assert report["errors"] == [], "nothing was asked for"
    assert "slower" in shown(report)


def test_too_many_threads_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.resources, "cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not any("threads for" in text for text in doctor.examine()["warnings"])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert any("8 threads for 4 cores" in text and "OMP_NUM_THREADS=1" in text for text in doctor.examine()["warnings"])


def test_a_host_without_an_address_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_resolves", lambda host: False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert any("GLOO_SOCKET_IFNAME" in text for text in doctor.examine()["warnings"])
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert not any("GLOO_SOCKET_IFNAME" in text for text in doctor.examine()["warnings"])


def test_a_package_that_cannot_be_imported_is_told() -> None:
    assert doctor._explain_failure("no_such_module") is None, "what is not there is not broken"
    assert doctor._explain_failure("json") is None


def test_a_package_that_is_there_but_broken(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    assert any("RuntimeError: operator nms does not exist" in text for text in doctor.examine()["warnings"])


def test_one_queue_for_all_streams_of_a_gpu_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    report = doctor.examine()
    kernels = {**report["kernels"], "cuda": {**report["kernels"]["cuda"], "devices": ["a GPU"], "triton_problem": None}}
    given = report["threads"], report["transports"]
    assert not any("one queue" in text for text in report["warnings"])
    assert any("one queue" in text for text in doctor._warnings(kernels, *given))
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    assert not any("one queue" in text for text in doctor._warnings(kernels, *given))
