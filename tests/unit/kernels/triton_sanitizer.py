"""Sanitizer for what a GPU does not forgive, and Triton's interpreter does not notice: addresses outside of all tensors, or
not aligned to what is read there, and results that depend on which program, or which thread of a program, comes first. What
the memcheck and the racecheck of NVIDIA's Compute Sanitizer look for, in kernels that the interpreter runs.

Within a program, two threads are in order only where a barrier is between them, or a number for which all threads wait: a sum
of a whole tensor, its maximum. A thread is taken for the place of a number in its tensor: what one place writes and another
one reads, or what has another shape, may be two threads. All of them read a tensor that is shorter than there are threads.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

THREADS = 128  # of a program, unless a kernel asks for others
READ, WRITE, ATOMIC = range(3)
_EVERY = -1  # the thread of what all threads read
_LARGEST = np.iinfo(np.int64).max


class _Storages(TorchDispatchMode):
    """Knows where the memory is of all tensors that operations have seen."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, tuple[int, StorageWeakRef]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        self.note((args, kwargs, answer))
        return answer

    def note(self, tree: Any) -> None:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor) and leaf.is_cpu:
                storage = leaf.untyped_storage()
                self.known[storage.data_ptr()] = storage.nbytes(), StorageWeakRef(storage)

    def spans(self) -> tuple[Any, Any]:
        """Begins and ends of memory that is in use, ascending, uint64."""
        self.known = {at: (size, alive) for at, (size, alive) in self.known.items() if not alive.expired()}
        begins = np.array(sorted(self.known), np.uint64)
        ends = begins + np.array([self.known[int(at)][0] for at in begins], np.uint64)
        return begins, np.maximum.accumulate(ends) if len(ends) else ends


@dataclass
class _Access:
    """An operation of a program: what it does where."""

    kind: int
    addresses: Any  # uint64 [m]
    size: int  # bytes at each
    program: int
    epoch: int  # how many barriers came before
    threads: Any  # int64 [m]
    values: Any  # uint8 [m, size] of what is written
    line: str


@dataclass
class _Launch:
    """A launch of a kernel."""

    kernel: str
    begins: Any
    ends: Any
    races: bool
    grid: tuple[int, ...] = ()
    program: int = -1
    epoch: int = 0
    accesses: list[_Access] = field(default_factory=list)
    faults: dict[str, None] = field(default_factory=dict)  # in their order

    def fault(self, text: str) -> None:
        self.faults[f"{self.kernel}: {text}"] = None

    def add(self, builder: Any, kind: int, pointers: Any, mask: Any, value: Any = None) -> None:
        shape = np.shape(pointers.data)
        inside = np.ones(shape, bool) if mask is None else np.broadcast_to(mask.data, shape).astype(bool)
        lanes = np.flatnonzero(inside)
        addresses = np.ravel(pointers.data)[lanes].astype(np.uint64)
        if not len(lanes):
            return
        size = np.dtype(
            importlib.import_module("triton.runtime.interpreter")._get_np_dtype(pointers.dtype.scalar.element_ty)
        ).itemsize
        line = _line()
        if np.any(addresses % size):
            self.fault(f"not aligned to {size} bytes: {line}")
        span = np.searchsorted(self.begins, addresses, side="right") - 1
        outside = (span < 0) | (addresses + np.uint64(size) > self.ends[span])
        if outside.any():
            self.fault(f"{outside.sum()} of {len(lanes)} addresses outside of all tensors: {line}")
            raise IndexError(line)  # what is there would be read, or overwritten
        if not self.races:
            return
        if builder.grid_idx != self.grid:
            self.grid, self.program, self.epoch = builder.grid_idx, self.program + 1, 0
        threads = lanes + (inside.size << 32)
        if kind == READ and inside.size < THREADS:
            threads = np.full(len(lanes), _EVERY)
        values = np.zeros((len(lanes), size), np.uint8)
        if kind == WRITE:
            values[:] = np.ravel(np.broadcast_to(value.data, shape))[lanes, None].view(np.uint8)
        self.accesses.append(_Access(kind, addresses, size, self.program, self.epoch, threads, values, line))

    def find_races(self) -> None:
        if all(access.kind == READ for access in self.accesses):
            return

        def join(part: Any) -> Any:
            """Joins each byte of all accesses."""
            return np.concatenate([np.repeat(part(k, access), access.size) for k, access in enumerate(self.accesses)])

        def same(number: Any) -> Any:
            return lambda k, access: np.full(len(access.addresses), number(k, access))

        address = np.concatenate([
            (access.addresses[:, None] + np.arange(access.size, dtype=np.uint64)).ravel() for access in self.accesses
        ])  # fmt: skip
        value = np.concatenate([access.values.ravel() for access in self.accesses]).astype(np.int64)
        kind = join(same(lambda _k, access: access.kind))
        written = np.isin(address, address[kind != READ])
        address, value, kind = address[written], value[written], kind[written]
        which = join(same(lambda k, _access: k))[written]
        program = join(same(lambda _k, access: access.program))[written]
        epoch = join(same(lambda _k, access: access.epoch))[written]
        thread = join(lambda _k, access: access.threads)[written]
        self._compare([address], program, kind, value, which, "programs")
        self._compare([address, program, epoch], thread, kind, value, which, "threads")

    def _compare(self, keys: list[Any], party: Any, kind: Any, value: Any, which: Any, parties: str) -> None:
        """Faults where, of what has the same keys, parties differ, one of which writes: other than they all do."""
        order = np.lexsort(keys)
        changes = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
        starts = np.concatenate(([0], np.flatnonzero(changes) + 1))

        def least(x: Any) -> Any:
            return np.minimum.reduceat(x[order], starts)

        def most(x: Any) -> Any:
            return np.maximum.reduceat(x[order], starts)

        reads, writes, atomics = (most(np.equal(kind, k)) > 0 for k in (READ, WRITE, ATOMIC))
        written = kind == WRITE
        differ = least(np.where(written, value, _LARGEST)) != most(np.where(written, value, -1))
        bad = (least(party) != most(party)) & ((writes & (reads | atomics | differ)) | (atomics & reads))
        ends = np.append(starts[1:], len(order))
        for begin, end in zip(starts[bad], ends[bad], strict=True):
            lines = sorted({self.accesses[k].line for k in which[order[begin:end]]})
            self.fault(f"{parties} in no order: {'; '.join(lines)}")


def _line() -> str:
    """Location of a kernel: the last three calls, without those of the interpreter."""
    frame, lines = sys._getframe(2), list[str]()
    while frame is not None and len(lines) < 3:
        file = Path(frame.f_code.co_filename)
        if "triton" not in file.parts and file != Path(__file__):
            lines.append(f"{file.parent.name}/{file.name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return " of ".join(lines)


@contextmanager
def sanitize(races: bool = True) -> Iterator[list[str]]:
    """Watches all launches in the interpreter. The list says at the end what is wrong with them; without ``races`` only where
    they read and write.

    Raises:
        triton.runtime.errors.InterpreterError: an address outside of all tensors, which the list names, too.
    """
    module: Any = importlib.import_module("triton.runtime.interpreter")
    builder, executor = module.InterpreterBuilder, module.GridExecutor
    load, store, barrier = builder.create_masked_load, builder.create_masked_store, builder.create_barrier
    compare_and_swap, modify, call, reduce = (
        builder.create_atomic_cas,
        builder.create_atomic_rmw,
        executor.__call__,
        module.ReduceOps.apply,
    )
    storages, launches, faults = _Storages(), list[_Launch](), dict[str, None]()
    told: list[str] = []

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        storages.note(args)
        launches.append(_Launch(self.fn.__name__, *storages.spans(), races))
        try:
            return call(self, *args, **kwargs)
        finally:
            launch = launches.pop()
            launch.find_races()
            faults.update(launch.faults)

    def watch(kind: int, own: Any, pointer: int, mask: int | None, value: int | None = None) -> Any:
        def do(self: Any, *args: Any) -> Any:
            launches[-1].add(
                self, kind, args[pointer], None if mask is None else args[mask], None if value is None else args[value]
            )
            return own(self, *args)

        return do

    def wait(self: Any, *args: Any) -> Any:
        launches[-1].epoch += 1
        return barrier(self, *args)

    def combine(self: Any, operands: Any) -> Any:
        answer = reduce(self, operands)
        (operand, *_), (number, *_) = (x if isinstance(x, tuple) else (x,) for x in (operands, answer))
        launches[-1].epoch += not number.shape and operand.handle.data.size >= THREADS
        return answer

    with (
        mock.patch.object(builder, "create_masked_load", watch(READ, load, 0, 1)),
        mock.patch.object(builder, "create_masked_store", watch(WRITE, store, 0, 2, 1)),
        mock.patch.object(builder, "create_atomic_cas", watch(ATOMIC, compare_and_swap, 0, None)),
        mock.patch.object(builder, "create_atomic_rmw", watch(ATOMIC, modify, 1, 3)),
        mock.patch.object(builder, "create_barrier", wait),
        mock.patch.object(module.ReduceOps, "apply", combine),
        mock.patch.object(executor, "__call__", run),
        storages,
    ):
        try:
            yield told
        finally:
            told += faults
