"""Rotations as Triton kernels, and codes of rotated numbers. The rotation itself is in ``rotation.turns``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, check_rows, launch
from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count, block_roots
from grace.kernels.levels import MOST
from grace.kernels.many import Many
from grace.kernels.many.jobs import Job, Rows, Tensors, add_up, add_up_many
from grace.kernels.many.triton import adder_at, blocks_at, code_width, encoder_at, so_far
from grace.kernels.rotation import BAD_SCALE, CENTROIDS, rotated_bytes
from grace.kernels.rotation.turns.triton import ADD, REPLACE, SET, SUBTRACT, turn, turn_many
from grace.kernels.statistics.triton import euclidean_norm, euclidean_norm_of_many
from grace.kernels.triton import (
    halves,
    join_pieces_kernel,
    load_code,
    load_float,
    magnitude,
    mark_if,
    negated,
    positions_of,
    store_codes,
    store_float,
)

if TYPE_CHECKING:
    from grace.random import Stream

_PIECE, _LANES, _ROWS = 4096, 16, 16


@triton.jit
def _code_of(y, rms, middle, BITS: tl.constexpr):
    """(the codes int32 of rotated numbers, the numbers in units of ``rms``)."""
    live = rms > 0
    unit = tl.where(live, tl.div_rn(y, tl.where(live, rms, 1.0)), 0.0)
    below = tl.zeros(y.shape, tl.int32)  # how many middles are below -unit
    for t in tl.static_range(0, BITS):
        half = (1 << BITS) >> (t + 1)
        below += tl.where(tl.load(middle + below + half - 1) < negated(unit), half, 0)
    return (1 << BITS) - 1 - below, unit


@triton.jit
def _sums(
    table, programs, heads, x, rms, book, middle, out, top, n, block, pieces, turns, plane,
    BITS: tl.constexpr, SQUARES: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``out [2, plane]`` float64: of each piece of 4,096 numbers the ordered sums of ``c u``, and of ``u u``, or of ``c c``
    with ``SQUARES``; c the centroid of u. ``top``, int32, zeros before: for each block the largest magnitude of c.
    """
    tile, x, n, nb, head = blocks_at(table, programs, heads, x, n, block, MANY, EVEN)
    rms, top, out, count = rms + head, top + head, out + head * pieces, nb * pieces
    j = tile * ROWS + tl.arange(0, ROWS)
    k = j // pieces
    begin = (j % pieces) * 4096
    start = k * block + begin
    lane = tl.arange(0, 16)
    unit_of = tl.load(rms + k, j < count, 0.0)
    product = tl.zeros((ROWS, 16), tl.float64)
    square = tl.zeros((ROWS, 16), tl.float64)
    most = tl.zeros((ROWS, 16), tl.int32)
    for t in range(turns):
        inner = begin[:, None] + 16 * t + lane[None, :]
        i = start[:, None] + 16 * t + lane[None, :]
        inside = (inner < block) & (i < n) & (j < count)[:, None]
        y = tl.load(x + i, inside, 0.0)
        code, unit = _code_of(y, tl.broadcast_to(unit_of[:, None], (ROWS, 16)), middle, BITS)
        centroid = tl.where(inside, tl.load(book + code), 0.0)
        most = tl.maximum(most, magnitude(centroid))
        wide = unit.to(tl.float64)
        other = centroid.to(tl.float64)
        product += other * wide
        if SQUARES:
            square += other * other
        else:
            square += wide * wide
    tl.store(out + j, halves(product, ROWS), j < count)
    tl.store(out + plane + j, halves(square, ROWS), j < count)
    tl.atomic_max(top + k, tl.max(most, 1), j < count)


@triton.jit
def _write(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block, rms, scales, book, middle,
    BITS: tl.constexpr, SAY: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr,
    HAS_REST: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Scales and codes of the rotated numbers x. SAY: x becomes what they say of it."""
    _task, tile, x, e, rest, start, n, base, bad, head, nb, key0, key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    first, i, counts = positions_of(tile, G, 8)
    inside = counts & (i < n)
    k = i // block
    code, _unit = _code_of(tl.load(x + start + i, inside, 0.0), tl.load(rms + head + k, inside, 0.0), middle, BITS)
    scale = tl.load(scales + head + k, inside, 0.0)
    store_float(base + 4 * k, scale, inside & (i % block == 0))
    store_codes(base + 4 * nb, tl.where(inside, code, 0), first, n, code_width(n, BITS), BITS, G)
    if SAY:
        tl.store(x + start + i, tl.load(book + code) * scale, inside)


@triton.jit(do_not_specialize=["weight"])
def _sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block, weight, book,
    BITS: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    out, i, n, base, marks, nb = adder_at(table, programs, wires, out, marks, n, row_stride, block, 1, MANY, EVEN, TILE)
    inside, total, width = i < n, so_far(out, i, n, ADD), code_width(n, BITS)
    for _ in range(W):
        scale = load_float(base + 4 * (i // block), inside)
        code, _good = load_code(base + 4 * nb, i, inside, width, BITS)
        centroid = tl.load(book + code)
        mark_if(marks, inside & ((scale >= 0) & (tl.abs(centroid * scale) < float("inf")) == 0))
        total += centroid * (scale * weight)
        base += stride
    tl.store(out + i, total, inside)


def hadamard(rows: Tensor, block: int) -> Any:
    return _turned(rows, block, 0, None) if _plain(rows) else NotImplemented


def rotate_blocks(rows: Tensor, block: int, rng: Stream) -> Any:
    return _turned(rows, block, 1, rng) if _plain(rows) else NotImplemented


def rotate_blocks_back(rows: Tensor, block: int, rng: Stream) -> Any:
    return _turned(rows, block, 2, rng) if _plain(rows) else NotImplemented


def rotate_norms(
    rows: Tensor, block: int, rng: Stream, out: Tensor, memory: Tensor | None = None
) -> tuple[Tensor, Flag]:
    check_rows(rows=rows, memory=memory, out=out)
    bad = Marks(rows)
    turn(rows, memory, out, block, 1, rng, bad=bad.words)
    return euclidean_norm(out, None, block), bad.unset()


def encode_rotated(
    rows: Tensor,
    bits: int,
    block: int,
    unbiased: bool,
    rng: Stream,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> tuple[Tensor, Flag]:
    check_rows(rows=rows, memory=memory, rest=rest)
    (b, n), bad = rows.shape, Marks(rows)
    y = torch.empty_like(rows, dtype=torch.float32)
    turn(rows, memory, y, block, 1, rng, bad=bad.words)
    rms = _standard(euclidean_norm(y, None, block), block_roots(n, block, rows))
    pieces = block_count(min(block, max(1, n)), _PIECE)
    grid = block_count(rms.shape[1] * pieces, _ROWS), b
    scale = _scales(grid, (None, None, None, y, rms), n, bits, block, pieces, unbiased, MANY=False, EVEN=False)
    job = Rows(y, None, None, rotated_bytes(n, bits, block))
    wire, _finite = _write_codes(job, rms, scale, bits, block, rest is not None)
    if rest is not None:
        turn(y, None, rest, block, 2, rng, SUBTRACT, rows, memory)
    return wire, bad.unset()


def encode_rotated_many(message: Tensor, many: Many, bits: int, block: int, unbiased: bool, step: int) -> Tensor:
    work = many.work
    assert work is not None
    finite = rotate_many(message, many, work, block, 0, step)
    rms = _standard(euclidean_norm_of_many(work, block), work.roots(block))
    clip = work.clip(block)
    pieces = block_count(clip, _PIECE)
    tiles = work.tiles(_ROWS, block=clip, pieces=pieces)
    given = (work.table, tiles, work.heads(clip), work.like, rms)
    scale = _scales((len(tiles),), given, None, bits, clip, pieces, unbiased, MANY=True, EVEN=work.even)
    keep = many.rests is not None
    _write_codes(Tensors(message, work), rms, scale, bits, block, keep)
    if keep:
        rotate_back_many(message, work, many, block, 0, step, subtract=True)
    return finite


def sum_rotated(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, weight: float, rng: Stream, *, add: bool = False
) -> None:
    width, book = rotated_bytes(out.shape[1], bits, block), _book(bits, out.device)[0]
    total = torch.empty_like(out) if add else out
    marks = add_up(_sum, received, total, width, block, weight, 1, book, add=False, BITS=bits)
    turn(total, None, out, block, 2, rng, ADD if add else REPLACE)
    marks.refuse(0, lambda: PayloadError(BAD_SCALE))


def sum_rotated_many(rows: Tensor, many: Many, bits: int, block: int, weight: float, step: int) -> Tensor:
    legal = add_up_many(_sum, rows, many, block, weight, 1, _book(bits, rows.device)[0], BITS=bits)
    turn_many(many, many, block, 2, 0, step, REPLACE)
    return legal


def rotate_many(storage: Tensor, many: Many, into: Many, block: int, salt: int, step: int) -> Tensor:
    marks = Marks(many.table, len(many))
    turn_many(many, into, block, 1, salt, step, SET, marks.words)
    return many.all_of(marks.words)


def rotate_norms_many(storage: Tensor, many: Many, block: int, salt: int, step: int) -> tuple[Tensor, Tensor]:
    assert many.work is not None
    finite = rotate_many(storage, many, many.work, block, salt, step)
    return euclidean_norm_of_many(many.work, block), finite


def rotate_back_many(
    storage: Tensor, many: Many, into: Many, block: int, salt: int, step: int, *, subtract: bool = False
) -> None:
    turn_many(many, into, block, 2, salt, step, SUBTRACT if subtract else SET)


def _standard(norms: Tensor, roots: Tensor) -> Tensor:
    """The root mean squares of blocks, ``[..., nb]``, from their norms and the roots of their sizes."""
    rms = norms / roots
    return rms.masked_fill_(rms < torch.finfo(torch.float32).tiny, 0.0)


def _scales(
    grid: tuple[int, ...],
    given: tuple[Any, ...],
    n: int | None,
    bits: int,
    block: int,
    pieces: int,
    unbiased: bool,
    **how: bool,
) -> Tensor:
    """float32, like the root mean squares, which ``given`` ends with: the scales of rotated blocks."""
    rms = given[-1]
    count, turns = rms.numel() * pieces, block_count(min(block, _PIECE), _LANES)
    parts = torch.empty(2, count, dtype=torch.float64, device=rms.device)
    top = torch.zeros(rms.shape, dtype=torch.int32, device=rms.device)
    launch(_sums, grid, *given, *_book(bits, rms.device), parts, top, n, block, pieces, turns, count, BITS=bits,
           SQUARES=not unbiased, ROWS=_ROWS, **how)  # fmt: skip
    if pieces > 1:
        joined = torch.empty(2, rms.numel(), dtype=torch.float64, device=rms.device)
        launch(
            join_pieces_kernel, (block_count(joined.numel(), _ROWS),), parts, joined, joined.numel(), pieces, ROWS=_ROWS
        )
        parts = joined
    product, square = parts.view(2, *rms.shape)
    factor = square / product.clamp_min(1e-300) if unbiased else product / square
    most = MOST / top.view(torch.float32).clamp_min(1.0)  # so that no number of the block overflows
    return torch.minimum(factor * rms, most.double()).float()


def _write_codes(job: Job, rms: Tensor, scale: Tensor, bits: int, block: int, say: bool) -> Any:
    """The wires of rotated numbers, which become what the wires say with ``say``."""
    return job.encode(_write, block, rms, scale, *_book(bits, rms.device), BITS=bits, SAY=say, G=TILE // 8)


def _turned(rows: Tensor, block: int, signs: int, rng: Stream | None) -> Tensor:
    out = torch.empty_like(rows)
    turn(rows, None, out, block, signs, rng)
    return out


def _plain(rows: Tensor) -> bool:
    return rows.dtype is torch.float32 and rows.is_contiguous() and rows.numel() > 0


@functools.lru_cache(maxsize=32)
def _book(bits: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The centroids, ascending, and the numbers between them, on a device; copied there once."""
    half = torch.tensor(CENTROIDS[bits], dtype=torch.float32)
    book = torch.cat((-half.flip(0), half))
    middle = (book[1:].double() + book[:-1].double()).div_(2).float()
    return book.to(device), middle.to(device)
