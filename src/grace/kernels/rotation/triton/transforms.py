"""Rotations of blocks: up to 4,096 numbers in one pass, on the chip; a longer one in two.

The pairs of a transform are taken apart and joined by reshaping, at distances 1, 2, 4, ..., which is the reference's order of
additions. What is left of a row after its last whole block has shorter pieces: at a distance beyond a number's piece nothing
happens to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, launch, signed
from grace.flags.capturing import step_word
from grace.kernels.blocks import block_count
from grace.kernels.statistics.triton import largest, largest_of_many
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.triton import numbers_of, shared_key_of, tensor_of, tile_of, wire_of
from grace.kernels.triton import (
    count_at,
    load_sum,
    load_tile,
    magnitude,
    mark_if,
    negated,
    pieces_at,
    root_of,
    store_tile,
    turn_pairs,
)
from grace.random.triton import sign_words, signs_at, signs_of_tile

if TYPE_CHECKING:
    from grace.random import Stream

SET, SUBTRACT, REPLACE, ADD = range(4)  # out = y, p - y, 0 + y, out + y
_LONGEST = 4096  # numbers that a program holds


@triton.jit
def _turner_at(
    table, programs, target, keys, heads, x, e, out, p, m, bad, n, nb, key0, key1, apart,
    SIGNS: tl.constexpr, END: tl.constexpr, MANY: tl.constexpr, KEYED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The input of one rotating program: (which tile of its row, where the row's numbers start, x, e, out, p, m, its status
    flag, n, its first block of those of all, the two words of its key). x and p: of many, one number like theirs.
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
        if KEYED:
            key0, key1 = count_at(keys + row * apart), count_at(keys + row * apart + 4)
    return tile, start, x, e, out, p, m, bad, n, head, key0, key1


@triton.jit
def _apart(y, LOG: tl.constexpr):
    """``[M, 2**LOG]`` -> its columns, ``[M]`` each, which a thread holds side by side."""
    M: tl.constexpr = y.numel >> LOG
    ys = (y,)
    for t in tl.static_range(0, LOG):
        low = ()
        high = ()
        for k in tl.static_range(0, 1 << t):
            if t == LOG - 1:
                p, q = tl.split(tl.reshape(ys[k], (M, 2)))
            else:
                p, q = tl.split(tl.reshape(ys[k], (M, 1 << (LOG - 1 - t), 2)))
            low += (p,)
            high += (q,)
        ys = low + high
    return ys


@triton.jit
def _together(ys, LOG: tl.constexpr):
    """The other way around: ``[M, 2, ..., 2]`` of columns ``[M]``."""
    for t in tl.static_range(0, LOG):
        joined = ()
        for k in tl.static_range(0, 1 << (LOG - 1 - t)):
            joined += (tl.join(ys[k], ys[k + (1 << (LOG - 1 - t))]),)
        ys = joined
    return ys[0]


@triton.jit
def _turn_columns(ys, LOG: tl.constexpr):
    """Columns p and q at distances 1, 2, 4, ..., become p + q and p - q, LOG times."""
    for t in tl.static_range(0, LOG):
        turned = ()
        for k in tl.static_range(0, len(ys)):
            if (k >> t) & 1:
                turned += (ys[k - (1 << t)] - ys[k],)
            else:
                turned += (ys[k] + ys[k + (1 << t)],)
        ys = turned
    return ys


@triton.jit
def _signed(y, words, bit):
    """Float32 y with its sign turned where this bit, or these, of the uint32 words is set."""
    sign = (words << (31 - bit)) & 0x80000000
    return (y.to(tl.uint32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def _ended(y, out, p, m, at, inside, full, END: tl.constexpr, HAS_SECOND: tl.constexpr):
    """The new value of out at ``at``."""
    if END == 1:
        whole = load_sum(p, m, at, inside, HAS_SECOND, full)
        y = whole - y
    elif END == 2:
        y = y + 0.0
    elif END == 3:
        y = load_tile(out + at, inside, full) + y
    return y


@triton.jit
def _turn_whole(
    y, out, p, m, start, first, key0, key1, step,
    LOG: tl.constexpr, SIGNS: tl.constexpr, END: tl.constexpr, HAS_SECOND: tl.constexpr,
):  # fmt: skip
    """Whole blocks of ``2**LOG`` of the 1,024 numbers y, none of them large, by one warp: each thread adds and subtracts what
    it holds, 32 numbers side by side, then 32 that are 32 apart.
    """
    LOW: tl.constexpr = LOG if LOG < 5 else 5
    words = sign_words(key0, key1, step, first, 1024) if SIGNS else 0
    ys = _apart(tl.reshape(y, (32, 32)), 5)
    if SIGNS == 1:
        turned = ()
        for k in tl.static_range(0, 32):
            turned += (_signed(ys[k], words, k),)
        ys = turned
    ys = _turn_columns(ys, LOW)
    y = tl.permute(tl.reshape(_together(ys, 5), (32, 32)), (1, 0))
    ys = _turn_columns(_apart(y, 5), LOG - LOW)
    lane = tl.arange(0, 32)
    root = root_of(tl.full((32,), 1 << LOG, tl.int32))
    if SIGNS == 2:
        rows = _apart(tl.reshape(words, (1, 32)), 5)
    for k in tl.static_range(0, 32):
        y = ys[k] * root
        if SIGNS == 2:
            y = _signed(y, rows[k], lane.to(tl.uint32))
        at = start + first + 32 * k + lane
        tl.store(out + at, _ended(y, out, p, m, at, None, True, END, HAS_SECOND))


@triton.jit(do_not_specialize=["key0", "key1", "step", "apart"])
def _rotate(
    table, programs, target, keys, heads, x, e, out, p, m, tops, bad, n, nb, key0, key1, step, apart,
    LOG: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, SIGNS: tl.constexpr, END: tl.constexpr,
    HAS_MEMORY: tl.constexpr, HAS_SECOND: tl.constexpr, MANY: tl.constexpr, KEYED: tl.constexpr, EVEN: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Blocks of ``2**LOG`` numbers of ``x + e``; where they are longer than a tile, in two passes.

    SIGNS: 0 none, 1 before, 2 after. END: what becomes of out; ``p + m`` is what is subtracted from. With signs before, a mark
    if x + e is not finite. tops: the largest magnitudes of long blocks. target: of many, where out, p and m are. KEYED: the
    keys are the first bytes of wires, uint8, which are so many bytes ``apart``.
    """
    tile, start, x, e, out, p, m, bad, n, head, key0, key1 = _turner_at(
        table,
        programs,
        target,
        keys,
        heads,
        x,
        e,
        out,
        p,
        m,
        bad,
        n,
        nb,
        key0,
        key1,
        apart,
        SIGNS,
        END,
        MANY,
        KEYED,
        EVEN,
    )
    full = n - tile * TILE >= TILE
    if LAST and TILE == 1024:
        if full:
            y = load_sum(x, e, start + tile * TILE + tl.arange(0, TILE), None, HAS_MEMORY, True)
            full = tl.max(magnitude(y), 0) <= 0x6F800000  # 2**96
            if full:
                _turn_whole(y, out, p, m, start, tile * TILE, key0, key1, step, LOG, SIGNS, END, HAS_SECOND)
        if full == 0:
            _turn_any(
                tile, start, x, e, out, p, m, tops, bad, n, head, key0, key1, step,
                LOG, FIRST, LAST, SIGNS, END, HAS_MEMORY, HAS_SECOND, TILE,
            )  # fmt: skip
    else:
        _turn_any(
            tile, start, x, e, out, p, m, tops, bad, n, head, key0, key1, step,
            LOG, FIRST, LAST, SIGNS, END, HAS_MEMORY, HAS_SECOND, TILE,
        )  # fmt: skip


@triton.jit
def top_of_blocks(y, LOG: tl.constexpr, TILE: tl.constexpr):
    """``[TILE]`` int32: for each number the largest magnitude of its block of ``2**LOG``."""
    top = tl.max(tl.reshape(magnitude(y), (TILE >> LOG, 1 << LOG)), 1)
    return tl.reshape(tl.broadcast_to(top[:, None], (TILE >> LOG, 1 << LOG)), (TILE,))


@triton.jit
def scaled_back(y, size, large):
    """Sums of ``size`` numbers times 1/sqrt(size), at their size where the block was transformed at 2**-32 of it."""
    y = y * root_of(size)
    most = 3.4028234663852886e38 * 2.3283064365386963e-10
    return tl.where(large, tl.minimum(tl.maximum(y, -most), most) * 4294967296.0, y)


@triton.jit
def turn_back(y, size, key0, key1, step, first, LOG: tl.constexpr, TILE: tl.constexpr):
    """``D H y`` of a tile of whole blocks, or of the last one, with these pieces: ``first`` is the tile's first number."""
    large = top_of_blocks(y, LOG, TILE) > 0x6F800000  # 2**96
    y = tl.where(large, y * 2.3283064365386963e-10, y)
    for t in tl.static_range(0, LOG):
        y = turn_pairs(y, size, 1 << t, 1 << t, TILE)
    y = scaled_back(y, size, large)
    return tl.where(signs_of_tile(key0, key1, step, first, TILE) == 1, negated(y), y)


@triton.jit
def _turn_any(
    tile, start, x, e, out, p, m, tops, bad, n, head, key0, key1, step,
    LOG: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, SIGNS: tl.constexpr, END: tl.constexpr,
    HAS_MEMORY: tl.constexpr, HAS_SECOND: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A tile of any numbers of any blocks, of which the last one may be shorter."""
    lane = tl.arange(0, TILE)
    COLUMNS: tl.constexpr = TILE if FIRST else TILE * TILE >> LOG
    PER: tl.constexpr = TILE // COLUMNS
    first = tile * TILE
    if FIRST:
        origin = first >> LOG << LOG  # where the block, or the first of them, begins
        r = (first - origin).to(tl.int32) + lane
        full = n - first >= TILE
    else:  # numbers of one block, COLUMNS side by side, TILE apart
        origin = tile // PER << LOG
        r = (lane // COLUMNS) * TILE + (tile % PER).to(tl.int32) * COLUMNS + lane % COLUMNS
        full = n - origin >= 1 << LOG
    left = tl.minimum(n - origin, 1 << 30).to(tl.int32)
    at = start + origin + r
    inside = r < left
    y = load_sum(x, e, at, inside, HAS_MEMORY, full)
    size = pieces_at(r, left, LOG)
    if FIRST and SIGNS == 1:
        mark_if(bad, magnitude(y) >= 0x7F800000)
        y = tl.where(signs_of_tile(key0, key1, step, first, TILE) == 1, negated(y), y)
    if FIRST and LAST:
        top = top_of_blocks(y, LOG, TILE)
    else:
        top = magnitude(tl.load(tops + head + (origin >> LOG)))
    large = top > 0x6F800000  # 2**96
    if FIRST:
        y = tl.where(large, y * 2.3283064365386963e-10, y)
        for t in tl.static_range(0, LOG if LAST else 12):
            y = turn_pairs(y, size, 1 << t, 1 << t, TILE)
    else:
        for t in tl.static_range(0, LOG - 12):
            y = turn_pairs(y, size, TILE << t, COLUMNS << t, TILE)
    if LAST:
        y = scaled_back(y, size, large)
        if SIGNS == 2:
            if FIRST:
                minus = signs_of_tile(key0, key1, step, first, TILE)
            else:
                minus = signs_at(key0, key1, step, origin + r)
            y = tl.where(minus == 1, negated(y), y)
        y = _ended(y, out, p, m, at, inside, full, END, HAS_SECOND)
    store_tile(out + at, y, inside, full)


def turn(
    x: Tensor,
    e: Tensor | None,
    out: Tensor,
    block: int,
    signs: int,
    rng: Stream | None,
    end: int = SET,
    p: Tensor | None = None,
    m: Tensor | None = None,
    bad: Tensor | None = None,
    keys: Tensor | None = None,
) -> None:
    """Rotates the blocks of ``x + e``, of rows ``[b, n]``; where out is not just set to them, x is written over. keys: wires
    ``[b, w]`` uint8 that begin with each row's key, where it is not that of ``rng``.
    """
    (b, n), log = x.shape, block.bit_length() - 1
    key0, key1, step = (0, 0, 0) if rng is None else (*map(signed, rng.key()), step_word(rng.step, x.device))
    nb, bad = block_count(n, block), Marks(x).clean if bad is None and signs == 1 else bad
    table, apart = (None, None, None, keys, None), 0 if keys is None else keys.stride(0)
    knobs = {"LOG": log, "SIGNS": signs, "HAS_SECOND": m is not None, "MANY": False, "KEYED": keys is not None,
             "EVEN": False}  # fmt: skip
    if block <= _LONGEST:
        tile = max(block, TILE)
        launch(_rotate, (block_count(n, tile), b), *table, x, e, out, p, m, None, bad, n, nb, key0, key1, step, apart,
               **knobs, FIRST=True, LAST=True, END=end, HAS_MEMORY=e is not None, TILE=tile, **_warps(tile))  # fmt: skip
        return
    tops = largest(x, e, block)
    y = out if end == SET else x
    launch(_rotate, (block_count(n, _LONGEST), b), *table, x, e, y, None, None, tops, bad, n, nb, key0, key1, step,
           apart, **knobs, FIRST=True, LAST=False, END=SET, HAS_MEMORY=e is not None, TILE=_LONGEST)  # fmt: skip
    launch(_rotate, (nb * (block // _LONGEST), b), *table, y, None, out, p, m, tops, bad, n, nb, key0, key1, step,
           apart, **knobs, FIRST=False, LAST=True, END=end, HAS_MEMORY=False, TILE=_LONGEST)  # fmt: skip


def turn_many(
    many: TensorList,
    into: TensorList,
    block: int,
    signs: int,
    salt: int,
    step: int,
    end: int,
    bad: Tensor | None = None,
    *,
    own: bool = False,
) -> None:
    """As :func:`turn`, of x and e of ``many``; out, p and m are those of ``into``. own: each tensor by its own stream."""
    adds = signs == 1 and many.memories is not None
    heads, keys, word = many.heads(block), many.keys(salt, own=own), step_word(step, many.device)
    tops = None if block <= _LONGEST else largest_of_many(many, block, adds=adds)

    def launch_pass(source: TensorList, target: TensorList, tiles: Tensor, end: int, **how: int) -> None:
        p = target.like if end == SUBTRACT else None
        launch(_rotate, (len(tiles),), source.table, tiles, target.table, keys, heads, source.like, None, None, p, None,
               tops, bad, None, None, None, None, word, None, LOG=block.bit_length() - 1, SIGNS=signs, END=end,
               HAS_SECOND=target.memories is not None, MANY=True, KEYED=False,
               EVEN=source.even and target.even, **how)  # fmt: skip

    tile = min(max(block, TILE), _LONGEST)
    if tops is None:
        launch_pass(
            many, into, many.tiles(tile), end, FIRST=True, LAST=True, HAS_MEMORY=adds, TILE=tile, **_warps(tile)
        )
        return
    middle = into if end == SET else many
    launch_pass(many, middle, many.tiles(tile), SET, FIRST=True, LAST=False, HAS_MEMORY=adds, TILE=tile)
    columns = many.tiles(1, block=block, pieces=block // tile)
    launch_pass(middle, into, columns, end, FIRST=False, LAST=True, HAS_MEMORY=False, TILE=tile)


def _warps(tile: int) -> dict[str, int]:
    """Options of launches: a tile of 1,024 numbers runs by one warp, of which at least 16 find room on a multiprocessor."""
    return {"num_warps": 1, "maxnreg": 128} if tile == TILE else {}
