"""Every method gives the simulator's bits through every door and over every transport.

One pair of processes for each toolkit and transport runs all its doors: what takes long is to import the toolkit. Over gloo
they are forked, over MPI under mpiexec, and Horovod, where there is one, has pairs of its own, under horovodrun.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.adapters.toolkits.all_methods import METHODS, Means, differences, expect, find_network_sums, gradients, read
from tests.distributed.processes import ENVIRONMENT, QUIET_TENSORFLOW, fork, free_port, mpiexec
from tests.distributed.with_horovod import find_python, horovodrun
from tests.patience import PATIENCE

SCRIPT = Path(__file__).parent / "toolkits" / "doors.py"
DOORS = {  # of one pair of processes
    "torch": ("ddp", "optimizer", "keras_torch"),
    "tensorflow": ("tensorflow", "keras_tensorflow"),
    "jax": ("jax", "keras_jax"),
}
MUTANT = "rounds"
BESIDE = {"torch": (MUTANT,), "jax": ("cases",)}  # what these processes do when they are there
PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "reproducibility.md"
TRANSPORTS = ("gloo", "mpi", "horovod")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @functools.cache
    def run(toolkit: str, world: int = 2, over: str = "gloo") -> tuple[Path, str]:
        for package in ("tensorflow", "jax") if toolkit == "mixed" else ("keras", toolkit):
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"pip install 'grace-dl[{package}]'")
        folder = tmp_path_factory.mktemp(toolkit)
        doors = [door.partition("_")[0] for door in (*DOORS.get(toolkit, (toolkit,)), *BESIDE.get(toolkit, ()))]
        backend = "tensorflow" if toolkit == "mixed" else toolkit
        command = [str(SCRIPT), str(folder), over, ",".join(doors)]
        if over == "gloo":
            here = ({"KERAS_BACKEND": backend, **QUIET_TENSORFLOW},) * world
            after = toolkit if toolkit == "tensorflow" else None
            ended = fork(SCRIPT, *command[1:], workers=world, env=here, seconds=PATIENCE, after=after)
            return folder, "\n".join(output for _, output in ended)
        env = {
            **ENVIRONMENT, "PYTHONPATH": str(SCRIPT.parents[3]), "PYTHONWARNINGS": "", "KERAS_BACKEND": backend,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        }  # fmt: skip
        full = (
            horovodrun(world, command, find_python())
            if over == "horovod"
            else mpiexec(world, [sys.executable, *command])
        )
        done = subprocess.run(full, capture_output=True, text=True, timeout=PATIENCE, env=env, check=False)
        return folder, f"{done.stdout}\n{done.stderr}"

    return run


def run_over(transport: str, run: Any, toolkit: str, world: int = 2) -> Any:
    if transport == "horovod":
        find_python()  # or skips
    return run(toolkit, world, transport)


@functools.cache
def simulated(world: int) -> list[Means]:
    return expect(world)


# A door is the same over every transport, and a transport the same for every door: tests/distributed/test_transport.py.
MORE = pytest.mark.night("mean without 1/W", "rows in another order", "maximum that adds", "another root")
MIXED = pytest.mark.night("raw gradient", "last tensor skipped", "rows in another order")


@pytest.mark.parametrize("transport", ["gloo", *(pytest.param(name, marks=MORE) for name in TRANSPORTS[1:])])
@pytest.mark.parametrize(("toolkit", "door"), [(toolkit, door) for toolkit, doors in DOORS.items() for door in doors])
def test_every_method_gives_the_simulators_bits(toolkit: str, door: str, transport: str, run: Any) -> None:
    folder, output = run_over(transport, run, toolkit)
    for rank in range(2):
        means = read(folder, door, transport, rank)
        assert not isinstance(means, str), f"rank {rank}: {means}\n{output[-4000:]}"
        assert not differences(means, simulated(2)), f"rank {rank}"


@MIXED
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_with_three_toolkits_in_one_job_have_the_same_bits(transport: str, run: Any) -> None:
    """TensorFlow, JAX and torch."""
    folder, output = run_over(transport, run, "mixed", 3)
    means = [read(folder, "mixed", transport, rank) for rank in range(3)]
    lists = [x for x in means if not isinstance(x, str)]
    assert len(lists) == 3, f"{means}\n{output[-4000:]}"
    assert not differences(lists[1], lists[0])
    assert not differences(lists[2], lists[0])
    apart = {name.partition("/")[0] for name in differences(lists[0], simulated(3))}
    assert apart <= network_sums(), "with three workers, others than those whose sums the network makes"


@MORE
def test_what_users_of_jax_do_works_over_mpi_too(run: Any) -> None:
    folder, output = run("jax", 2, "mpi")
    for rank in range(2):
        means = read(folder, "cases", "mpi", rank)
        assert not isinstance(means, str), f"rank {rank}: {means}\n{output[-4000:]}"


@functools.cache
def network_sums() -> set[str]:
    return {name for name in METHODS if find_network_sums(name)}


def test_the_page_lists_the_methods_whose_sums_the_network_makes() -> None:
    (line,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("`none`,")]
    assert set(re.findall(r"`(\w+)`", line)) == network_sums()


def test_a_door_that_rounds_is_caught(run: Any) -> None:
    folder, _ = run_over("gloo", run, "torch")
    means = read(folder, MUTANT, "gloo", 0)
    assert not isinstance(means, str), means
    wrong = differences(means, simulated(2))
    assert len({name.partition("/")[0] for name in wrong}) > len(METHODS) / 2, wrong


DEFECTS: dict[str, Callable[[int, str, list[Means]], Tensor]] = {
    "raw gradient": lambda step, name, lists: gradients(0, step)[name],
    "last tensor skipped": lambda step, name, lists: (
        gradients(0, step)[name] if name == list(lists[step])[-1] else lists[step][name]
    ),
    "means of the step before": lambda step, name, lists: lists[max(step - 1, 0)][name],
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_door_with_a_defect_is_caught(defect: str) -> None:
    lists = simulated(2)
    given = [{name: DEFECTS[defect](step, name, lists) for name in lists[step]} for step in range(len(lists))]
    wrong = differences(given, lists)
    assert list(lists[0])[-1] in wrong
    assert len(wrong) == 1 if defect == "last tensor skipped" else len(wrong) > len(METHODS), wrong


def test_another_order_of_sums_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def reduce(bufs: Tensor, op: str) -> Tensor:
        return bufs.amax(0) if op == "max" else own(bufs.flip(0), op)

    right = simulated(3)  # before it is broken
    simulation: Any = importlib.import_module("grace.run.simulate")
    own = simulation._reduce
    monkeypatch.setattr(simulation, "_reduce", reduce)
    wrong = differences(expect(3), right)
    assert "none/matrix" in wrong
    assert {name.partition("/")[0] for name in wrong} <= network_sums()
