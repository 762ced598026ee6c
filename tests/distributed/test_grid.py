"""A grid of four real processes: collectives along each axis, refusals, and a worker that dies."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, Permute, ReduceScatter
from grace.errors import ConfigurationError, TransportError
from grace.grid import Grid
from grace.run.simulate import answers
from grace.transports.alone import Alone
from grace.transports.grid import GridTransport
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.processes import fork
from tests.patience import PATIENCE

GRID = Grid({"machines": 2, "machine": 2})


def grid_of_gloo(grid: Grid = GRID) -> GridTransport:
    whole = TorchDistributed.of_same_ranks()
    lines = {axis: TorchDistributed.among(grid.line(whole.rank, axis)) for axis in grid.sizes}
    return GridTransport(whole, grid, lines)


def ops_of(rank: int, axis: str) -> list[Collective]:
    x, rows = torch.arange(6.0).view(2, 3) + 10 * rank, torch.arange(8.0).view(2, 4) * (rank + 1)
    if not axis:
        return [AllReduce(x, "sum"), AllGather(x), Broadcast(x, 3)]
    return [
        AllReduce(x, "sum", axis=axis), AllReduce(x, axis=axis), AllGather(x, axis=axis), AllToAll(rows, axis=axis),
        ReduceScatter(rows, "sum", axis=axis), Broadcast(x, 1, axis=axis), Permute(x, ((0, 1),), axis=axis),
    ]  # fmt: skip


def as_simulated(rank: int, world: int) -> str:
    transport = grid_of_gloo()
    assert transport.all_gather_text(f"rank {rank}", seconds=60.0) == [f"rank {r}" for r in range(world)]
    for axis in ("", "machine", "machines", "machine"):
        everyone = [ops_of(r, axis) for r in range(world)]
        for i, op in enumerate(everyone[rank]):
            assert torch.equal(transport.run(op), answers([ops[i] for ops in everyone], GRID)[rank]), op
    assert transport.all_gather_text("again", seconds=60.0) == ["again"] * world
    with pytest.raises(TransportError, match="legal axes: 'machines', 'machine'; nothing was sent"):
        transport.run(AllReduce(torch.ones(1), axis="rack"))
    with pytest.raises(TransportError, match="first dimension must be the number of workers, 2"):
        transport.run(AllToAll(torch.ones(4, 1), axis="machine"))
    transport.close()
    transport.close()
    with pytest.raises(
        TransportError, match=f"along the axis 'machine', between ranks {'0, 1' if rank < 2 else '2, 3'}"
    ):
        transport.run(AllReduce(torch.ones(1), axis="machine"))
    return transport.name


def test_collectives_along_each_axis_as_simulated(pools: Callable[[str, int], Any]) -> None:
    assert pools("gloo", 4).run(as_simulated) == ["gloo, 2 x 2"] * 4


def test_transports_that_do_not_fit_the_grid_are_refused_and_closed() -> None:
    whole, line = Alone(), Alone()
    with pytest.raises(ConfigurationError, match="puts rank 0 of 2"):
        GridTransport(whole, Grid({"machine": 2}), {"machine": line})
    for part in (whole, line):
        with pytest.raises(TransportError, match="closed"):
            part.all_gather_text("", seconds=1.0)


class Stubborn(Alone):
    """Cannot be closed in peace."""

    def close(self, error: BaseException | None = None) -> None:
        super().close(error)
        raise KeyError("no")


def test_all_parts_are_closed_whatever_one_of_them_raises() -> None:
    whole, first, last = Stubborn(), Stubborn(), Alone()
    transport = GridTransport(whole, Grid({"a": 1, "b": 1}), {"a": first, "b": last})
    assert torch.equal(transport.run(AllReduce(torch.ones(2), axis="a")), torch.ones(2))
    with pytest.raises(KeyError):
        transport.close()
    for part in (whole, first, last):
        with pytest.raises(TransportError, match="closed"):
            part.all_gather_text("", seconds=1.0)


KILLED = textwrap.dedent(
    """
    import datetime, os, signal, sys
    import torch, torch.distributed as dist
    from grace.collectives import AllReduce
    from grace.errors import TransportError
    from grace.run.drive import drive
    from tests.distributed.test_grid import grid_of_gloo
    from tests.patience import PATIENCE

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=PATIENCE))
    transport = grid_of_gloo()
    transport.all_gather_text("", seconds=PATIENCE)
    transport.connect()

    def steps():
        for step in range(10_000):
            if step == 3 and transport.rank == int(sys.argv[1]):
                os.kill(os.getpid(), signal.SIGKILL)
            yield AllReduce(torch.ones(100), axis="machine")
            yield AllReduce(torch.ones(100), axis="machines")

    try:
        drive(steps(), transport)
    except TransportError as error:
        print(f"heard: {error}", flush=True)
        transport.close(error)
    os._exit(0)
    """
)


@pytest.mark.parametrize("victim", [0, 3])
def test_when_a_worker_is_killed_all_others_hear_along_which_axis(tmp_path: Path, victim: int) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    start = time.monotonic()
    ended = fork(script, str(victim), workers=4)
    assert time.monotonic() - start < PATIENCE / 2, "they heard by a deadline only"
    for rank, (status, output) in enumerate(ended):
        if rank == victim:
            assert status == -9
        else:
            assert re.search(r"heard: along the axis 'machines?', between ranks \d, \d \(gloo\)", output), output
