"""Real processes that share memory: the same bits as over gloo and as simulated, and nothing left of those that are killed."""

from __future__ import annotations

import os
import secrets
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.run.simulator import Simulator
from grace.transports.segment import find_problem
from tests.distributed.processes import fork
from tests.distributed.test_hierarchical import SHAPES, Net, gradients

pytestmark = pytest.mark.skipif(find_problem() is not None, reason=str(find_problem()))
SPEC = "qsgd:bits=4,machine=2"


def steps(rank: int, world: int, declared: int | None, local: int | None, linux: bool) -> tuple[str, list[Tensor]]:
    """``said`` in the environment, ``local`` by an argument; where ``linux`` is false, as on a Mac."""
    with pytest.MonkeyPatch.context() as patch:
        if declared is not None:
            patch.setenv("GRACE_LOCAL_WORLD_SIZE", str(declared))
        if not linux:
            patch.setattr(sys, "platform", "darwin")
            patch.delattr(os, "memfd_create")
            patch.delattr(os, "pidfd_open")
        model, means = DistributedDataParallel(Net()), []
        handle = grace.attach(model, SPEC, local_world_size=local)
        for step in range(3):
            model.zero_grad()
            model(gradients(rank, step)).backward()
            means += [parameter.grad.clone() for parameter in model.parameters()]
        way = handle.transport
        handle.detach()
    return way, means


CASES = (
    (2, None, True, "along 'machine' shared memory"),
    (1, 2, True, "along 'machine' shared memory"),
    (1, None, True, "cannot share memory: GRACE_LOCAL_WORLD_SIZE=1"),
    (2, 1, True, "cannot share memory: local_world_size=1"),
    (None, None, False, "cannot share memory: this system has no memfd_create"),
)


def test_two_machines_of_two_have_the_bits_of_gloo_and_of_the_simulator(pools: Callable[[str, int], Any]) -> None:
    four = pools("gloo", 4)
    simulator, expected = Simulator(SPEC, 4), []
    for step in range(3):
        means = simulator.step({name: [gradients(rank, step)[name] for rank in range(4)] for name in SHAPES})
        expected += [means["a"], means["b"]]
    for *given, way in CASES:
        for transport, means in four.run(steps, *given):
            assert transport.startswith("gloo, 2 x 2, ")
            assert way in transport
            for mean, simulated in zip(means, expected, strict=True):
                assert torch.equal(mean, simulated), way


KILLED = textwrap.dedent(
    """
    import datetime, os, signal, sys
    import torch, torch.distributed as dist
    from grace.collectives import AllReduce
    from grace.errors import TransportError
    from grace.transports import joining
    from grace.transports.machine import MachineTransport
    from grace.transports.segment import Segment
    from grace.transports.torch_distributed import TorchDistributed
    from tests.patience import PATIENCE

    victims, nonce = [int(victim) for victim in sys.argv[1].split(",")], bytes.fromhex(sys.argv[2])
    joining.secrets.token_bytes = lambda _: nonce
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=PATIENCE))
    transport = MachineTransport(TorchDistributed.of_same_ranks(), slot=4096)
    transport.all_gather_text("", seconds=PATIENCE)
    assert transport.name == "shared memory", transport.why
    turn = Segment.turn

    def take(segment, asked):
        if segment._turn == 101 and transport.rank in victims:
            os.kill(os.getpid(), signal.SIGKILL)
        return turn(segment, asked)

    Segment.turn = take
    try:
        for _ in range(10):
            transport.run(AllReduce(torch.ones(30_000)))  # in 60 turns
    except TransportError as error:
        print(f"heard: {error}", flush=True)
        transport.close(error)
    os._exit(0)
    """
)


def kill(folder: Path, victims: str) -> tuple[list[int], list[str], str]:
    script, nonce = folder / "killed.py", secrets.token_hex(16)
    script.write_text(KILLED)
    ended = fork(script, victims, nonce, workers=3)
    return [status for status, _ in ended], [output for _, output in ended], nonce


def test_whoever_is_killed_in_a_collective_is_named_by_all_others(tmp_path: Path) -> None:
    statuses, outputs, _ = kill(tmp_path, "1")
    assert statuses == [0, -9, 0], outputs
    for rank in (0, 2):
        assert (
            f"heard: rank {rank}: AllReduce(mean, float32, (30000,)) failed in shared memory: rank 1 has died"
            in (outputs[rank])
        )


def test_nothing_is_left_of_ranks_that_are_all_killed(tmp_path: Path) -> None:
    before = set(Path("/dev/shm").glob("*grace*"))
    statuses, outputs, nonce = kill(tmp_path, "0,1,2")
    assert statuses == [-9] * 3, outputs
    assert nonce not in Path("/proc/net/unix").read_text(encoding="ascii", errors="replace")
    assert not set(Path("/dev/shm").glob("*grace*")) - before
