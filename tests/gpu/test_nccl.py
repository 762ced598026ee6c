"""A transport over NCCL gives what the simulator gives, with a rank for each GPU: the table in the page of GPUs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

from grace.transports.refusing import MOVABLE
from tests.distributed.test_transport import ops_of
from tests.gpu.here import HERE
from tests.gpu.nccl_worker import fits
from tests.patience import PATIENCE


def launch(kind: str, world: int) -> int:
    """Number of collectives that so many ranks compared."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    done = subprocess.run(
        [*command, "-m", "tests.gpu.nccl_worker", kind], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (count,) = re.findall(r"compared (\d+)", done.stdout)
    return int(count)


def expected(world: int) -> int:
    dtypes = [dtype for dtype in MOVABLE if dtype is not torch.bool]
    return 1 + sum(fits(op, world) for dtype in dtypes for op in ops_of(0, world, dtype))


@pytest.mark.skipif(not HERE, reason="needs a CUDA device")
@pytest.mark.parametrize("world", [1, 2])
def test_every_collective_in_every_dtype_as_simulated(world: int) -> None:
    if torch.cuda.device_count() < world:
        pytest.skip(f"needs {world} CUDA devices: NCCL refuses two ranks on one")
    assert launch("cuda", world) == expected(world)


def test_the_same_program_over_gloo() -> None:
    """So that what a GPU runs has run before."""
    assert launch("cpu", 2) == expected(2)
