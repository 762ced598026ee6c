"""A worker of a model under fully_shard is killed at some moment: no other hangs."""

from __future__ import annotations

import signal
import textwrap
import time
from pathlib import Path

import pytest

from tests.distributed.processes import fork
from tests.distributed.sharded_models import pytestmark
from tests.patience import PATIENCE

__all__ = ["pytestmark"]

KILLED = textwrap.dedent(
    """
    import datetime, os, random, signal, sys, threading, time
    import torch, torch.distributed as dist
    import grace
    from grace.errors import GraceError
    from tests.distributed.sharded_models import make, train
    from tests.patience import PATIENCE

    kind, victim, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=PATIENCE))
    net = make(kind)
    handle = grace.attach(net, "topk:ratio=0.1")
    train(net, 2)
    dist.barrier()
    if dist.get_rank() == victim:
        threading.Timer(random.Random(seed).uniform(0.0, 0.2), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    try:
        train(net, 100_000)
    except (GraceError, RuntimeError) as error:
        print(f"heard: {type(error).__name__} {error}", flush=True)
    os._exit(0)
    """
)


def kill_one(tmp_path: Path, kind: str, victim: int, seed: int) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    start = time.monotonic()
    ended = fork(script, kind, str(victim), str(seed), workers=4)
    assert time.monotonic() - start < PATIENCE / 2, "they heard by a deadline only"
    for rank, (status, output) in enumerate(ended):
        assert status == (-signal.SIGKILL if rank == victim else 0), output
        assert rank == victim or "heard:" in output, f"rank {rank} said nothing: {output}"


@pytest.mark.parametrize(("kind", "victim"), [("fsdp", 0), ("hsdp", 3)])
def test_when_a_worker_is_killed_no_other_hangs(tmp_path: Path, kind: str, victim: int) -> None:
    """Catches "a killed rank that nobody hears of"."""
    kill_one(tmp_path, kind, victim, seed=0)


@pytest.mark.night("a killed rank that nobody hears of")
@pytest.mark.parametrize("seed", range(50))
def test_whenever_a_worker_is_killed_no_other_hangs(tmp_path: Path, seed: int) -> None:
    kill_one(tmp_path, ("fsdp", "hsdp")[seed % 2], seed // 2 % 4, seed)
