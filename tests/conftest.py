"""Settings for all tests: one thread, for the same speed everywhere; examples that are the same in each run; Triton's kernels
in its interpreter where there is no GPU; tiers and groups (tests/tiers.py); what keeps the test runner quick; the same random
numbers for a test in every run, and the same environment.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from tests import tiers

# What a shell, a CI service or a launcher says of terminals and jobs is not for the commands that tests call.
SAID = {
    "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "LINES", "NO_COLOR", "PY_COLORS",
    "TERM", "TERMINAL_WIDTH", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "GRACE_LOCAL_WORLD_SIZE", "GRACE_TRANSPORT", "LOCAL_RANK",
    "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE",
}  # fmt: skip
LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_")
for _name in [name for name in os.environ if name in SAID or name.startswith(LAUNCHERS)]:
    del os.environ[_name]
torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # triton reads it when it is imported
with contextlib.suppress(ImportError):  # before TensorFlow: after it triton's library crashes the process
    import triton  # noqa: F401
settings.register_profile(
    "grace",
    derandomize=True,
    deadline=None,
    max_examples=40,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("grace")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds", metavar="FILE", help="write each test's processor and clock seconds here")
    parser.addoption("--tier", choices=list(tiers.TIERS), help="only tests of this tier (tests/tiers.py)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--seconds"):
        from tests.seconds import Recorder  # it needs psutil, which not all environments have

        writes = not hasattr(config, "workerinput")
        config.pluginmanager.register(Recorder(Path(config.getoption("--seconds")), writes))


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    _seed()


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):
        _seed()


def _seed() -> None:
    """Random numbers of a test do not depend on which tests its process has run before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """The thousands of tests stay until the end: to look again and again whether they are garbage is a quarter of the time
    that it takes to find them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    tier = config.getoption("--tier")
    inside = collection_path.is_relative_to(tiers.ROOT)
    return True if tier and inside and tiers.leaves_out(collection_path, tier) else None


@pytest.hookimpl(tryfirst=True)  # pytest-xdist may change the names in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = tiers.keep(items, config.getoption("--tier"))
    if len(kept) < len(items):
        names = {item.nodeid for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
        items[:] = kept
    tiers.check_marks(items)
    groups = tiers.arrange(items)
    if (file := getattr(config, "workerinput", {}).get("groups")) is not None and config.workerinput[
        "workerid"
    ] == "gw0":
        Path(file).write_text(json.dumps(groups), encoding="utf-8")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the outcomes of each tier, if several ran."""
    if len(counts := tiers.count(terminalreporter.stats)) > 1:
        terminalreporter.section("tiers")
        for tier, outcomes in counts.items():
            text = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
            terminalreporter.line(f"make {tier}: {text}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["groups"] = str(_groups_file(node.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Starts one process more than there are cores: some tests wait for processes of theirs."""
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return tiers.make_scheduler(config, log, _groups_file(config)) if config.getoption("dist") == "loadgroup" else None


def _groups_file(config: pytest.Config) -> Path:
    """File in which a worker writes each test's group for the process that hands the tests out."""
    if _GROUPS not in config.stash:
        config.stash[_GROUPS] = Path(tempfile.mkdtemp(prefix="groups-"), "groups.json")
    return config.stash[_GROUPS]


_GROUPS: pytest.StashKey[Path] = pytest.StashKey()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _GROUPS in config.stash:
        shutil.rmtree(config.stash[_GROUPS].parent, ignore_errors=True)
