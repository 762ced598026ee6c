import subprocess

import pytest

from grace.errors import ConfigurationError
from grace.registry import method
from grace.transports.launchers import (
    LOCAL_WORLD,
    LOCAL_WORLDS,
    LocalWorld,
    MPIPlace,
    Place,
    find_local_world,
    find_mpi_place,
    find_place,
    local_world,
)

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_ID": "40007", "SLURM_STEP_NODELIST": "n[1-2]"}


def test_alone():
    assert find_place({}) is None
    assert find_place({"SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}) is None  # a batch script, not a step
    assert find_place({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}) is None


def test_torchrun():
    assert find_place(TORCHRUN) == Place(1, 4, "node1", 29500)


def test_half_of_torchruns_variables():
    with pytest.raises(ConfigurationError, match="MASTER_ADDR and MASTER_PORT"):
        find_place({"RANK": "0", "WORLD_SIZE": "2"})


def test_slurm_with_an_address():
    assert find_place({**SLURM, "MASTER_ADDR": "n1"}) == Place(3, 4, "n1", 20007)


def test_slurm_asks_for_the_first_machine(monkeypatch):
    done = subprocess.CompletedProcess([], 0, "n1\nn2\n", "")
    monkeypatch.setattr(subprocess, "run", lambda command, **_: done if command[-1] == "n[1-2]" else None)
    assert find_place(SLURM).address == "n1"


def test_slurm_without_its_tool(monkeypatch):
    def absent(*_, **__):
        raise FileNotFoundError("scontrol")

    monkeypatch.setattr(subprocess, "run", absent)
    with pytest.raises(ConfigurationError, match="set MASTER_ADDR"):
        find_place(SLURM)


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
         MPIPlace("OMPI_COMM_WORLD_RANK", 1, 4, 0)),
        ({"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "2"}, MPIPlace("PMI_RANK", 2, 3, 2)),
        ({"PMIX_RANK": "1"}, MPIPlace("PMIX_RANK", 1, None, None)),
        ({"PMIX_RANK": "1", **SLURM}, MPIPlace("PMIX_RANK", 1, 4, None)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "TORCHELASTIC_RUN_ID": "x", **TORCHRUN}, None),
        (TORCHRUN, None),
        ({}, None),
    ],
)  # fmt: skip
def test_mpi(env, place):
    assert find_mpi_place(env) == place


def test_the_number_of_workers_of_a_machine_is_a_whole_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, local in (("", None), ("4", LocalWorld(4, LOCAL_WORLD))):
        monkeypatch.setenv(LOCAL_WORLD, value)
        assert find_local_world() == local
    for value in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv(LOCAL_WORLD, value)
        with pytest.raises(ConfigurationError, match=f"{LOCAL_WORLD}='{value}'; legal: a whole number >= 1"):
            find_local_world()


def test_who_says_how_many_workers_a_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument, the variable of Grace's, then what launchers say."""
    for name in LOCAL_WORLDS:
        monkeypatch.delenv(name, raising=False)
    spec = "topk:memory=none,machine=local"
    with pytest.raises(
        ConfigurationError, match="where the launcher says it in one of GRACE_LOCAL_WORLD_SIZE, LOCAL_W"
    ):
        method(spec)
    for workers, name in enumerate(reversed(LOCAL_WORLDS), 1):
        monkeypatch.setenv(name, str(workers))
        assert method(spec).machine == workers  # type: ignore[attr-defined]
    with local_world(7):
        assert find_local_world() == LocalWorld(7, "local_world_size")
        assert method(spec).machine == 7  # type: ignore[attr-defined]
    with local_world(None):
        assert find_local_world() == LocalWorld(len(LOCAL_WORLDS), LOCAL_WORLD)
