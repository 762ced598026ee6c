"""Rotations as Triton kernels: a block of up to 4,096 numbers in one pass, on the chip; a longer one in two.

The pairs of a transform are taken apart and joined by reshaping, at distances 1, 2, 4, ..., which is the reference's order of
additions. What is left of a row after its last whole block has shorter pieces: at a distance beyond a number's piece nothing
happens to it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, check_rows, even_runs, launch, signed
from grace.errors import PayloadError
from grace.flags.capturing import step_word
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count, block_roots
from grace.kernels.levels import MOST
from grace.kernels.packing import packed_bytes
from grace.kernels.rotation import BAD_SCALE, CENTROIDS, rotated_bytes
from grace.kernels.statistics.triton import euclidean_norm, largest
from grace.kernels.triton import (
    halves,
    join_pieces_kernel,
    load_code,
    load_float,
    load_number,
    load_sum,
    magnitude,
    mark_if,
    negated,
    store_codes,
    store_float,
    tile_positions,
)
from grace.random.triton import threefry

if TYPE_CHECKING:
    from grace.random import Stream

_LONGEST = 4096  # numbers that a program holds
_SET, _SUBTRACT, _REPLACE, _ADD = range(4)  # out = y, p - y, 0 + y, out + y
_PIECE, _LANES, _ROWS = 4096, 16, 16


@triton.jit
def _signs_of_tile(key0, key1, step, first, TILE: tl.constexpr):
    """``[TILE]`` uint32, 0 or 1: the bits of a stream's words from ``first`` on, a multiple of 64."""
    low, high = threefry(key0, key1, ((first >> 6) + tl.arange(0, TILE // 64)).to(tl.uint32), step)
    words = tl.reshape(tl.join(low, high), (TILE // 32,))
    return tl.reshape((words[:, None] >> tl.arange(0, 32).to(tl.uint32)[None, :]) & 1, (TILE,))


@triton.jit
def _signs_at(key0, key1, step, i):
    """uint32, 0 or 1: the bits of a stream's words at positions i."""
    low, high = threefry(key0, key1, (i >> 6).to(tl.uint32), step)
    return (tl.where((i & 32) == 0, low, high) >> (i & 31).to(tl.uint32)) & 1


@triton.jit
def _pieces_at(i, n, LOG: tl.constexpr):
    """int32: how long the pieces are in which numbers i of a row are transformed; 1 for those that stay as they are."""
    r = (i & ((1 << LOG) - 1)).to(tl.int32)
    left = tl.minimum(n - (i >> LOG << LOG), 1 << LOG).to(tl.int32)
    size = tl.full(i.shape, 1, tl.int32)
    at = r - r
    for t in tl.static_range(0, LOG - (4 if LOG > 4 else LOG) + 1):
        piece = (1 << LOG) >> t
        fits = left - at >= piece
        size = tl.where(fits & (r >= at) & (r < at + piece), piece, size)
        at += tl.where(fits, piece, 0)
    return size


@triton.jit
def _root(size):
    """The float32 nearest to ``1 / sqrt(size)``, of powers of two."""
    power = (size.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    even = (127 - power // 2) << 23
    odd = ((126 - power // 2) << 23) | 0x3504F3  # 1/sqrt(2)
    return tl.where((power & 1) == 0, even, odd).to(tl.float32, bitcast=True)


@triton.jit
def _pairs(y, size, near, S: tl.constexpr, TILE: tl.constexpr):
    """Pairs S apart, which in the row are ``near`` apart: (p, q) becomes (p + q, p - q) in pieces that are longer."""
    p, q = tl.split(tl.permute(tl.reshape(y, (TILE // (2 * S), 2, S)), (0, 2, 1)))
    turned = tl.reshape(tl.permute(tl.join(p + q, p - q), (0, 2, 1)), (TILE,))
    return tl.where(size > near, turned, y)


@triton.jit(do_not_specialize=["key0", "key1", "step"])
def _rotate(
    x, e, out, p, m, tops, bad, n, nb, key0, key1, step,
    LOG: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, SIGNS: tl.constexpr, END: tl.constexpr,
    HAS_MEMORY: tl.constexpr, HAS_SECOND: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Blocks of ``2**LOG`` numbers of ``x + e``; where they are longer than a tile, in two passes.

    SIGNS: 0 none, 1 before, 2 after. END: what becomes of out; ``p + m`` is what is subtracted from. A mark if x + e is not
    finite. tops: the largest magnitudes of long blocks.
    """
    row = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, TILE)
    first = tl.program_id(0).to(tl.int64) * TILE
    i = first + lane
    COLUMNS: tl.constexpr = TILE if FIRST else TILE * TILE >> LOG
    if FIRST == 0:  # numbers of one block, COLUMNS side by side, TILE apart
        per = TILE // COLUMNS
        block = tl.program_id(0) // per
        i = (block.to(tl.int64) << LOG) + (lane // COLUMNS) * TILE + (tl.program_id(0) % per) * COLUMNS + lane % COLUMNS
    inside = i < n
    at = row * n + i
    y = load_sum(x, e, at, inside, HAS_MEMORY)
    size = _pieces_at(i, n, LOG)
    if FIRST:
        mark_if(bad, magnitude(y) >= 0x7F800000)
        if SIGNS == 1:
            y = tl.where(_signs_of_tile(key0, key1, step, first, TILE) == 1, negated(y), y)
    if FIRST and LAST:
        top = tl.max(tl.reshape(magnitude(y), (TILE >> LOG, 1 << LOG)), 1)
        top = tl.reshape(tl.broadcast_to(top[:, None], (TILE >> LOG, 1 << LOG)), (TILE,))
    else:
        top = magnitude(tl.load(tops + row * nb + (i >> LOG), inside, 0.0))
    large = top > 0x6F800000  # 2**96
    if FIRST:
        y = tl.where(large, y * 2.3283064365386963e-10, y)
        for t in tl.static_range(0, LOG if LAST else 12):
            y = _pairs(y, size, 1 << t, 1 << t, TILE)
    else:
        for t in tl.static_range(0, LOG - 12):
            y = _pairs(y, size, TILE << t, COLUMNS << t, TILE)
    if LAST:
        y = y * _root(size)
        most = 3.4028234663852886e38 * 2.3283064365386963e-10
        y = tl.where(large, tl.minimum(tl.maximum(y, -most), most) * 4294967296.0, y)
        if SIGNS == 2:
            if FIRST:
                minus = _signs_of_tile(key0, key1, step, first, TILE)
            else:
                minus = _signs_at(key0, key1, step, i)
            y = tl.where(minus == 1, negated(y), y)
        if END == 1:
            whole = load_number(p, at, inside)
            if HAS_SECOND:
                whole += tl.load(m + at, inside, 0.0)
            y = whole - y
        elif END == 2:
            y = y + 0.0
        elif END == 3:
            y = tl.load(out + at, inside, 0.0) + y
    tl.store(out + at, y, inside)


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
    x, rms, book, middle, out, top, n, block, nb, pieces, count, turns, stride,
    BITS: tl.constexpr, SQUARES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``out [2, b, count]`` float64: of each piece of 4,096 numbers the ordered sums of ``c u``, and of ``u u``, or of ``c c``
    with ``SQUARES``; c the centroid of u. ``top [b, nb]`` int32, zeros before: the largest magnitude of c. stride: b count.
    """
    row = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = j // pieces
    begin = (j % pieces) * 4096
    start = k * block + begin
    lane = tl.arange(0, 16)
    unit_of = tl.load(rms + row * nb + k, j < count, 0.0)
    product = tl.zeros((ROWS, 16), tl.float64)
    square = tl.zeros((ROWS, 16), tl.float64)
    most = tl.zeros((ROWS, 16), tl.int32)
    for t in range(turns):
        inner = begin[:, None] + 16 * t + lane[None, :]
        i = start[:, None] + 16 * t + lane[None, :]
        inside = (inner < block) & (i < n) & (j < count)[:, None]
        y = tl.load(x + row * n + i, inside, 0.0)
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
    tl.store(out + row * count + j, halves(product, ROWS), j < count)
    tl.store(out + stride + row * count + j, halves(square, ROWS), j < count)
    tl.atomic_max(top + row * nb + k, tl.max(most, 1), j < count)


@triton.jit
def _write(
    x, rms, scales, book, middle, wire, rest, n, block, nb, w, width, BITS: tl.constexpr, HAS_REST: tl.constexpr,
    G: tl.constexpr,
):  # fmt: skip
    """Scales and codes; ``rest``: what they say of the rotated numbers."""
    row = tl.program_id(1).to(tl.int64)
    first, i, counts = tile_positions(G, 8)
    inside = counts & (i < n)
    k = i // block
    code, _unit = _code_of(
        tl.load(x + row * n + i, inside, 0.0), tl.load(rms + row * nb + k, inside, 0.0), middle, BITS
    )
    base = wire + row * w
    scale = tl.load(scales + row * nb + k, inside, 0.0)
    store_float(base + 4 * k, scale, inside & (i % block == 0))
    store_codes(base + 4 * nb, tl.where(inside, code, 0), first, n, width, BITS, G)
    if HAS_REST:
        tl.store(rest + row * n + i, tl.load(book + code) * scale, inside)


@triton.jit(do_not_specialize=["weight"])
def _sum(
    wires, book, out, marks, W, stride, row_stride, n, block, nb, width, weight,
    ADD: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < n
    total = tl.zeros((TILE,), tl.float32)
    if ADD:
        total = tl.load(out + row * n + i, inside, 0.0)
    base = wires + row * row_stride
    for _ in range(W):
        scale = load_float(base + 4 * (i // block), inside)
        code, _good = load_code(base + 4 * nb, i, inside, width, BITS)
        centroid = tl.load(book + code)
        mark_if(marks, inside & ((scale >= 0) & (tl.abs(centroid * scale) < float("inf")) == 0))
        total += centroid * (scale * weight)
        base += stride
    tl.store(out + row * n + i, total, inside)


def hadamard(rows: Tensor, block: int) -> Any:
    return _turn(rows, block, 0, None) if _plain(rows) else NotImplemented


def rotate_blocks(rows: Tensor, block: int, rng: Stream) -> Any:
    return _turn(rows, block, 1, rng) if _plain(rows) else NotImplemented


def rotate_blocks_back(rows: Tensor, block: int, rng: Stream) -> Any:
    return _turn(rows, block, 2, rng) if _plain(rows) else NotImplemented


def rotate_norms(
    rows: Tensor, block: int, rng: Stream, out: Tensor, memory: Tensor | None = None
) -> tuple[Tensor, Flag]:
    check_rows(rows=rows, memory=memory, out=out)
    bad = Marks(rows)
    _launch(rows, memory, out, block, 1, rng, bad=bad.words)
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
    b, n = rows.shape
    nb, bad = block_count(n, block), Marks(rows)
    y = torch.empty_like(rows, dtype=torch.float32)
    _launch(rows, memory, y, block, 1, rng, bad=bad.words)
    rms = euclidean_norm(y, None, block) / block_roots(n, block, rows)
    rms.masked_fill_(rms < 2.0**-126, 0.0)
    scale = _scales(y, rms, bits, block, unbiased)
    wire = torch.empty(b, rotated_bytes(n, bits, block), dtype=torch.uint8, device=rows.device)
    said = torch.empty_like(y) if rest is not None else None
    launch(_write, (block_count(n, TILE), b), y, rms, scale, *_book(bits, rows.device), wire, said, n, block, nb,
           wire.shape[1], packed_bytes(n, bits), BITS=bits, HAS_REST=rest is not None, G=TILE // 8)  # fmt: skip
    if rest is not None:
        _launch(said, None, rest, block, 2, rng, _SUBTRACT, rows, memory)
    return wire, bad.unset()


def sum_rotated(
    received: Sequence[Tensor], out: Tensor, bits: int, block: int, weight: float, rng: Stream, *, add: bool = False
) -> None:
    check_rows(out=out)
    (b, n), marks, more = out.shape, Marks(out), False
    total, book = torch.zeros_like(out), _book(bits, out.device)[0]
    for run in even_runs(received, b, rotated_bytes(n, bits, block)):
        launch(_sum, (block_count(n, TILE), b), run.first, book, total, marks.words, run.count, run.stride, run.row, n, block,
               block_count(n, block), packed_bytes(n, bits), weight, ADD=more, BITS=bits, TILE=TILE)  # fmt: skip
        more = True
    _launch(total, None, out, block, 2, rng, _ADD if add else _REPLACE)
    marks.refuse(0, lambda: PayloadError(BAD_SCALE))


def _scales(y: Tensor, rms: Tensor, bits: int, block: int, unbiased: bool) -> Tensor:
    """float32 ``[b, nb]``: the scales of rotated blocks."""
    (b, n), nb = y.shape, rms.shape[1]
    pieces = block_count(min(block, max(1, n)), _PIECE)
    count, turns = nb * pieces, block_count(min(block, _PIECE), _LANES)
    parts = torch.empty(2, b, count, dtype=torch.float64, device=y.device)
    top = torch.zeros(b, nb, dtype=torch.int32, device=y.device)
    launch(_sums, (block_count(count, _ROWS), b), y, rms, *_book(bits, y.device), parts, top, n, block, nb, pieces, count,
           turns, b * count, BITS=bits, SQUARES=not unbiased, ROWS=_ROWS)  # fmt: skip
    if pieces > 1:
        joined = torch.empty(2, b, nb, dtype=torch.float64, device=y.device)
        launch(join_pieces_kernel, (block_count(2 * b * nb, _ROWS),), parts, joined, 2 * b * nb, pieces, ROWS=_ROWS)
        parts = joined
    product, square = parts
    factor = square / product.clamp_min(1e-300) if unbiased else product / square
    most = MOST / top.view(torch.float32).clamp_min(1.0)  # so that no number of the block overflows
    return torch.minimum(factor * rms, most.double()).float()


def _turn(rows: Tensor, block: int, signs: int, rng: Stream | None) -> Tensor:
    out = torch.empty_like(rows)
    _launch(rows, None, out, block, signs, rng)
    return out


def _launch(
    x: Tensor,
    e: Tensor | None,
    out: Tensor,
    block: int,
    signs: int,
    rng: Stream | None,
    end: int = _SET,
    p: Tensor | None = None,
    m: Tensor | None = None,
    bad: Tensor | None = None,
) -> None:
    """Rotates the blocks of ``x + e``."""
    (b, n), log = x.shape, block.bit_length() - 1
    key0, key1, step = (0, 0, 0) if rng is None else (*map(signed, rng.key()), step_word(rng.step, x.device))
    nb, bad = block_count(n, block), Marks(x).words if bad is None else bad
    knobs = {"LOG": log, "SIGNS": signs, "HAS_SECOND": m is not None}
    if block <= _LONGEST:
        tile = max(block, TILE)
        launch(_rotate, (block_count(n, tile), b), x, e, out, p, m, None, bad, n, nb, key0, key1, step,
               **knobs, FIRST=True, LAST=True, END=end, HAS_MEMORY=e is not None, TILE=tile)  # fmt: skip
        return
    tops = largest(x, e, block)
    y = out if end == _SET else torch.empty_like(x, dtype=torch.float32)
    launch(_rotate, (block_count(n, _LONGEST), b), x, e, y, None, None, tops, bad, n, nb, key0, key1, step,
           **knobs, FIRST=True, LAST=False, END=_SET, HAS_MEMORY=e is not None, TILE=_LONGEST)  # fmt: skip
    launch(_rotate, (nb * (block // _LONGEST), b), y, None, out, p, m, tops, bad, n, nb, key0, key1, step,
           **knobs, FIRST=False, LAST=True, END=end, HAS_MEMORY=False, TILE=_LONGEST)  # fmt: skip


def _plain(rows: Tensor) -> bool:
    return rows.dtype is torch.float32 and rows.is_contiguous() and rows.numel() > 0


@functools.lru_cache(maxsize=32)
def _book(bits: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The centroids, ascending, and the numbers between them, on a device; copied there once."""
    half = torch.tensor(CENTROIDS[bits], dtype=torch.float32)
    book = torch.cat((-half.flip(0), half))
    middle = (book[1:].double() + book[:-1].double()).div_(2).float()
    return book.to(device), middle.to(device)
