"""``torchrun --nnodes 1:2``: one of two agents is killed with its worker, and comes back; nothing of what is owed is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.distributed.processes import ENVIRONMENT, free_port
from tests.patience import PATIENCE


def start(folder: Path, port: int, name: str, host: bool) -> subprocess.Popen[bytes]:
    conf = f"last_call_timeout=2,join_timeout=120,keep_alive_interval=1,keep_alive_max_attempt=4,is_host={int(host)}"
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [
                sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=9",
                "--rdzv-backend=c10d", "--rdzv-id=grace", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf={conf}",
                "-m", "tests.distributed.torchrun_worker", str(folder),
            ],
            # a store of its own for each attempt: otherwise the agents', which one of them may keep who has died
            env={**ENVIRONMENT, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "AGENT": name}, stdout=log, stderr=log,
        )  # fmt: skip


def wait_for(folder: Path, worlds: list[int]) -> None:
    """Until there is a checkpoint of workers that have been so many."""
    until = time.monotonic() + PATIENCE
    while True:
        for place in folder.glob("*/.metadata"):
            if json.loads((folder / f"{place.parent.name}.json").read_text())["worlds"] == worlds:
                return
        output = "\n".join(path.read_text()[-3000:] for path in folder.glob("*.log"))
        assert time.monotonic() < until, f"no checkpoint of {worlds} workers within {PATIENCE:.0f} s:\n{output}"
        time.sleep(0.1)


@pytest.mark.night("a checkpoint of sums")
def test_an_agent_that_is_killed_and_comes_back_changes_nothing_of_what_is_owed(tmp_path: Path) -> None:
    port = free_port()
    agents = [start(tmp_path, port, "first", host=True)]
    try:
        time.sleep(1)
        agents.append(start(tmp_path, port, "second", host=False))
        wait_for(tmp_path, [2])
        agents[1].kill()  # first, so that it starts no other worker
        os.kill(int((tmp_path / "pid-second").read_text()), signal.SIGKILL)
        wait_for(tmp_path, [2, 1])
        agents.append(start(tmp_path, port, "second", host=False))
        assert [agents[place].wait(PATIENCE) for place in (0, 2)] == [0, 0], (tmp_path / "first.log").read_text()[
            -3000:
        ]
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.terminate()  # it ends its worker, too
                agent.wait(60)
    ended = json.loads((tmp_path / "ended.json").read_text())
    assert ended["worlds"] == [2, 1, 2]
    assert ended["owed"] > 1
    assert ended["off"] < 1e-4, ended
