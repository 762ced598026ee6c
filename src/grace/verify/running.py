"""Runs of a method for laws, and what laws share.

Letters: W workers; xs holds one tensor per worker.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.contract.lent import Lent
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.grid import Grid
from grace.run import simulate

Runner = Callable[..., list[Any]]  # of exchanges, and of a grid where a method lies on one
TINY = 2.0**-140  # how much may be lost below the normal numbers
LR, STEPS_PER_EPOCH = 1.0, 2  # for memories that follow the learning rate, and schedules that count epochs


def run(
    method: Method[Any],
    xs: Sequence[Tensor],
    states: Sequence[Any] | None = None,
    *,
    step: int = 0,
    seed: int = 0,
    keep_rest: bool = False,
    runner: Runner = simulate,
) -> list[Exchanged[Any]]:
    """A simulated step of all workers. ``xs`` are copied, ``states`` are donated."""
    W = len(xs)
    states = [method.init(x) for x in xs] if states is None else states
    grid = find_grid([method], W)
    peers = [make_peer(rank, W, step, seed, keep_rest, grid) for rank in range(W)]
    if grid is not None:
        runner = functools.partial(runner, grid=grid)
    return runner([method.exchange(copy_tensor(x), s, p) for x, s, p in zip(xs, states, peers, strict=True)])


def make_peer(
    rank: int, world: int, step: int = 0, seed: int = 0, keep_rest: bool = False, grid: Grid | None = None
) -> Peer:
    """A peer for the tensor ``w``."""
    axes = grid.place(rank) if grid is not None else {}
    return Peer(rank, world, step, "w", seed, LR, STEPS_PER_EPOCH, Lent(keep_rest=keep_rest), axes)


def find_grid(methods: Sequence[Method[Any]], world: int) -> Grid | None:
    """Grid in which so many workers lie for these methods; None: all alike."""
    return next((Grid(sizes) for method in methods if (sizes := method.axes(world))), None)


def copy_tensor(x: Tensor) -> Tensor:
    """A copy with the same strides, where they do not overlap."""
    return x.clone(memory_format=torch.preserve_format)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """True if two tensors agree in dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


def leaves(state: Any) -> Iterator[Tensor]:
    """The tensors of a state."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple):
        for part in state:
            yield from leaves(part)


def snapshot(states: Sequence[Any]) -> list[list[Tensor]]:
    """Copies of all tensors of all states."""
    return [[leaf.clone() for leaf in leaves(state)] for state in states]


def assert_untouched(states: Sequence[Any], before: list[list[Tensor]], what: str) -> None:
    """All tensors of all states have the same bits as before."""
    for rank, (state, old) in enumerate(zip(states, before, strict=True)):
        for leaf, was in zip(leaves(state), old, strict=True):
            assert same_bits(leaf, was), f"{what}: the state of rank {rank} changed"


def clone_state(state: Any) -> Any:
    """A copy of a state with copies of its tensors."""
    if isinstance(state, Tensor):
        return state.clone()
    if isinstance(state, tuple):
        parts = [clone_state(part) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def average(xs: Sequence[Tensor]) -> Tensor:
    """The average in float64."""
    return torch.stack([x.double() for x in xs]).mean(0)


def tolerance(xs: Sequence[Tensor], n_roundings: float = 16) -> float:
    """``n_roundings`` roundings of the largest number, in the dtype of the inputs or float32, whichever is coarser."""
    eps = max(torch.finfo(xs[0].dtype).eps, torch.finfo(torch.float32).eps)
    return n_roundings * eps * max((float(x.abs().max()) for x in xs if x.numel()), default=0.0) + TINY
