"""Kernels for both the rows of one tensor and the tensors of a bucket: each is written, and launched, once for both.

A family's kernel begins with ``encoder_at`` or ``adder_at`` (``tensor_list/triton.py``), which say what its program handles;
``MANY`` is whether that is found in a table. On the host a :class:`Rows` or a :class:`Tensors` launches it, and says what
became of it.

Encoders take ``(table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block, ...)``, and what adds up takes
``(table, programs, wires, out, marks, n, W, stride, row_stride, block, weight, ...)``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from grace.compute.launching import TILE, Marks, check_rows, even_runs, launch, signed
from grace.flags.capturing import step_word
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count, fits_tile
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream


class Rows:
    """The rows ``[b, n]`` of one tensor, and what encodes them.

    Args:
        rows, memory, rest: as operations take them. width: of a row's wire. rng: of its random numbers.

    Raises:
        InputError: they are not contiguous, of one shape, and of a dtype that kernels read.
    """

    def __init__(self, rows: Tensor, memory: Tensor | None, rest: Tensor | None, width: int, rng: Stream | None = None):
        check_rows(rows=rows, memory=memory, rest=rest)
        self.rows, self.memory, self.rest, self.rng, self.device = rows, memory, rest, rng, rows.device
        self.wire = torch.empty(rows.shape[0], width, dtype=torch.uint8, device=rows.device)

    def reduce(self, of_rows: Callable[..., Any], of_many: Callable[..., Any], block: int, *args: Any) -> Any:
        """Reduces each block with ``of_rows(rows, memory, block, ...)``."""
        return of_rows(self.rows, self.memory, block, *args)

    def encode(
        self,
        kernel: Any,
        block: int,
        *args: Any,
        per: int = 8,
        tells_whole: bool = False,
        tile: int = TILE,
        **constants: Any,
    ) -> tuple[Tensor, Flag]:
        """Launches the kernel, with a program for ``tile`` numbers, or ``per`` of each 8: (the wires ``[b, w]``, whether all
        was finite). ``tells_whole``: also tell it, as ``WHOLE``, whether lanes of a tile begin at whole words.
        """
        (b, n), marks = self.rows.shape, Marks(self.rows)
        if tells_whole:
            constants["WHOLE"] = per == 8 and (b == 1 or n % 4 == 0)
        key = (0, 0, 0) if self.rng is None else (*self.rng.key(), step_word(self.rng.step, self.rows.device))
        launch(
            kernel, (block_count(n, tile // 8 * per), b), None, None, None, self.rows, self.memory, self.rest, self.wire,
            marks.clean, n, self.wire.shape[1], signed(key[0]), signed(key[1]), key[2], known_block(block, n, tile), *args,
            MANY=False, EVEN=are_even(b, n), HAS_MEMORY=self.memory is not None, HAS_REST=self.rest is not None, **constants,
        )  # fmt: skip
        return self.wire, marks.unset()

    def each(self, spec: Hashable, value: Callable[[int], float]) -> float:
        """A number that depends on n and the specification, for a kernel."""
        return value(self.rows.shape[1])


class Tensors:
    """The tensors of a bucket, and what encodes them.

    Args:
        message: uint8 ``[s]``, in which their wires have places. step: of their streams; None: nothing is random.
    """

    def __init__(self, message: Tensor, many: TensorList, step: int | None = None):
        self.message, self.many, self.step, self.device = message, many, step, many.device

    def reduce(self, of_rows: Callable[..., Any], of_many: Callable[..., Any], block: int, *args: Any) -> Any:
        """Reduces each block of all tensors side by side with ``of_many(many, block, ...)``."""
        return of_many(self.many, block, *args)

    def encode(
        self,
        kernel: Any,
        block: int,
        *args: Any,
        per: int = 8,
        tells_whole: bool = False,
        tile: int = TILE,
        **constants: Any,
    ) -> Tensor:
        """As :meth:`Rows.encode`: ``[T]`` bool, which tensors were finite."""
        many, marks = self.many, self.many.marks()
        if tells_whole:
            constants["WHOLE"] = per == 8 and many.whole
        heads, tiles = many.heads(many.clip(block)), many.tiles(tile // 8 * per)
        launch(
            kernel, (tiles.shape[0],), many.table, tiles, heads, many.like, None, None, self.message, marks.clean,
            None, None, None, None, step_word(self.step or 0, many.device), known_block(block, max(many.sizes), tile), *args,
            MANY=True, EVEN=many.even, HAS_MEMORY=many.memories is not None, HAS_REST=many.rests is not None, **constants,
        )  # fmt: skip
        return many.all_of(marks.clean)

    def each(self, spec: Hashable, value: Callable[[int], float]) -> Tensor:
        """Numbers that depend on n and the specification, for a kernel: one for each row, on the device."""
        return self.many.numbers(("each", type(spec), spec), lambda: [value(n) for n in self.many.sizes], torch.float32)


Job: TypeAlias = Rows | Tensors


def are_even(rows: int, n: int) -> bool:
    """True if all rows begin at a multiple of 16 numbers of their tensor."""
    return rows == 1 or n % 16 == 0


def span_of(block: int, *, whole: bool) -> int:
    """Size of a program's share in numbers; with ``whole``, of whole blocks of this size."""
    return max(TILE, block) if whole else TILE


def known_block(block: int, longest: int, tile: int = 1) -> int:
    """The size of blocks that a kernel is compiled for: one for all than which no row is longer, unless tiles hold them."""
    return block if block < longest or (block <= tile and fits_tile(block)) else 1 << 62


def add_up(
    kernel: Any, received: Sequence[Tensor], out: Tensor, width: int, block: int, weight: float, marks: int, *args: Any,
    add: bool, last: str = "", tile: int = TILE, **constants: Any,
) -> Marks:  # fmt: skip
    """Launches the kernel for ``out [b, n]`` and each run of the wires ``[b, width]``, with a program for ``tile`` numbers:
    what it has marked, of so many marks. ``last``: a constant that is false for all runs but the last one.

    Raises:
        InputError, PayloadError: as :func:`grace.compute.launching.even_runs`.
    """
    check_rows(out=out)
    (b, n), noted = out.shape, Marks(out, marks)
    if not add and not received:
        out.zero_()
    runs, wanted = list(even_runs(received, b, width)), constants.get(last)
    for run in runs:
        if last:
            constants[last] = wanted and run is runs[-1]
        launch(
            kernel, (block_count(n, tile), b), None, None, run.first, out, noted.clean, n, run.count, run.stride, run.row,
            known_block(block, n), weight, *args, MANY=False, EVEN=are_even(b, n), ADD=add, TILE=tile, **constants,
        )  # fmt: skip
        add = True
    return noted


def add_up_many(
    kernel: Any, rows: Tensor, many: TensorList, block: int, weight: float, marks: int, *args: Any, tile: int = TILE,
    **constants: Any,
) -> Tensor:  # fmt: skip
    """Launches the kernel for all tensors, of float32, and their wires in ``rows [W, s]`` uint8, with a program for ``tile``
    numbers: ``[T]`` bool, which have no mark.
    """
    noted, tiles = many.marks(marks), many.tiles(tile)
    launch(
        kernel, (tiles.shape[0],), many.table, tiles, rows, many.like, noted.clean, None, rows.shape[0], rows.stride(0), 0,
        known_block(block, max(many.sizes)), weight, *args, MANY=True, EVEN=many.even, ADD=False, TILE=tile, **constants,
    )  # fmt: skip
    return many.all_of(noted.clean)
