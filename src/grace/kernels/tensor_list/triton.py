"""Shared parts of the Triton kernels for many tensors, and the kernels that belong to no family."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, launch, power_of_two
from grace.kernels.tensor_list import TensorList
from grace.kernels.triton import load_tile

_RANKS = 64  # whose headers a program reads at a time
_SMALL = torch.finfo(torch.float32).max / 64


@triton.jit
def tile_of(programs):
    """(the row of this program, of all rows, which of its tiles it handles)"""
    return tile_at(programs, tl.program_id(0).to(tl.int64))


@triton.jit
def tile_at(programs, index):
    """As :func:`tile_of`, for the entry ``index`` (int64) of the table."""
    at = programs + 2 * index
    return tl.load(at).to(tl.int64), tl.load(at + 1).to(tl.int64)


@triton.jit
def pointer_to(address, like, EVEN: tl.constexpr):
    """To numbers of like's type. EVEN: at a multiple of 16 bytes, which the compiler learns only from its distance to an
    argument at one.
    """
    if EVEN:
        at = like + (address - like.to(tl.int64)) // 16 * (128 // like.dtype.element_ty.primitive_bitwidth)
    else:
        at = address.to(like.dtype)
    return at


@triton.jit
def tensor_of(table, task, COLUMN: tl.constexpr, EVEN: tl.constexpr):
    """Start of a row's tensor (0), its memory (1) or its rest (2)."""
    return pointer_to(tl.load(table + task * 8 + COLUMN), table.to(tl.pointer_type(tl.float32)), EVEN)


@triton.jit
def numbers_of(table, task, like, EVEN: tl.constexpr):
    """(where a row's tensor begins, as numbers of like's type; which of its numbers is the first of the row)"""
    start = tl.load(table + task * 8 + 7)
    if EVEN:
        start = start // 16 * 16
    return pointer_to(tl.load(table + task * 8), like, EVEN), start


@triton.jit
def wire_of(table, task):
    """(the byte of a message where a row's wire begins, n)"""
    return tl.load(table + task * 8 + 3), tl.load(table + task * 8 + 4)


@triton.jit
def key_of(table, task):
    """The two words of a tensor's key, int32."""
    key0 = tl.load(table + task * 8 + 5).to(tl.uint32).to(tl.int32, bitcast=True)
    return key0, tl.load(table + task * 8 + 6).to(tl.uint32).to(tl.int32, bitcast=True)


@triton.jit
def shared_key_of(keys, task):
    """The two words of a key that all ranks share, int32."""
    key0 = tl.load(keys + 2 * task).to(tl.uint32).to(tl.int32, bitcast=True)
    return key0, tl.load(keys + 2 * task + 1).to(tl.uint32).to(tl.int32, bitcast=True)


@triton.jit
def encoder_at(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY: tl.constexpr, EVEN: tl.constexpr
):
    """The input of one encoding program: (its row, which of its tiles, x, e and rest, where its numbers start in them, n,
    the first byte of its wire, its status flag, its first block of those of all, nb, the two words of its key). x: of many,
    one number like theirs.
    """
    if MANY:
        task, tile = tile_of(programs)
        x, start = numbers_of(table, task, x, EVEN)
        e, rest = tensor_of(table, task, 1, EVEN), tensor_of(table, task, 2, EVEN)
        place, n = wire_of(table, task)
        key0, key1 = key_of(table, task)
        nb = (n + block - 1) // block
        base = wire + place
        bad = bad + task
        head = tl.load(heads + task)
    else:
        task = tl.program_id(1).to(tl.int64)
        tile = tl.program_id(0).to(tl.int64)
        n = tile - tile + n
        nb = (n + block - 1) // block
        start = task * n
        if EVEN:
            start = start // 16 * 16
        base = wire + task * w
        head = task * nb
    return task, tile, x, e, rest, start, n, base, bad, head, nb, key0, key1


@triton.jit
def adder_at(
    table, programs, wires, out, marks, n, row_stride, block,
    MARKS: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The input of one adding program: (where its row begins in out, the first number of its tile, n, where its first wire
    begins, its status flags, of which a row has so many, nb). out: of many, one number like theirs.
    """
    if MANY:
        task, tile = tile_of(programs)
        place, n = wire_of(table, task)
        out, start = numbers_of(table, task, out, EVEN)
        out = out + start
        base = wires + place
        marks = marks + MARKS * task
    else:
        row = tl.program_id(1).to(tl.int64)
        tile = tl.program_id(0).to(tl.int64)
        n = tile - tile + n
        start = row * n
        if EVEN:
            start = start // 16 * 16
        out = out + start
        base = wires + row * row_stride
    return out, tile * TILE, n, base, marks, (n + block - 1) // block


@triton.jit
def blocks_at(table, programs, heads, x, n, block, MANY: tl.constexpr, EVEN: tl.constexpr):
    """The input of one reducing program: (which tile of its row, where the row's numbers begin in x, n, nb, its first block
    of those of all). x: of many, one number like theirs.
    """
    if MANY:
        task, tile = tile_of(programs)
        x, start = numbers_of(table, task, x, EVEN)
        x = x + start
        _place, n = wire_of(table, task)
        nb = (n + block - 1) // block
        head = tl.load(heads + task)
    else:
        row = tl.program_id(1).to(tl.int64)
        tile = tl.program_id(0).to(tl.int64)
        n = tile - tile + n
        nb = (n + block - 1) // block
        x = x + row * n
        head = row * nb
    return tile, x, n, nb, head


@triton.jit
def so_far(out, i, n, ADD: tl.constexpr, full=False):
    """float32: what a sum begins with."""
    total = tl.zeros(i.shape, tl.float32)
    if ADD:
        total = load_tile(out + i, i < n, full)
    return total


@triton.jit
def code_width(n, BITS: tl.constexpr):
    """Bytes of n codes of ``BITS`` bits; 0: of base 3, five to a byte."""
    if BITS == 0:
        width = (n + 4) // 5
    else:
        width = (n * BITS + 7) // 8
    return width


@triton.jit
def _poison(table, programs, like, flags, EVEN: tl.constexpr, TILE: tl.constexpr):
    task, tile = tile_of(programs)
    if tl.load(flags + task) == 0:
        _fill(table, task, tile, like, False, EVEN, TILE)


@triton.jit
def _fill(table, row, tile, like, CLEAR: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr):
    """Sets a tile of a row to NaN, or with CLEAR to 0."""
    x, start = numbers_of(table, row, like, EVEN)
    _place, n = wire_of(table, row)
    i = tile * TILE + tl.arange(0, TILE)
    if CLEAR:
        tl.store(x + start + i, tl.zeros((TILE,), like.dtype.element_ty), i < n)
    elif like.dtype.element_ty == tl.int16:  # words of bfloat16
        tl.store(x + start + i, tl.full((TILE,), 0x7FC0, tl.int16), i < n)
    else:
        tl.store(x + start + i, tl.full((TILE,), float("nan"), tl.float32).to(like.dtype.element_ty), i < n)


@triton.jit(do_not_specialize=["stride", "W", "b", "count", "expected"])
def _agree(
    table, programs, like, wires, words, legal, kept, flags, headers, stride, W, b, count, expected,
    KEPT: tl.constexpr, CLEAR: tl.constexpr, RANKS: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A program: a tile of one of a tensor's b rows. It reads what all W ranks say of the tensor; the first one leaves that in
    ``flags [3, count]`` and ``headers [W, count]``. expected: the header of what is finite, or where it lies.
    """
    if expected.dtype.is_ptr():
        expected = tl.load(expected)
    row, tile = tile_of(programs)
    task = row // b
    first = (tile == 0) & (row % b == 0)
    at = wires + 4 * tl.load(words + task)
    lane = tl.arange(0, RANKS)
    other = lane * 0  # bits in which some header is another than that of what is finite
    for begin in range(0, W, RANKS):
        rank = (begin + lane).to(tl.int64)
        header = tl.load((at + rank * stride).to(tl.pointer_type(tl.int32)), rank < W, 0)
        other |= tl.where(rank < W, header ^ expected, 0)
        tl.store(headers + rank * count + task, header, (rank < W) & first)
    finite = tl.max((other != 0).to(tl.int32), 0) == 0
    known = tl.max(((other >> 1) != 0).to(tl.int32), 0) == 0
    fine = tl.load(legal + task) != 0
    right = fine | (finite == 0)
    fine = fine & finite
    if KEPT:
        fine = fine & (tl.load(kept + task) != 0)
    tl.store(flags + task, fine, first)
    tl.store(flags + count + task, known, first)
    tl.store(flags + 2 * count + task, right, first)
    if fine == 0:
        _fill(table, row, tile, like, CLEAR, EVEN, TILE)


@triton.jit
def _settle(table, programs, flags, SMALL: tl.constexpr, DROPS: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr):
    task, tile = tile_of(programs)
    if tl.load(flags + task) == 0:
        e, rest = tensor_of(table, task, 1, EVEN), tensor_of(table, task, 2, EVEN)
        _place, n = wire_of(table, task)
        i = tile * TILE + tl.arange(0, TILE)
        old = tl.load(e + i, i < n, 0.0)
        if DROPS:
            old = tl.where(tl.abs(old) <= SMALL, old, 0.0)
        tl.store(rest + i, old, i < n)


def poison_many(flags: Tensor, many: TensorList) -> None:
    tiles = many.tiles(TILE)
    launch(_poison, (tiles.shape[0],), many.table, tiles, many.like, flags, EVEN=many.even, TILE=TILE)


def agree_many(
    rows: Tensor,
    words: Tensor,
    good: int | Tensor,
    legal: Tensor,
    many: TensorList,
    *,
    kept: Tensor | None = None,
    clear: bool = False,
) -> tuple[Tensor, Tensor]:
    tiles, (W, _s), T, device = many.tiles(TILE), rows.shape, words.shape[0], many.device
    flags = torch.empty(3, T, dtype=torch.bool, device=device)
    headers = torch.empty(W, T, dtype=torch.int32, device=device)
    launch(_agree, (tiles.shape[0],), many.table, tiles, many.like, rows, words, legal, kept, flags, headers, rows.stride(0),
           W, many.rows, T, good, KEPT=kept is not None, CLEAR=clear, RANKS=min(_RANKS, power_of_two(W)), EVEN=many.even,
           TILE=TILE)  # fmt: skip
    return flags, headers


def settle_many(flags: Tensor, many: TensorList, *, drops: bool = True) -> None:
    tiles = many.tiles(TILE)
    launch(_settle, (tiles.shape[0],), many.table, tiles, flags, SMALL=_SMALL, DROPS=drops, EVEN=many.even, TILE=TILE)
