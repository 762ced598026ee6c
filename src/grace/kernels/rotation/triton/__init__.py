"""Rotations as Triton kernels, and codes of rotated numbers. The rotation itself is in ``transforms``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.host import to_device
from grace.compute.launching import TILE, Marks, check_rows, launch
from grace.errors import PayloadError
from grace.flags.capturing import step_word
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count, block_roots
from grace.kernels.rotation import BAD_SCALE, CENTROIDS, KEY, MOST_AT_ONCE, CentroidCode
from grace.kernels.rotation.triton.transforms import ADD, REPLACE, SET, SUBTRACT, turn, turn_back, turn_many
from grace.kernels.statistics.triton import euclidean_norm, euclidean_norm_of_many
from grace.kernels.stochastic_levels import MOST
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.jobs import Job, Rows, Tensors, add_up, add_up_many
from grace.kernels.tensor_list.triton import adder_at, blocks_at, code_width, encoder_at, shared_key_of, so_far
from grace.kernels.triton import (
    count_at,
    halves,
    join_pieces_kernel,
    load_code,
    load_float,
    load_tile,
    magnitude,
    mark_if,
    negated,
    pieces_at,
    store_codes,
    store_float,
    store_tile,
    store_word,
)

if TYPE_CHECKING:
    from grace.random import Stream

_PIECE, _LANES, _ROWS = 4096, 16, 8


@triton.jit
def _code_of(y, rms, middle, BITS: tl.constexpr):
    """(the codes int32 of rotated numbers, the numbers in units of ``rms``, which may be one for all)."""
    live = rms > 0
    unit = tl.where(live, tl.div_rn(y, tl.zeros_like(y) + tl.where(live, rms, 1.0)), 0.0)
    other = negated(unit)
    HALF: tl.constexpr = (1 << BITS) >> 1
    below = tl.where(tl.load(middle + HALF - 1) < other, HALF, 0)  # how many middles are below -unit
    for t in tl.static_range(1, BITS):
        half = (1 << BITS) >> (t + 1)
        below += tl.where(tl.load(middle + below + half - 1) < other, half, 0)
    return (1 << BITS) - 1 - below, unit


@triton.jit
def _centroid(book, code, BITS: tl.constexpr):
    """float32: what codes say."""
    if BITS == 1:
        centroid = tl.where(code == 1, tl.load(book + 1), tl.load(book))
    else:
        centroid = tl.load(book + code)
    return centroid


@triton.jit
def _of_block(table, first, lane, inside, LOG: tl.constexpr, TILE: tl.constexpr):
    """float32: of each number of a tile from ``first`` on what a table has for its block; a scalar where all are of one."""
    if TILE >> LOG < 2:
        value = tl.load(table + (first >> LOG))
    else:
        value = tl.load(table + (first >> LOG) + (lane >> LOG), inside, 0.0)
    return value


@triton.jit
def _sums(
    table, programs, heads, x, rms, book, middle, out, top, n, block, pieces, turns, plane,
    BITS: tl.constexpr, SQUARES: tl.constexpr, LONG: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """``out [2, plane]`` float64: of each piece of 4,096 numbers the ordered sums of ``c u``, and of ``u u``, or of ``c c``
    with ``SQUARES``; c the centroid of u. ``top``, int32, zeros before: for each block the largest magnitude of c. LONG:
    whether blocks have several pieces.
    """
    tile, x, n, nb, head = blocks_at(table, programs, heads, x, n, block, MANY, EVEN)
    rms, top, out, count = rms + head, top + head, out + head * pieces, nb * pieces
    j = tile * ROWS + tl.arange(0, ROWS)
    if LONG:
        k = j // pieces
        begin = (j % pieces) * 4096
    else:
        k = j
        begin = j - j
    start = k * block + begin
    left = tl.where(j < count, tl.minimum(tl.minimum(block - begin, n - start), 4096), 0).to(tl.int32)
    lane = tl.arange(0, 16)
    at = x + start[:, None] + lane[None, :]
    unit_of = tl.broadcast_to(tl.load(rms + k, j < count, 0.0)[:, None], (ROWS, 16))
    product = tl.zeros((ROWS, 16), tl.float64)
    square = tl.zeros((ROWS, 16), tl.float64)
    most = tl.zeros((ROWS, 16), tl.int32)
    for t in tl.range(turns, loop_unroll_factor=8):
        inside = (16 * t + lane)[None, :] < left[:, None]
        code, unit = _code_of(tl.load(at + 16 * t, inside, 0.0), unit_of, middle, BITS)
        centroid = tl.where(inside, _centroid(book, code, BITS), 0.0)
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


@triton.jit(do_not_specialize=["key0", "key1", "step"])
def _write(
    table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, step, block, rms, scales, book, middle,
    keys, BITS: tl.constexpr, SAY: tl.constexpr, LOG: tl.constexpr, MANY: tl.constexpr, KEYED: tl.constexpr,
    EVEN: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Scales and codes of the rotated numbers x. SAY: x becomes what they say of it. LOG: of unclipped blocks. KEYED: the
    wire begins with the key, which of many is in ``keys``.
    """
    task, tile, x, e, rest, start, n, base, bad, head, nb, key0, key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    if KEYED:
        if MANY:
            key0, key1 = shared_key_of(keys, task)
        half = tl.arange(0, 2)
        store_word(base + 4 * half, tl.where(half == 0, key0, key1), (tile == 0) & (half < 2))
        base += 8
    SIZE: tl.constexpr = 8 * G
    first = tile * SIZE
    lane = tl.arange(0, G)[:, None] * 8 + tl.arange(0, 8)[None, :]
    inside, full = lane < tl.minimum(n - first, SIZE).to(tl.int32), n - first >= SIZE
    at = x + start + first + lane
    number = load_tile(at, inside, full)
    code, _unit = _code_of(number, _of_block(rms + head, first, lane, inside, LOG, SIZE), middle, BITS)
    code = tl.where(inside, code, 0)
    k = (first >> LOG) + tl.arange(0, SIZE >> LOG if LOG < 10 else 1)  # the blocks that begin here
    begins = (k < nb) & (k << LOG >= first)
    store_float(base + 4 * k, tl.load(scales + head + k, begins, 0.0), begins)
    store_codes(base + 4 * nb, code, first, n, code_width(n, BITS), BITS, G)
    if SAY:
        scale = _of_block(scales + head, first, lane, inside, LOG, SIZE)
        store_tile(at, _centroid(book, code, BITS) * scale, inside, full)


@triton.jit(do_not_specialize=["weight", "n"])
def _sum(
    table, programs, wires, out, marks, n, W, stride, row_stride, block, weight, book,
    KEY: tl.constexpr, BITS: tl.constexpr, LOG: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Decodes rotated numbers from wires and adds them up. KEY: bytes in front of each."""
    out, first, n, base, marks, nb = adder_at(
        table, programs, wires, out, marks, n, row_stride, block, 1, MANY, EVEN, TILE
    )
    base += KEY
    lane = tl.arange(0, TILE)
    inside, full = lane < tl.minimum(n - first, TILE).to(tl.int32), n - first >= TILE
    total = so_far(out + first, lane, n - first, ADD)
    ahead = first // 8 * BITS  # bytes of codes of the numbers before
    width = tl.minimum(code_width(n, BITS) - ahead, TILE).to(tl.int32)
    wrong = lane < 0
    k = tl.zeros((1,), tl.int32) if TILE >> LOG < 2 else lane >> LOG
    for _ in range(W):
        scale = load_float(base + 4 * (first >> LOG) + 4 * k, k < nb - (first >> LOG))
        code, _good = load_code(base + 4 * nb + ahead, lane, inside, width, BITS)
        centroid = _centroid(book, code, BITS)
        wrong |= (scale >= 0) & (tl.abs(centroid * scale) < float("inf")) == 0
        total += centroid * (scale * weight)
        base += stride
    mark_if(marks, inside & wrong)
    store_tile(out + first + lane, total, inside, full)


@triton.jit(do_not_specialize=["weight", "n", "step"])
def _sum_back(
    table, programs, wires, out, marks, n, W, stride, row_stride, block, weight, book, step,
    BITS: tl.constexpr, LOG: tl.constexpr, MANY: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Decodes wires, rotates each back by the key that it begins with, and adds them up: nothing is stored on the way. A
    tile holds whole blocks.
    """
    out, first, n, base, marks, nb = adder_at(
        table, programs, wires, out, marks, n, row_stride, block, 1, MANY, EVEN, TILE
    )
    lane = tl.arange(0, TILE)
    left = tl.minimum(n - first, TILE).to(tl.int32)
    inside, full = lane < left, n - first >= TILE
    total = so_far(out + first, lane, n - first, ADD)
    size = pieces_at(lane, left, LOG)
    ahead = first // 8 * BITS  # bytes of codes of the numbers before
    width = tl.minimum(code_width(n, BITS) - ahead, TILE).to(tl.int32)
    wrong = lane < 0
    k = tl.zeros((1,), tl.int32) if TILE >> LOG < 2 else lane >> LOG
    for _ in range(W):
        scale = load_float(base + 8 + 4 * (first >> LOG) + 4 * k, k < nb - (first >> LOG))
        code, _good = load_code(base + 8 + 4 * nb + ahead, lane, inside, width, BITS)
        centroid = tl.where(inside, _centroid(book, code, BITS), 0.0)
        wrong |= (scale >= 0) & (tl.abs(centroid * scale) < float("inf")) == 0
        total += turn_back(
            centroid * (scale * weight), size, count_at(base), count_at(base + 4), step, first, LOG, TILE
        )
        base += stride
    mark_if(marks, inside & wrong)
    store_tile(out + first + lane, total, inside, full)


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
    turn(rows, memory, out, block, 1, rng, bad=bad.clean)
    return euclidean_norm(out, None, block), bad.unset()


def encode_rotated(
    rows: Tensor, code: CentroidCode, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    check_rows(rows=rows, memory=memory, rest=rest)
    (b, n), block, bad = rows.shape, code.block, Marks(rows)
    y = torch.empty_like(rows, dtype=torch.float32)
    turn(rows, memory, y, block, 1, rng, bad=bad.clean)
    rms = _standard(euclidean_norm(y, None, block), block_roots(n, block, rows))
    pieces = block_count(min(block, max(1, n)), _PIECE)
    grid = block_count(rms.shape[1] * pieces, _ROWS), b
    scale = _scales(grid, (None, None, None, y, rms), n, code, pieces, MANY=False, EVEN=False)
    job = Rows(y, None, None, code.payload(n), rng if code.private else None)
    wire, _finite = _write_codes(job, rms, scale, code, rest is not None)
    if rest is not None:
        turn(y, None, rest, block, 2, rng, SUBTRACT, rows, memory)
    return wire, bad.unset()


def encode_rotated_many(message: Tensor, many: TensorList, code: CentroidCode, step: int) -> Tensor:
    work, block, marks = many.work, code.block, Marks(many.table, len(many))
    assert work is not None
    turn_many(many, work, block, 1, 0, step, SET, marks.clean, own=code.private)
    rms = _standard(euclidean_norm_of_many(work, block), work.roots(block))
    clip = work.clip(block)
    pieces = block_count(clip, _PIECE)
    tiles = work.tiles(_ROWS, block=clip, pieces=pieces)
    given = (work.table, tiles, work.heads(clip), work.like, rms)
    scale = _scales((len(tiles),), given, None, code._replace(block=clip), pieces, MANY=True, EVEN=work.even)
    keep = many.rests is not None
    keys = many.keys(0, own=True) if code.private else None
    _write_codes(Tensors(message, work), rms, scale, code, keep, keys)
    if keep:
        turn_many(work, many, block, 2, 0, step, SUBTRACT, own=code.private)
    return many.all_of(marks.clean)


def sum_rotated(
    received: Sequence[Tensor], out: Tensor, code: CentroidCode, weight: float, rng: Stream, *, add: bool = False
) -> None:
    if code.private and code.block > MOST_AT_ONCE:
        _sum_one_by_one(received, out, code, weight, rng, add)
        return
    block, width, book = code.block, code.payload(out.shape[1]), _book(code.bits, out.device)[0]
    knobs: dict[str, Any] = {"BITS": code.bits, "LOG": _log(block)}
    if code.private:
        word, tile = step_word(rng.step, out.device), max(block, TILE)
        marks = add_up(_sum_back, received, out, width, block, weight, 1, book, word, add=add, tile=tile, **knobs)
        marks.refuse(0, lambda: PayloadError(BAD_SCALE))
        return
    total = torch.empty_like(out) if add else out
    marks = add_up(_sum, received, total, width, block, weight, 1, book, add=False, KEY=0, **knobs)
    turn(total, None, out, block, 2, rng, ADD if add else REPLACE)
    marks.refuse(0, lambda: PayloadError(BAD_SCALE))


def _sum_one_by_one(
    received: Sequence[Tensor], out: Tensor, code: CentroidCode, weight: float, rng: Stream, add: bool
) -> None:
    """As :func:`sum_rotated`, of private rotations of blocks that no program holds."""
    block, width, book = code.block, code.payload(out.shape[1]), _book(code.bits, out.device)[0]
    knobs: dict[str, Any] = {"BITS": code.bits, "LOG": _log(block)}
    decoded = torch.empty_like(out)
    if not add:
        out.zero_()
    for wire in received:
        marks = add_up(_sum, [wire], decoded, width, block, weight, 1, book, add=False, KEY=KEY, **knobs)
        turn(decoded, None, out, block, 2, rng, ADD, keys=wire)
        marks.refuse(0, lambda: PayloadError(BAD_SCALE))


def sum_rotated_many(rows: Tensor, many: TensorList, code: CentroidCode, weight: float, step: int) -> Tensor:
    block, book = code.block, _book(code.bits, rows.device)[0]
    knobs = {"BITS": code.bits, "LOG": _log(block)}
    if code.private:
        word, tile = step_word(step, many.device), max(block, TILE)
        return add_up_many(_sum_back, rows, many, block, weight, 1, book, word, tile=tile, **knobs)
    legal = add_up_many(_sum, rows, many, block, weight, 1, book, KEY=0, **knobs)
    turn_many(many, many, block, 2, 0, step, REPLACE)
    return legal


def rotate_many(storage: Tensor, many: TensorList, into: TensorList, block: int, salt: int, step: int) -> Tensor:
    marks = Marks(many.table, len(many))
    turn_many(many, into, block, 1, salt, step, SET, marks.clean)
    return many.all_of(marks.clean)


def rotate_norms_many(storage: Tensor, many: TensorList, block: int, salt: int, step: int) -> tuple[Tensor, Tensor]:
    assert many.work is not None
    finite = rotate_many(storage, many, many.work, block, salt, step)
    return euclidean_norm_of_many(many.work, block), finite


def rotate_back_many(
    storage: Tensor, many: TensorList, into: TensorList, block: int, salt: int, step: int, *, subtract: bool = False
) -> None:
    turn_many(many, into, block, 2, salt, step, SUBTRACT if subtract else SET)


def _standard(norms: Tensor, roots: Tensor) -> Tensor:
    """The root mean squares of blocks, ``[..., nb]``, from their norms and the roots of their sizes."""
    rms = norms / roots
    return rms.masked_fill_(rms < torch.finfo(torch.float32).tiny, 0.0)


def _scales(
    grid: tuple[int, ...], given: tuple[Any, ...], n: int | None, code: CentroidCode, pieces: int, **how: bool
) -> Tensor:
    """float32, like the root mean squares, which ``given`` ends with: the scales of rotated blocks."""
    rms, bits, block = given[-1], code.bits, code.block
    count, turns = rms.numel() * pieces, block_count(min(block, _PIECE), _LANES)
    parts = torch.empty(2, count, dtype=torch.float64, device=rms.device)
    top = torch.zeros(rms.shape, dtype=torch.int32, device=rms.device)
    launch(_sums, grid, *given, *_book(bits, rms.device), parts, top, n, block, pieces, turns, count, BITS=bits,
           SQUARES=not code.unbiased, LONG=pieces > 1, ROWS=_ROWS, **how)  # fmt: skip
    if pieces > 1:
        joined = torch.empty(2, rms.numel(), dtype=torch.float64, device=rms.device)
        launch(
            join_pieces_kernel, (block_count(joined.numel(), _ROWS),), parts, joined, joined.numel(), pieces, ROWS=_ROWS
        )
        parts = joined
    product, square = parts.view(2, *rms.shape)
    factor = square / product.clamp_min(1e-300) if code.unbiased else product / square
    most = MOST / top.view(torch.float32).clamp_min(1.0)  # so that no number of the block overflows
    return torch.minimum(factor * rms, most.double()).float()


def _write_codes(
    job: Job, rms: Tensor, scale: Tensor, code: CentroidCode, say: bool, keys: Tensor | None = None
) -> Any:
    """The wires of rotated numbers, which become what the wires say with ``say``; ``keys``: of many, in private."""
    return job.encode(
        _write, code.block, rms, scale, *_book(code.bits, rms.device), keys, BITS=code.bits, SAY=say, LOG=_log(code.block),
        KEYED=code.private, G=TILE // 8,
    )  # fmt: skip


def _turned(rows: Tensor, block: int, signs: int, rng: Stream | None) -> Tensor:
    out = torch.empty_like(rows)
    turn(rows, None, out, block, signs, rng)
    return out


def _plain(rows: Tensor) -> bool:
    return rows.dtype is torch.float32 and rows.is_contiguous() and rows.numel() > 0


def _log(block: int) -> int:
    return block.bit_length() - 1


@functools.cache
def _book(bits: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The centroids, ascending, and the numbers between them, on a device; copied there once."""
    half = torch.tensor(CENTROIDS[bits], dtype=torch.float32, device="cpu")
    book = torch.cat((-half.flip(0), half))
    middle = (book[1:].double() + book[:-1].double()).div_(2).float()
    return to_device(book, device, waits=True), to_device(middle, device, waits=True)
