"""Messages to ranks at the start, however they were launched."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.distributed.processes import fork

SCRIPT = """
import sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import grace

grace.init_process_group()
torch.set_num_threads(1)
rank = dist.get_rank()
torch.manual_seed(0)
net = DistributedDataParallel(torch.nn.Linear(64, 64))
time.sleep(0.3 * rank)  # rank 0, which keeps the store, is the first to come and the first to leave
start = time.monotonic()
try:
    grace.attach(net, "topk" if rank == 0 or sys.argv[1] == "alike" else "qsgd")
    net(torch.ones(2, 64)).sum().backward()
except grace.GraceError as error:
    print(f"{type(error).__name__} after {time.monotonic() - start:.1f} s: {error}", flush=True)
    sys.exit(3)
print("trained", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def test_ranks_that_differ_hear_in_what_also_where_one_of_them_keeps_the_store(script: Path) -> None:
    for status, output in fork(script, "differ", workers=3):
        assert status == 3, output
        assert "FingerprintMismatch after" in output
        assert "method: topk on ranks [0], qsgd:bits=4 on ranks [1, 2]" in output


def test_launchers_that_count_restarts_differently(script: Path) -> None:
    """torchrun counts restarts for each launcher: after one of two has started its workers again, the counts differ."""
    env = tuple(
        {"TORCHELASTIC_RESTART_COUNT": str(1 - rank), "TORCHELASTIC_USE_AGENT_STORE": "False"} for rank in (0, 1)
    )
    for status, output in fork(script, "alike", workers=2, env=env):
        assert status == 0, output
        assert "trained" in output
