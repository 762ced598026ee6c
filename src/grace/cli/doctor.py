"""``grace doctor``: what is active on this machine, why, and what is known to go wrong with it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import warnings
from importlib import metadata, util
from typing import Any

import torch
import torch.distributed as dist
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grace.cli.options import Json
from grace.cli.output import show, write_json
from grace.compute import backends, devices, native, resources
from grace.environment import explain_one_queue
from grace.errors import ConfigurationError
from grace.transports.choose import choose
from grace.transports.joining import find_why_alone
from grace_bench import machine

_DISTRIBUTION = "grace-dl"
_OLDER = re.compile(r"python_version\s*<\s*[\"'](\d+)\.(\d+)")
_OF_DEVELOPERS = ("dev", "docs", "test", "toolkits")  # extras that no user of Grace lacks
_PATIENCE = 2.0  # seconds for a name server
_MPI_PATIENCE = 30.0
_ASK_MPI = (
    "import json; from mpi4py import MPI; from grace.transports.mpi import describe_library; "
    "print(json.dumps([describe_library(MPI), MPI.Query_thread() >= MPI.THREAD_SERIALIZED]))"
)


def doctor(as_json: Json = False) -> None:
    """Show what is active on this machine, and why: kernels, threads, versions, transports, optional packages; warn of traps.

    The exit status is 1 if what the environment variable GRACE_KERNELS asks for is not available.

    Example: [bold]GRACE_KERNELS=native-avx2 grace doctor[/]
    """
    document = examine()
    if as_json:
        write_json(document)
    else:
        show(table(document), soft=True)
    if document["errors"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Everything that ``grace doctor --json`` writes."""
    errors: list[str] = []
    kernels = _kernels(errors)
    threads = {"torch": torch.get_num_threads(), "cores": resources.cores(), "local_workers": _local_workers()}
    transports = {
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": dist.is_available() and dist.is_nccl_available(),
        "mpi": dist.is_available() and dist.is_mpi_available(),
        "cuda_devices": torch.cuda.device_count(),
        "mpi4py": _mpi(),
        "chosen": _describe_choice(errors),
        "no_shared_memory": _find_why_none_is_shared(errors),
    }
    return {
        "schema": "grace.doctor",
        "version": 1,
        "versions": machine.versions(),
        "kernels": kernels,
        "threads": threads,
        "transports": transports,
        "extras": _extras(),
        "warnings": _warnings(kernels, threads, transports),
        "errors": errors,
    }


def _describe_choice(errors: list[str]) -> dict[str, str] | None:
    """The transport that ``grace.transport("auto")`` would give here, and why."""
    try:
        choice = choose()
    except ConfigurationError as error:
        errors.append(str(error))
        return None
    return {"name": choice.name, "why": choice.why}


def _find_why_none_is_shared(errors: list[str]) -> str | None:
    """The reason why workers of this machine cannot exchange through memory that they share; None if they can."""
    try:
        return find_why_alone(max(2, _local_workers()))
    except ConfigurationError as error:
        errors.append(str(error))
        return str(error)


@functools.cache
def _mpi() -> dict[str, Any]:
    """The MPI that mpi4py has, and its support of threads; asked in a separate process, which belongs to no job."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMI", "PMIX_", "HYD"))}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_MPI], capture_output=True, text=True, timeout=_MPI_PATIENCE, env=env, check=True
        )
        library, threads = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        return {"library": None, "threads": None, "problem": (error.stderr.strip().splitlines() or ["no reason"])[-1]}
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        return {"library": None, "threads": None, "problem": f"asking it failed: {type(error).__name__}"}
    return {"library": library, "threads": threads, "problem": None}


def _kernels(errors: list[str]) -> dict[str, Any]:
    out: dict[str, Any] = {"active": None, "why": None}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a missing library is reported below
            out["active"], out["why"] = backends.active()
    except ConfigurationError as error:
        errors.append(str(error))
    return {
        **out,
        "asked": os.environ.get(backends.VARIABLE) or None,
        "available": backends.available(),
        "library": native.library(),
        "triton": _version("triton"),
        "cuda": _cuda(),
    }


def _cuda() -> dict[str, Any]:
    """The CUDA devices, and why Triton's kernels cannot run there, if they cannot."""
    there = devices.list_devices()
    problem = devices.find_triton_problem() if there and _version("triton") is not None else None
    return {"devices": there, "triton_problem": problem}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _local_workers() -> int:
    """Workers on this machine, as a launcher such as torchrun says; 1 without one."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(text) if text.isdecimal() and int(text) > 0 else 1


def _extras() -> list[dict[str, str | None]]:
    """The optional packages that an extra of Grace would install, and which version of each is there."""
    try:
        wanted = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    out = []
    for line in wanted:
        name = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra\s*==\s*[\"']([\w-]+)", line)
        if name is None or extra is None or extra[1] in _OF_DEVELOPERS or name[0] == _DISTRIBUTION:
            continue
        if (older := _OLDER.search(line)) and sys.version_info >= (int(older[1]), int(older[2])):
            continue  # a stand-in for what this Python has
        out.append({"extra": extra[1], "package": name[0], "version": _version(name[0])})
    return out


def _warnings(kernels: dict[str, Any], threads: dict[str, int], transports: dict[str, Any]) -> list[str]:
    out = []
    if kernels["active"] == "reference":
        what = kernels["library"] if kernels["asked"] is None else f"{backends.VARIABLE}=reference asks for it"
        out.append(f"the torch kernels are in use, which are many times slower: {what}")
    cuda = kernels["cuda"]
    if cuda["triton_problem"] is not None:
        out.append(f"Triton's kernels cannot run here, so that CUDA tensors get plain torch: {cuda['triton_problem']}")
    if cuda["devices"] and kernels["triton"] not in (None, *devices.TESTED_TRITON):
        out.append(
            f"triton {kernels['triton']} is installed, and {' and '.join(devices.TESTED_TRITON)} are what Grace's kernels "
            "were tested with"
        )
    if cuda["devices"] and (danger := explain_one_queue()) is not None:
        out.append(danger)
    used = threads["torch"] * threads["local_workers"]
    if used > threads["cores"]:
        share = max(1, threads["cores"] // threads["local_workers"])
        out.append(
            f"{used} threads for {threads['cores']} cores: workers take each other's time; set OMP_NUM_THREADS={share}"
        )
    if not transports["gloo"]:
        out.append("this torch has no gloo: nothing can be exchanged between processes on CPUs")
    elif not os.environ.get("GLOO_SOCKET_IFNAME") and not _resolves(socket.gethostname()):
        out.append(
            f"the host name {socket.gethostname()!r} has no address, and gloo looks for one; set GLOO_SOCKET_IFNAME to "
            "the network interface that workers reach each other by"
        )
    broken = _explain_failure("torchvision")
    if broken:
        out.append(
            "torchvision is installed, but cannot be imported, and neither can what imports it (timm, torchmetrics, "
            f"lightning): {broken}; install the build that belongs to this torch"
        )
    return out


def _resolves(host: str) -> bool:
    """True if a name has an address; also False if nobody answers."""
    addresses: list[Any] = []

    def look() -> None:
        with contextlib.suppress(OSError):
            addresses.extend(socket.getaddrinfo(host, None))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return bool(addresses)


def _explain_failure(module: str) -> str | None:
    """The reason why an installed package cannot be imported."""
    if util.find_spec(module) is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def _use_triton(kernels: dict[str, Any]) -> str:
    """The use of Triton here, in words."""
    if not kernels["cuda"]["devices"]:
        return "for CUDA tensors, of which there are none without a device"
    if kernels["cuda"]["triton_problem"] is not None or kernels["asked"] == "reference":
        return "not in use"
    return "in use for CUDA tensors"


def table(document: dict[str, Any]) -> RenderableType:
    """Formats the findings for a terminal."""
    versions, kernels, threads, transports = (document[key] for key in ("versions", "kernels", "threads", "transports"))
    lines = Table(box=None, show_header=False, pad_edge=False)
    lines.add_column(style="dim")
    lines.add_column()
    lines.add_row("grace", versions["grace"])
    lines.add_row("python", f"{versions['python']}, torch {versions['torch']}, numpy {versions['numpy']}")
    lines.add_row("system", versions["system"])
    lines.add_row("kernels", Text(f"{kernels['active']}: {kernels['why']}" if kernels["active"] else "none"))
    lines.add_row("", Text(f"available: {', '.join(kernels['available'])}", "dim"))
    lines.add_row("", Text(str(kernels["library"]), "dim"))
    if kernels["triton"] is not None:
        tested = f"{_use_triton(kernels)}; {' and '.join(devices.TESTED_TRITON)} were tested"
        lines.add_row("", Text(f"triton {kernels['triton']}, {tested}", "dim"))
    for device in kernels["cuda"]["devices"]:
        lines.add_row(
            "", Text(f"CUDA: {device['name']}, capability {device['capability']}, {device['memory'] / 1e9:.0f} GB")
        )
    lines.add_row("threads", f"{threads['torch']} of torch and the kernels, {threads['cores']} cores")
    there = [name for name in ("gloo", "nccl", "mpi") if transports[name]]
    lines.add_row("transports", f"{', '.join(there) or 'none'}; CUDA devices: {transports['cuda_devices']}")
    mpi, chosen = transports["mpi4py"], transports["chosen"]
    threaded = "with threads" if mpi["threads"] else "without threads, which Grace refuses"
    lines.add_row("", Text(f"mpi4py: {mpi['problem'] or mpi['library'] + ', ' + threaded}", "dim"))
    alone = transports["no_shared_memory"]
    lines.add_row("", Text(f"shared memory inside a machine: {'no, ' + alone if alone else 'yes'}", "dim"))
    if chosen is not None:
        lines.add_row("", Text(f"grace.transport() gives {chosen['name']} here: {chosen['why']}"))
    absent = []
    for extra in dict.fromkeys(package["extra"] for package in document["extras"]):
        packages = [package for package in document["extras"] if package["extra"] == extra]
        there = [f"{package['package']} {package['version']}" for package in packages if package["version"]]
        others = [package["package"] for package in packages if not package["version"]]
        if not there:
            absent.append(extra)
            continue
        text = Text(", ".join(there))
        if others:
            text.append(f"; not installed: {', '.join(others)}", "dim")
        lines.add_row(Text(f"[{extra}]"), text)
    if absent:
        lines.add_row("optional", Text(f"not installed, and needed by nothing else: {', '.join(absent)}", "dim"))
    notes = [Text(f"warning: {text}", "yellow") for text in document["warnings"]]
    notes += [Text(f"error: {text}", "red") for text in document["errors"]]
    return Group(lines, *notes)
