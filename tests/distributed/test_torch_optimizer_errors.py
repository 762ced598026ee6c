"""Errors of the optimizer that needs no DistributedDataParallel, and workers in processes of their own."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import grace
from grace.errors import FingerprintMismatch, GraceError, InputError, NonFiniteError
from tests.distributed.processes import Pool, fork
from tests.distributed.test_torch_optimizer import Net, assert_replicas_agree, loss_of, make
from tests.patience import PATIENCE


def too_many_passes(net: Net, optimizer: Any) -> None:
    loss_of(net, 0, 1).backward()


def dropped_by_the_optimizer(net: Net, optimizer: Any) -> None:
    optimizer.zero_grad()


def dropped_by_the_model(net: Net, optimizer: Any) -> None:
    net.zero_grad()
    optimizer.step()


def new_parameter(net: Net, optimizer: Any) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    optimizer.step()


def other_dtype(net: Net, optimizer: Any) -> None:
    optimizer.step()
    optimizer.zero_grad()
    net.double()
    nn.functional.cross_entropy(net(torch.randn(8, 40).double()), torch.zeros(8, dtype=torch.int64)).backward()
    optimizer.step()


def no_backward(net: Net, optimizer: Any) -> None:
    optimizer.step()
    optimizer.step()


def not_synchronized(net: Net, optimizer: Any) -> None:
    with optimizer.skip_synchronize():
        optimizer.step()


def not_between_steps(net: Net, optimizer: Any) -> None:
    optimizer.handle.switch("qsgd")


MISUSES = {
    too_many_passes: "more than backward_passes_per_step=1 backward passes",
    dropped_by_the_optimizer: "about to be dropped by zero_grad",
    dropped_by_the_model: "was dropped between",
    new_parameter: r"parameter of shape \(3,\) that was not there",
    other_dtype: "float64",
    no_backward: r"step\(\) without backward\(\)",
    not_synchronized: r"call optimizer.synchronize\(\) first",
    not_between_steps: "between steps",
}


def misuse(rank: int, world: int) -> None:
    """A rank does it; the others wait for that rank, and hear of it."""
    for wrong, text in MISUSES.items():
        net, optimizer = make()
        loss_of(net, rank, 0).backward()
        if rank == world - 1:
            with pytest.raises(GraceError, match=text):
                wrong(net, optimizer)
            if wrong is not_between_steps:
                optimizer.step()
            else:
                with pytest.raises(GraceError):  # again
                    optimizer.step()
        elif wrong is not_between_steps:
            optimizer.step()
        else:
            with pytest.raises(GraceError, match="has died, or has left"):
                go_on(net, optimizer)
        optimizer.handle.detach()


def go_on(net: Net, optimizer: Any) -> None:
    for step in range(1, 4):
        optimizer.step()
        optimizer.zero_grad()
        loss_of(net, 0, step).backward()


def sparse(rank: int, world: int) -> None:
    table = nn.Embedding(10, 3, sparse=True)
    optimizer: Any = grace.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.1), "none", table.named_parameters()
    )
    with pytest.raises(InputError, match=r"'weight' is sparse; .*sparse=False"):
        table(torch.tensor([1, 2])).sum().backward()
    optimizer.handle.detach()


def unscaled(rank: int, world: int) -> None:
    """A scaler's step without synchronize: whatever stage the gradients are at."""
    for passes in (1, 2):
        scaler = torch.amp.GradScaler("cpu")
        net, optimizer = make(scaler=scaler, backward_passes_per_step=passes)
        scaler.scale(loss_of(net, rank, 0)).backward()
        with pytest.raises(GraceError, match=r"call optimizer\.synchronize\(\) (first|before)"):
            scaler.step(optimizer)
        optimizer.handle.detach()


def not_finite(rank: int, world: int) -> None:
    """All raise; the next step goes on."""
    net, optimizer = make(nonfinite="error")
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(net, rank, step)
        (loss * float("nan") if step == 1 and rank == 0 else loss).backward()
        if step == 1:
            with pytest.raises(NonFiniteError):
                optimizer.step()
        else:
            optimizer.step()
    assert_replicas_agree(net, world)
    optimizer.handle.detach()


def differ(rank: int, world: int) -> None:
    for options, text in [
        (
            {"spec": f"topk:ratio=0.0{rank + 1}"},
            r"method: topk on ranks \[0\], topk:ratio=0\.02 on ranks \[1\]",
        ),
        ({"bucket_mb": rank + 1}, "bucket_mb"),
        ({"backward_passes_per_step": rank + 1}, "backward_passes_per_step"),
        ({"scaler": torch.amp.GradScaler("cpu") if rank else None}, "scaler"),
    ]:
        with pytest.raises(FingerprintMismatch, match=text):
            make(**options)
    net = Net()
    names = net.named_parameters(prefix="model" if rank else "")
    with pytest.raises(FingerprintMismatch, match="parameter"):
        grace.DistributedOptimizer(torch.optim.SGD(net.parameters()), "none", names)


@pytest.mark.parametrize("case", [sparse, unscaled, not_finite, differ], ids=lambda f: f.__name__)
def test_errors(pair: Pool, case: Callable[[int, int], None]) -> None:
    pair.run(case)


def test_misuse_on_one_rank_is_heard_by_the_others() -> None:
    pool = Pool(2)  # of its own: groups that broke leave threads of gloo behind
    try:
        pool.run(misuse)
    finally:
        pool.close()


SCRIPT = """
import datetime, os, sys, time
import torch
import grace
from grace.transports.torch_distributed import TorchDistributed

torch.set_num_threads(1)
if sys.argv[1] == "die":
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
network = grace.transport("auto")
rank = network.rank
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 40))
optimizer = grace.DistributedOptimizer(
    torch.optim.SGD(net.parameters(), lr=0.1), "topk", net.named_parameters(), transport=network, bucket_mb=0.01)
try:
    for step in range(4):
        if step == 2 and rank == 1 and sys.argv[1] == "die":
            os._exit(17)
        optimizer.zero_grad()
        net(torch.full((2, 64), rank + 1.0)).square().sum().backward()
        optimizer.step()
except BaseException as error:
    print(f"rank {rank} step {step}: {type(error).__name__}: {error}", flush=True)
    sys.exit(5)
total = float(net[0].weight.detach().double().sum())
print(f"rank {rank} of {network.world}, {type(network).__name__}: {total:.17g}", flush=True)
"""


def test_when_a_worker_dies_the_others_hear_of_it(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    (status, output), (died, _), (other, too) = fork(tmp_path / "job.py", "die", workers=3)
    assert (status, died, other) == (5, 17, 5), output + too
    assert "rank 0 step 2: TransportError" in output
    assert "rank 2 step 2: TransportError" in too


# A door is the same over every transport: tests/adapters/test_same_answer.py has each over gloo.
@pytest.mark.night("mean without 1/W", "rows in another order", "maximum that adds", "another root")
def test_over_mpi_it_has_the_same_bits(tmp_path: Path) -> None:
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists() or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("needs mpi4py and mpiexec")
    (tmp_path / "job.py").write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(mpiexec), "-n", "2", sys.executable, str(tmp_path / "job.py"), "fine"],
        capture_output=True, text=True, timeout=PATIENCE, env=environment, check=True,
    )  # fmt: skip
    by_mpi = set(re.findall(r"rank (\d) of 2, MPITransport: ([0-9.e+-]+)", done.stdout))
    by_gloo = set(re.findall(r"rank (\d) of 2, TorchDistributed: ([0-9.e+-]+)", "".join(
        output for _, output in fork(tmp_path / "job.py", "fine", workers=2)
    )))  # fmt: skip
    assert len(by_mpi) == 2
    assert by_mpi == by_gloo
    assert len({total for _, total in by_mpi}) == 1, "replicas differ"
