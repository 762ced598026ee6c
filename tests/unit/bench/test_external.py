import subprocess

import pytest

from grace.bench.config import RunConfig
from grace.bench.external import Company, Place, find_place
from grace.errors import ConfigurationError

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
    ("wrong", "said"), [({"workers": 2}, "4 workers"), ({"workers": 4, "link": "1gbit"}, "--link 1gbit")]
)
def test_what_such_workers_cannot_run(wrong, said):
    company = object.__new__(Company)
    company.place = Place(0, 4, "here", 1)
    with pytest.raises(ConfigurationError, match=said):
        company.check([RunConfig("digits", "none", **wrong)])
    company.check([RunConfig("digits", "none", workers=4)])
