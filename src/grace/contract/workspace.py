"""Scratch memory that is reused from step to step: in the steady state an exchange allocates nothing large."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.compute import resources
from grace.flags.capturing import capturing
from grace.kernels.tensor_list import Rooms

_ALIGN = 64
_KEPT = 4096
_WAYS = 4  # how many of what is kept under one key


class Workspace:
    """An arena. ``take`` hands out tensors that are valid until ``reset``; after the first steps one block serves all.

    kept: what its users know of the memory that they take at every step, such as where the fields of a message lie; emptied
        when the memory moves, or when it holds more than any model needs. The key of what changes during an exchange has the
        tensors' names: others of the same sizes may be under way.
    holds: whether ``reset`` leaves alone what was swapped out, until ``release``: the step may still be undone.

    Args:
        mark: marks the end of what was submitted to the current stream of a device, and says later whether that is done; by
            default an event of CUDA's.
    """

    def __init__(self, mark: Callable[[torch.device], Callable[[], bool]] | None = None) -> None:
        self._mark = mark or _mark
        self._dropped: list[tuple[Callable[[], bool], Any]] = []
        self.kept: dict[Hashable, Any] = {}
        self._blocks: list[Tensor] = []  # uint8, in the order of their allocation; the last one is being filled
        self._views: dict[
            tuple[int, tuple[int, ...], torch.dtype], Tensor
        ] = {}  # of the last block, by their first byte
        self._used = 0  # bytes of the last block
        self._taken = 0  # bytes since the last reset
        self._free: dict[tuple[tuple[int, ...], torch.dtype, torch.device], deque[Tensor]] = {}
        self._old: list[Tensor] = []  # swapped out since the last reset
        self.holds = False

    def take(self, shape: int | tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialized tensor."""
        shape = (shape,) if isinstance(shape, int) else shape
        size = math.prod(shape) * dtype.itemsize
        need = -(-size // _ALIGN) * _ALIGN
        block = self._blocks[-1] if self._blocks else None
        if block is None or block.device != device or self._used + need > block.numel():
            block = _allocate(max(need, 1 << 12), device)
            self._blocks.append(block)
            self._views.clear()
            self._used = 0
        out = self._views.get((self._used, shape, dtype))
        if out is None:
            out = block[self._used : self._used + size].view(dtype).view(shape)
            self._views[self._used, shape, dtype] = out
        self._used += need
        self._taken += need
        return out

    def reset(self) -> None:
        """Frees everything taken. Several blocks become one that is large enough for all of them. What is dropped lives until
        the device is done with it: its allocator would give it away at once on the stream that it was allocated on, which need
        not be the one that still reads it.
        """
        if len(self._blocks) > 1 or len(self.kept) > _KEPT:
            if self._blocks:
                self._dropped.append((self._mark(self._blocks[-1].device), (self._blocks, self.kept.copy())))
            self.kept.clear()
        self._dropped = [(done, what) for done, what in self._dropped if not done()]
        if len(self._blocks) > 1 or len(self._views) > _KEPT:
            self._views.clear()
        if len(self._blocks) > 1:
            self._blocks = [_allocate(self._taken, self._blocks[-1].device)]
        self._used = self._taken = 0
        if not self.holds:
            self.release()

    def release(self, kept: Iterable[Tensor] = ()) -> None:
        """Frees what was swapped out, for ``borrow_successor``; but not what shares its memory with one of ``kept``, of any
        shapes, which is left to whoever has it.
        """
        places = {x.untyped_storage().data_ptr() for x in kept} if self._old else ()
        for old in self._old:
            if not places or old.untyped_storage().data_ptr() not in places:
                self._free.setdefault((tuple(old.shape), old.dtype, old.device), deque()).append(old)
        self._old.clear()

    def find(self, key: Hashable, way: Hashable) -> Any:
        """The value kept under this key for this way in which its tensors may go; None if there is none."""
        return self.kept.get(key, {}).get(way)

    def keep(self, key: Hashable, way: Hashable, what: Any) -> None:
        """Keeps this under the key, where only the latest ways stay: if each of T tensors may go either of two ways, there are
        2^T.
        """
        ways = self.kept.get(key, {})
        ways.pop(way, None)
        ways[way] = what
        if len(ways) > _WAYS:
            del ways[next(iter(ways))]
        self.kept[key] = ways

    def borrow_successor(self, like: Tensor) -> Tensor:
        """An uninitialized tensor like this one that stays valid: for a new state, in exchange for the old one. It is the one
        that has been free for the longest: so states that wander through the tensors of a shape keep their order, and are soon
        where they were before, of which tables of addresses are kept.
        """
        free = self._free.get((tuple(like.shape), like.dtype, like.device))
        return free.popleft() if free else torch.empty_like(like)

    def give_back(self, old: Tensor) -> None:
        """Gives back a tensor, of any shape, that nobody needs once the exchange succeeds; after ``reset``,
        ``borrow_successor`` may return it.
        """
        self._old.append(old)

    def forget(self) -> None:
        """Called when the exchange has failed: keeps what was swapped out, which is still needed."""
        self._old.clear()


def take_rooms(
    workspace: Workspace, sizes: Sequence[int], device: torch.device, dtype: torch.dtype = torch.float32
) -> Rooms:
    """Uninitialized ``[1, n]`` for each of these n, which begin at multiples of 16 bytes: the same where they were before."""
    return take_flat(workspace, sizes, device, dtype)[1]


def take_flat(
    workspace: Workspace, sizes: Sequence[int], device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Rooms]:
    """(all of them with what lies between them ``[N]``, the rooms of :func:`take_rooms`)"""
    padded = padded_sizes(sizes, dtype)
    flat = workspace.take(sum(padded), dtype, device)
    key = (take_flat, flat.data_ptr(), tuple(sizes))
    known: tuple[Tensor, Rooms] | None = workspace.kept.get(key)
    if known is None or known[0] is not flat:
        rooms = zip(flat.split_with_sizes(padded), sizes, strict=True)
        known = workspace.kept[key] = flat, Rooms([room[None, :n] for room, n in rooms])
    return known


def padded_sizes(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> list[int]:
    """The size in numbers of each room of :func:`take_flat`."""
    step = 16 // dtype.itemsize
    return [-(-n // step) * step for n in sizes]


def _allocate(size: int, device: torch.device) -> Tensor:
    block = torch.empty(size, dtype=torch.uint8, device=device)
    if device.type == "cpu":
        resources.ask_for_large_pages(block)
    return block


def _mark(device: torch.device) -> Callable[[], bool]:
    if device.type != "cuda" or capturing():
        return lambda: True
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event.query
