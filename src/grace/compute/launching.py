"""Launches Triton kernels: what their arguments have in common, and which wires lie evenly in memory.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row; W wires of w bytes for each row.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace.errors import InputError, PayloadError
from grace.flags.finite import Flag, flag
from grace.flags.refusals import refuse_unless

TILE = 1024  # numbers of a program, where blocks do not ask for more
MOST_PER_BLOCK = 4096  # numbers of a block that one program holds at a time
MOST_PROGRAMS, MOST_ROWS = 2**31 - 1, 65_535  # of a grid, on its first axis and on each other one
# No fused multiply-add: the bits are those of the CPU.
OPTIONS = {"enable_fp_fusion": False}
READ = (torch.float32, torch.float16, torch.bfloat16)  # what kernels read without a float32 copy


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Runs ``kernel`` on the device of its first tensor; a grid without programs runs nothing. A bfloat16 comes as int16. For
    None, which the kernel does not look at, it gets its first tensor: compilers before 3.7 cannot pass a None on.

    Raises:
        InputError: more programs than CUDA can start: 2^31 - 1 on the first axis, 65,535 on another.
    """
    if 0 in grid:
        return
    if grid[0] > MOST_PROGRAMS or (len(grid) > 1 and max(grid[1:]) > MOST_ROWS):
        raise InputError(
            f"kernels: {getattr(kernel, '__name__', kernel)} would need a grid of {' x '.join(map(str, grid))} programs; CUDA "
            f"has at most {MOST_PROGRAMS} x {MOST_ROWS} x {MOST_ROWS}: hand over fewer rows, or shorter tensors, at a time"
        )
    first: Tensor | None = None
    given = list(args)  # one pass, without a generator: this is done for each launch of each bucket
    for i, arg in enumerate(args):
        if isinstance(arg, Tensor):
            if arg.dtype is torch.bfloat16:
                given[i] = arg = arg.view(torch.int16)
            if first is None:
                first = arg
    assert first is not None
    given = [first if arg is None else arg for arg in given]
    with _on(first):
        _compiled.add(id(kernel[grid](*given, **constants, **OPTIONS)))  # what Triton keeps, with its binary


_compiled: set[int] = set()  # of each kernel one for each kind of arguments


def count_compiled() -> int:
    """Number of kernels that this process has compiled, or loaded from a cache, when they were launched for the first time,
    and of graphs that ``torch.compile`` has made: in a step in which it grows the host has waited for a compiler.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return len(_compiled) + (0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"]))


def _on(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Context for launching a kernel for this tensor: its device, which most often is the current one already."""
    if not x.is_cuda:
        return _quiet()
    return _HERE if x.get_device() == torch.cuda.current_device() else torch.cuda.device(x.device)


_HERE = contextlib.nullcontext()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """For Triton's interpreter: numpy warns where 32-bit words wrap around and where what is not finite is cast."""
    with np.errstate(all="ignore"):
        yield


def power_of_two(n: int) -> int:
    """The least power of two that is at least n, n >= 1."""
    return 1 << (n - 1).bit_length()


def signed(word: int) -> int:
    """A 32-bit word as the int32 that a kernel takes."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


def check_rows(**tensors: Tensor | None) -> None:
    """Checks tensors. ``rows`` to which a ``memory`` is added may be narrower than float32: they are read as they are.

    Raises:
        InputError: a tensor is not float32, contiguous and of the first one's shape; names it.
    """
    shape = None
    for name, x in tensors.items():
        if x is None:
            continue
        shape = x.shape if shape is None else shape
        legal = READ if name == "rows" and tensors.get("memory") is not None else (torch.float32,)
        if x.dtype not in legal or not x.is_contiguous() or x.shape != shape:
            raise InputError(
                f"kernels: {name} must be contiguous float32 {list(shape)}, got {x.dtype} {list(x.shape)}"
                f"{'' if x.is_contiguous() else ', not contiguous'}; use .float().contiguous()"
            )


class Marks:
    """Marks that the programs of a kernel leave.

    clean: bool ``[count]`` on the device, each set until a program writes a 0; by default they are made.
    """

    def __init__(self, like: Tensor, count: int = 1, clean: Tensor | None = None):
        self.clean = torch.ones(count, dtype=torch.bool, device=like.device) if clean is None else clean

    def unset(self, which: int = 0) -> Flag:
        """True if no program has left this mark."""
        return flag(self.clean[which])

    def refuse(self, which: int, problem: Callable[[], Exception]) -> None:
        """Refuses what was received if a program has left this mark."""
        refuse_unless(self.clean[which], problem)


@dataclass(frozen=True)
class Wires:
    """Wires that lie evenly in memory: wire number j begins ``j stride`` bytes behind ``first [b, w]``, whose rows are
    ``row`` bytes apart.
    """

    first: Tensor
    count: int
    stride: int
    row: int


def even_runs(received: Sequence[Tensor], rows: int, width: int) -> Iterator[Wires]:
    """The wires uint8 ``[b, w]``, in their order, in runs that lie evenly in memory: the answer of a collective is one run.

    Raises:
        InputError: another dtype, or bytes that do not lie side by side.
        PayloadError: another number of rows or bytes.
    """
    for wire in received:
        if wire.shape != (rows, width):
            kind = "truncated payload" if wire.ndim == 2 and wire.shape[1] < width else "payload"
            raise PayloadError(f"{kind}: {list(wire.shape)} bytes, but its fields end at {[rows, width]}")
        if wire.dtype is not torch.uint8 or (width > 1 and wire.stride(1) != 1):
            raise InputError(f"kernels: a wire must be uint8 with bytes side by side, got {wire.dtype} {wire.stride()}")
    start = 0
    while start < len(received):
        first = received[start]
        stop, stride = start + 1, 0
        while stop < len(received):
            step = received[stop].data_ptr() - received[stop - 1].data_ptr()
            if received[stop].stride(0) != first.stride(0) or (stop - start > 1 and step != stride):
                break
            if received[stop].untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
                break
            stride, stop = step, stop + 1
        yield Wires(first, stop - start, stride, first.stride(0))
        start = stop
