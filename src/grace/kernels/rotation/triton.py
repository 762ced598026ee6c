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

from grace.compute.launching import TILE, Marks, check_rows, launch, signed
from grace.errors import PayloadError
from grace.flags.capturing import step_word
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count, block_roots
from grace.kernels.levels import MOST
from grace.kernels.many import Many
from grace.kernels.many.jobs import Job, Rows, Tensors, add_up, add_up_many
from grace.kernels.many.triton import (
    adder_at,
    blocks_at,
    code_width,
    encoder_at,
    numbers_of,
    shared_key_of,
    so_far,
    tensor_of,
    tile_of,
    wire_of,
)
from grace.kernels.rotation import BAD_SCALE, CENTROIDS, rotated_bytes
from grace.kernels.statistics.triton import euclidean_norm, euclidean_norm_of_many, largest, largest_of_many
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
    pieces_at,
    positions_of,
    root_of,
    store_codes,
    store_float,
    turn_pairs,
)
from grace.random.triton import signs_at, signs_of_tile

if TYPE_CHECKING:
    from grace.random import Stream

_LONGEST = 4096  # numbers that a program holds
_SET, _SUBTRACT, _REPLACE, _ADD = range(4)  # out = y, p - y, 0 + y, out + y
_PIECE, _LANES, _ROWS = 4096, 16, 16
_NO_TABLE = (None, None, None, None, None)  # of one tensor


@triton.jit
def _turner_at(
    table, programs, target, keys, heads, x, e, out, p, m, bad, n, nb, key0, key1,
    SIGNS: tl.constexpr, END: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """What a program rotates: (which tile of its row, where the row's numbers start, x, e, out, p, m, its mark, n, its first
    block of those of all, the two words of its key). x and p: of many, one number like theirs.
    """
    if MANY:
        task, tile = tile_of(programs)
        x, start = numbers_of(table, task, x, EVEN)
        e = tensor_of(table, task, 1, EVEN)
        out = tensor_of(target, task, 2 if END == 1 else 0, EVEN)
        if END == 1:
            p, start = numbers_of(target, task, p, EVEN)
            m = tensor_of(target, task, 1, EVEN)
        _place, n = wire_of(table, task)
        key0, key1 = shared_key_of(keys, task)
        if SIGNS == 1:
            bad = bad + task
        head = tl.load(heads + task)
    else:
        row = tl.program_id(1).to(tl.int64)
        tile = tl.program_id(0).to(tl.int64)
        n = tile - tile + n
        start = row * n
        head = row * nb
    return tile, start, x, e, out, p, m, bad, n, head, key0, key1


@triton.jit(do_not_specialize=["key0", "key1", "step"])
def _rotate(
    table, programs, target, keys, heads, x, e, out, p, m, tops, bad, n, nb, key0, key1, step,
    LOG: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, SIGNS: tl.constexpr, END: tl.constexpr,
    HAS_MEMORY: tl.constexpr, HAS_SECOND: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Blocks of ``2**LOG`` numbers of ``x + e``; where they are longer than a tile, in two passes.

    SIGNS: 0 none, 1 before, 2 after. END: what becomes of out; ``p + m`` is what is subtracted from. With signs before, a mark
    if x + e is not finite. tops: the largest magnitudes of long blocks. target: of many, where out, p and m are.
    """
    tile, start, x, e, out, p, m, bad, n, head, key0, key1 = _turner_at(
        table, programs, target, keys, heads, x, e, out, p, m, bad, n, nb, key0, key1, SIGNS, END, MANY, EVEN
    )
    lane = tl.arange(0, TILE)
    first = tile * TILE
    i = first + lane
    COLUMNS: tl.constexpr = TILE if FIRST else TILE * TILE >> LOG
    if FIRST == 0:  # numbers of one block, COLUMNS side by side, TILE apart
        per = TILE // COLUMNS
        i = (tile // per << LOG) + (lane // COLUMNS) * TILE + (tile % per) * COLUMNS + lane % COLUMNS
    inside = i < n
    at = start + i
    y = load_sum(x, e, at, inside, HAS_MEMORY)
    size = pieces_at(i, n, LOG)
    if FIRST and SIGNS == 1:
        mark_if(bad, magnitude(y) >= 0x7F800000)
        y = tl.where(signs_of_tile(key0, key1, step, first, TILE) == 1, negated(y), y)
    if FIRST and LAST:
        top = tl.max(tl.reshape(magnitude(y), (TILE >> LOG, 1 << LOG)), 1)
        top = tl.reshape(tl.broadcast_to(top[:, None], (TILE >> LOG, 1 << LOG)), (TILE,))
    else:
        top = magnitude(tl.load(tops + head + (i >> LOG), inside, 0.0))
    large = top > 0x6F800000  # 2**96
    if FIRST:
        y = tl.where(large, y * 2.3283064365386963e-10, y)
        for t in tl.static_range(0, LOG if LAST else 12):
            y = turn_pairs(y, size, 1 << t, 1 << t, TILE)
    else:
        for t in tl.static_range(0, LOG - 12):
            y = turn_pairs(y, size, TILE << t, COLUMNS << t, TILE)
    if LAST:
        y = y * root_of(size)
        most = 3.4028234663852886e38 * 2.3283064365386963e-10
        y = tl.where(large, tl.minimum(tl.maximum(y, -most), most) * 4294967296.0, y)
        if SIGNS == 2:
            if FIRST:
                minus = signs_of_tile(key0, key1, step, first, TILE)
            else:
                minus = signs_at(key0, key1, step, i)
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
    (b, n), bad = rows.shape, Marks(rows)
    y = torch.empty_like(rows, dtype=torch.float32)
    _launch(rows, memory, y, block, 1, rng, bad=bad.words)
    rms = _standard(euclidean_norm(y, None, block), block_roots(n, block, rows))
    pieces = block_count(min(block, max(1, n)), _PIECE)
    grid = block_count(rms.shape[1] * pieces, _ROWS), b
    scale = _scales(grid, (None, None, None, y, rms), n, bits, block, pieces, unbiased, MANY=False, EVEN=False)
    job = Rows(y, None, None, rotated_bytes(n, bits, block))
    wire, _finite = _write_codes(job, rms, scale, bits, block, rest is not None)
    if rest is not None:
        _launch(y, None, rest, block, 2, rng, _SUBTRACT, rows, memory)
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
    _launch(total, None, out, block, 2, rng, _ADD if add else _REPLACE)
    marks.refuse(0, lambda: PayloadError(BAD_SCALE))


def sum_rotated_many(rows: Tensor, many: Many, bits: int, block: int, weight: float, step: int) -> Tensor:
    legal = add_up_many(_sum, rows, many, block, weight, 1, _book(bits, rows.device)[0], BITS=bits)
    _launch_many(many, many, block, 2, 0, step, _REPLACE)
    return legal


def rotate_many(storage: Tensor, many: Many, into: Many, block: int, salt: int, step: int) -> Tensor:
    marks = Marks(many.table, len(many))
    _launch_many(many, into, block, 1, salt, step, _SET, marks.words)
    return many.all_of(marks.words)


def rotate_norms_many(storage: Tensor, many: Many, block: int, salt: int, step: int) -> tuple[Tensor, Tensor]:
    assert many.work is not None
    finite = rotate_many(storage, many, many.work, block, salt, step)
    return euclidean_norm_of_many(many.work, block), finite


def rotate_back_many(
    storage: Tensor, many: Many, into: Many, block: int, salt: int, step: int, *, subtract: bool = False
) -> None:
    _launch_many(many, into, block, 2, salt, step, _SUBTRACT if subtract else _SET)


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
    """Rotates the blocks of ``x + e``; where out is not just set to them, x is written over."""
    (b, n), log = x.shape, block.bit_length() - 1
    key0, key1, step = (0, 0, 0) if rng is None else (*map(signed, rng.key()), step_word(rng.step, x.device))
    nb, bad = block_count(n, block), Marks(x).words if bad is None and signs == 1 else bad
    knobs = {"LOG": log, "SIGNS": signs, "HAS_SECOND": m is not None, "MANY": False, "EVEN": False}
    if block <= _LONGEST:
        tile = max(block, TILE)
        launch(_rotate, (block_count(n, tile), b), *_NO_TABLE, x, e, out, p, m, None, bad, n, nb, key0, key1, step,
               **knobs, FIRST=True, LAST=True, END=end, HAS_MEMORY=e is not None, TILE=tile)  # fmt: skip
        return
    tops = largest(x, e, block)
    y = out if end == _SET else x
    launch(_rotate, (block_count(n, _LONGEST), b), *_NO_TABLE, x, e, y, None, None, tops, bad, n, nb, key0, key1, step,
           **knobs, FIRST=True, LAST=False, END=_SET, HAS_MEMORY=e is not None, TILE=_LONGEST)  # fmt: skip
    launch(_rotate, (nb * (block // _LONGEST), b), *_NO_TABLE, y, None, out, p, m, tops, bad, n, nb, key0, key1, step,
           **knobs, FIRST=False, LAST=True, END=end, HAS_MEMORY=False, TILE=_LONGEST)  # fmt: skip


def _launch_many(
    many: Many, into: Many, block: int, signs: int, salt: int, step: int, end: int, bad: Tensor | None = None
) -> None:
    """As :func:`_launch`, of x and e of ``many``; out, p and m are those of ``into``."""
    adds = signs == 1 and many.memories is not None
    heads, keys, word = many.heads(block), many.shared_keys(salt), step_word(step, many.device)
    tops = None if block <= _LONGEST else largest_of_many(many, block, adds=adds)

    def turn(source: Many, target: Many, tiles: Tensor, end: int, **how: int) -> None:
        p = target.like if end == _SUBTRACT else None
        launch(_rotate, (len(tiles),), source.table, tiles, target.table, keys, heads, source.like, None, None, p, None,
               tops, bad, None, None, None, None, word, LOG=block.bit_length() - 1, SIGNS=signs, END=end,
               HAS_SECOND=target.memories is not None, MANY=True, EVEN=source.even and target.even, **how)  # fmt: skip

    tile = min(max(block, TILE), _LONGEST)
    if tops is None:
        turn(many, into, many.tiles(tile), end, FIRST=True, LAST=True, HAS_MEMORY=adds, TILE=tile)
        return
    middle = into if end == _SET else many
    turn(many, middle, many.tiles(tile), _SET, FIRST=True, LAST=False, HAS_MEMORY=adds, TILE=tile)
    columns = many.tiles(1, block=block, pieces=block // tile)
    turn(middle, into, columns, end, FIRST=False, LAST=True, HAS_MEMORY=False, TILE=tile)


def _plain(rows: Tensor) -> bool:
    return rows.dtype is torch.float32 and rows.is_contiguous() and rows.numel() > 0


@functools.lru_cache(maxsize=32)
def _book(bits: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The centroids, ascending, and the numbers between them, on a device; copied there once."""
    half = torch.tensor(CENTROIDS[bits], dtype=torch.float32)
    book = torch.cat((-half.flip(0), half))
    middle = (book[1:].double() + book[:-1].double()).div_(2).float()
    return book.to(device), middle.to(device)
