"""The same training script under mpiexec and torchrun: the same bits, whatever moves them."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.distributed.processes import fork, free_port, run_under_mpi, torchrun

SCRIPT = """
import hashlib, os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import grace

torch.set_num_threads(1)

def digest(model):
    raw = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(raw).hexdigest()[:16]

def tell(*parts):
    sys.stdout.write(" ".join(map(str, parts)) + "\\n")

def batches(rank):
    data = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(8, 64, generator=data) for _ in range(5)]

grace.init_process_group()
rank = dist.get_rank()

def train(transport):
    torch.manual_seed(0)
    net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 32)), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    handle = grace.attach(net, "topk:ratio=0.05", transport=transport, check=True)
    for x in batches(rank):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    tell(f"ddp {transport}", digest(net), repr(handle).partition(": ")[0])
    handle.detach()

def train_locally(transport):
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    handle = grace.local(net, optimizer, "qsgd:bits=4", every=2, transport=transport)
    for x in batches(rank):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    handle.sync()
    tell(f"local {transport}", digest(net), repr(handle).partition(": ")[0])
    handle.detach()

for transport in sys.argv[1].split(","):
    train(transport)
    train_locally(transport)
try:
    grace.attach(DistributedDataParallel(torch.nn.Linear(64, 64)), "topk", transport="alone")
except grace.GraceError as error:
    tell(f"refused: {error}")
tell("LOCAL_RANK", os.environ.get("LOCAL_RANK"))
dist.destroy_process_group()
"""


def test_the_same_script_gives_the_same_bits_under_both(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = run_under_mpi(script, "auto,mpi", workers=2)
    assert done.returncode == 0, done.stdout + done.stderr
    status, output = torchrun(script, "auto", workers=2)
    assert status == 0, output
    outputs = [done.stdout, output]
    digests = {
        what: {digest for output in outputs for digest in re.findall(rf"^{what} \w+ (\w+)", output, re.MULTILINE)}
        for what in ("ddp", "local")
    }
    assert all(len(values) == 1 for values in digests.values()), outputs
    under_mpi, under_torchrun = outputs
    assert len(re.findall("^ddp|^local", under_mpi, re.MULTILINE)) == 8
    assert "<DDPHandle rank 1 of 2 over gloo (the model's process group)" in under_torchrun
    assert "<DDPHandle rank 1 of 2 over mpi (asked for)" in under_mpi
    assert "<LocalSteps rank 0 of 2 over gloo (torch.distributed is initialized), every 2 steps" in under_mpi
    assert "refused: transport alone (asked for): rank and world (0, 1) are not those of the model's group" in under_mpi
    assert {"LOCAL_RANK 0", "LOCAL_RANK 1"} <= set(under_mpi.splitlines())


WITHOUT_MPI4PY = """
import sys
sys.modules["mpi4py"] = None
import torch.distributed as dist
import grace

transport = grace.transport()
sys.stdout.write(f"rank {transport.rank} of {transport.world}: {transport.name} ({transport.why})\\n")
transport.all_gather_text("", seconds=600)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("launcher", ["mpiexec", "slurm"])
def test_gloo_from_the_variables_of_other_launchers(launcher: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(WITHOUT_MPI4PY)
    port = str(free_port())
    if launcher == "mpiexec":
        done = run_under_mpi(script, workers=2, env={"MASTER_ADDR": "localhost", "MASTER_PORT": port})
        assert done.returncode == 0, done.stdout + done.stderr
        output, why = done.stdout, "PMI_RANK is set, and mpi4py is not installed (pip install 'grace-dl[mpi]')"
    else:
        slurm = {"SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        places = tuple({"SLURM_PROCID": str(rank), **slurm} for rank in (0, 1))
        ended = fork(script, workers=2, env=places, torchrun=False)
        assert [status for status, _ in ended] == [0, 0], ended
        output, why = "".join(text for _, text in ended), "SLURM_PROCID is set"
    for rank in (0, 1):
        assert f"rank {rank} of 2: gloo ({why})" in output
