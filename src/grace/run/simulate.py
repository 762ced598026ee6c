"""All workers in one process, in lock step, one collective at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, TypeVar

import torch
from torch import Tensor

from grace.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Exchange,
    Permute,
    ReduceOp,
    ReduceScatter,
    signature,
)
from grace.errors import ConfigurationError, round_mismatch
from grace.grid import Grid

T = TypeVar("T")


def simulate(workers: Sequence[Exchange[T]], grid: Grid | None = None) -> list[T]:
    """Runs the exchanges of ranks 0, 1, ... against each other; returns their results.

    Args:
        workers: one exchange per rank.
        grid: how the ranks lie, for collectives along an axis.

    Raises:
        RoundMismatch: ranks ask for different collectives in one round, or only some of them have finished.
        ConfigurationError: a grid of another number of ranks, or a collective along an axis that there is not.
    """
    if grid is not None and grid.world != len(workers):
        raise ConfigurationError(f"{grid} is of {grid.world} ranks, and there are {len(workers)} workers")
    done: dict[int, T] = {}
    asked: dict[int, Collective] = {}

    def advance(inbox: Mapping[int, Tensor | None]) -> None:
        errors: list[Exception] = []
        for rank, message in inbox.items():
            asked.pop(rank, None)
            worker = workers[rank]
            try:
                asked[rank] = next(worker) if message is None else worker.send(message)
            except StopIteration as stop:
                done[rank] = stop.value
            except Exception as error:  # the others still get their answers, as they would in processes of their own
                errors.append(error)
        if errors:
            fail(errors[0])

    def fail(error: Exception) -> NoReturn:
        for worker in workers:
            worker.close()
        raise error

    advance(dict.fromkeys(range(len(workers))))
    while asked:
        meeting = next(_meetings(asked, len(workers), grid), None)
        ranks = meeting or range(len(workers))
        signatures = {rank: signature(asked[rank]) if rank in asked else "finished" for rank in ranks}
        if meeting is None or len(set(signatures.values())) > 1:
            fail(round_mismatch(signatures))
        ops = [replace(asked[rank], axis="") if asked[rank].axis else asked[rank] for rank in meeting]
        advance(dict(zip(meeting, answers(ops), strict=True)))
    return [done[rank] for rank in range(len(workers))]


def _meetings(asked: Mapping[int, Collective], world: int, grid: Grid | None) -> Iterator[Sequence[int]]:
    """The ranks of each collective for which all of its ranks have come: all ranks, or a line of the grid.

    Raises:
        ConfigurationError: one along an axis that there is not.
    """
    for axis in dict.fromkeys(op.axis for op in asked.values()):
        for line in _lines(axis, world, grid, next(op for op in asked.values() if op.axis == axis)):
            if all(rank in asked and asked[rank].axis == axis for rank in line):
                yield line


def _lines(axis: str, world: int, grid: Grid | None, op: Collective) -> Sequence[Sequence[int]]:
    if not axis:
        return [range(world)]
    if grid is None:
        raise ConfigurationError(f"{signature(op)}: the simulation needs a grid, simulate(workers, grid)")
    return grid.lines(axis)


def answers(ops: Sequence[Collective], grid: Grid | None = None) -> list[Tensor]:
    """The tensors that each rank receives when the ranks ask for ``ops``, which have one signature.

    Raises:
        ConfigurationError: they go along an axis that there is not.
    """
    first, world = ops[0], len(ops)
    if first.axis:
        if grid is None:
            raise ConfigurationError(f"{signature(first)}: the simulation needs a grid, simulate(workers, grid)")
        received: dict[int, Tensor] = {}
        for line in grid.lines(first.axis):
            received.update(zip(line, answers([replace(ops[rank], axis="") for rank in line]), strict=True))
        return [received[rank] for rank in range(world)]
    if isinstance(first, Broadcast):
        return [ops[first.root].buf.clone() for _ in ops]
    if isinstance(first, Permute):
        source = {destination: origin for origin, destination in first.pairs}
        return [ops[source[r]].buf.clone() if r in source else torch.zeros_like(ops[r].buf) for r in range(world)]
    bufs = torch.stack([op.buf for op in ops])  # [W, ...]
    if isinstance(first, AllReduce):
        return [total.clone() for total in [_reduce(bufs, first.op)] * world]
    if isinstance(first, AllGather):
        return [bufs.clone() for _ in ops]
    if isinstance(first, AllToAll):
        return list(bufs.transpose(0, 1).contiguous())
    assert isinstance(first, ReduceScatter)
    return [_reduce(bufs[:, rank], first.op) for rank in range(world)]


def _reduce(bufs: Tensor, op: ReduceOp) -> Tensor:
    """``[W, ...]`` over ranks, in their order; the mean is divided first, as real transports do."""
    if op == "max":
        return bufs.amax(0)
    total = bufs[0] * (1 / len(bufs)) if op == "mean" else bufs[0].clone()
    for buf in bufs[1:]:
        total += buf * (1 / len(bufs)) if op == "mean" else buf
    return total
