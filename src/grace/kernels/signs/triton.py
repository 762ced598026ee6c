"""Signs, two means and votes as Triton kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.compute.launching import TILE, Marks, check_rows, even_runs, launch
from grace.errors import PayloadError
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count, block_sizes
from grace.kernels.many import Many
from grace.kernels.many.triton import tensor_of, tile_of, wire_of
from grace.kernels.packing import packed_bytes
from grace.kernels.signs import Zeros, votes_bytes
from grace.kernels.signs.rules import (
    ALL,
    BAD_VOTE,
    FIELDS,
    SIGNS,
    TWO_MEANS,
    VOTES,
    positive_zeros,
    split_wire,
    wire_bytes,
)
from grace.kernels.statistics.triton import (
    LOWER,
    UPPER,
    how_many,
    mean_magnitude,
    mean_magnitude_of_many,
    ordered_sum,
)
from grace.kernels.triton import (
    load_code,
    load_float,
    load_sum,
    magnitude,
    mark_if,
    negated,
    positions_of,
    store_codes,
    store_float,
    tile_positions,
)

# The rules VOTES, SIGNS and TWO_MEANS are also how many float32 fields a wire has for each block. A rule of this file is:
_TRITS = 3  # digits in base 3, for votes that may abstain


@triton.jit(do_not_specialize=["tau"])
def _encode(
    x, e, rest, wire, low, high, bad, n, block, nb, w, width, tau,
    RULE: tl.constexpr, ZEROS: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr,
    G: tl.constexpr, PER: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    first, i, counts = tile_positions(G, PER)
    _encode_tile(
        x, e, rest, wire + row * w, low + row * nb if RULE == 2 else low, high + row * nb if RULE >= 1 and RULE <= 2 else high,
        bad, row * n, first, i, counts & (i < n), n, block, nb, width, tau, RULE, ZEROS, HAS_MEMORY, HAS_REST, G,
    )  # fmt: skip


@triton.jit
def _encode_many(
    table, programs, wire, heads, high, bad, block,
    RULE: tl.constexpr, ZEROS: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, EVEN: tl.constexpr,
    G: tl.constexpr, PER: tl.constexpr,
):  # fmt: skip
    task, tile = tile_of(programs)
    x, e, rest = tensor_of(table, task, 0, EVEN), tensor_of(table, task, 1, EVEN), tensor_of(table, task, 2, EVEN)
    place, n = wire_of(table, task)
    first, i, counts = positions_of(tile, G, PER)
    _encode_tile(
        x, e, rest, wire + place, high, high + tl.load(heads + task) if RULE == 1 else high, bad + task, tile - tile, first, i,
        counts & (i < n), n, block, (n + block - 1) // block, (n + PER - 1) // PER, 0.0, RULE, ZEROS, HAS_MEMORY, HAS_REST, G,
    )  # fmt: skip


@triton.jit
def _encode_tile(
    x, e, rest, base, low, high, bad, start, first, i, inside, n, block, nb, width, tau,
    RULE: tl.constexpr, ZEROS: tl.constexpr, HAS_MEMORY: tl.constexpr, HAS_REST: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """The numbers i, from ``first`` on, of the row that begins at ``start``, and whose wire begins at ``base``."""
    p = load_sum(x, e, start + i, inside, HAS_MEMORY)
    mark_if(bad, magnitude(p) >= 0x7F800000)
    if RULE == 3:
        sign = tl.where(p > 0, 1, 0) - tl.where(p < 0, 1, 0)
        store_codes(base, tl.where(inside, sign + 1, 0), first, n, width, 0, G)
        value = sign.to(tl.float32)
    else:
        if RULE == 2:
            up = p >= tau
        elif ZEROS == 0:
            up = p >= 0
        elif ZEROS == 2:
            up = (p > 0) | ((p == 0) & ((i & 1) == 1))
        else:
            up = (p > 0) | ((p == 0) & ((i & 1) == 0))
        store_codes(base + 4 * RULE * nb, tl.where(up & inside, 1, 0), first, n, width, 1, G)
        k = i // block
        starts = inside & (i % block == 0)
        if RULE == 0:
            value = tl.where(up, 1.0, -1.0)
        elif RULE == 1:
            scale = tl.load(high + k, inside, 0.0)
            store_float(base + 4 * k, scale, starts)
            value = tl.where(up, scale, negated(scale))
        else:
            lower = tl.load(low + k, inside, 0.0)
            upper = tl.load(high + k, inside, 0.0)
            store_float(base + 4 * k, lower, starts)
            store_float(base + 4 * (nb + k), upper, starts)
            value = tl.where(up, upper, lower)
    if HAS_REST:
        tl.store(rest + start + i, p - value, inside)


@triton.jit(do_not_specialize=["weight"])
def _sum(
    wires, out, marks, W, stride, row_stride, n, block, nb, width, weight,
    RULE: tl.constexpr, ADD: tl.constexpr, MAJORITY: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    _sum_tile(
        wires + row * row_stride, out + row * n, marks, W, stride, i, n, block, nb, width, weight, RULE, ADD, MAJORITY, TILE
    )  # fmt: skip


@triton.jit(do_not_specialize=["weight"])
def _sum_many(
    table, programs, wires, marks, W, stride, block, weight,
    RULE: tl.constexpr, MAJORITY: tl.constexpr, EVEN: tl.constexpr, PER: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    task, tile = tile_of(programs)
    place, n = wire_of(table, task)
    _sum_tile(
        wires + place, tensor_of(table, task, 0, EVEN), marks + task, W, stride, tile * TILE + tl.arange(0, TILE), n, block,
        (n + block - 1) // block, (n + PER - 1) // PER, weight, RULE, False, MAJORITY, TILE,
    )  # fmt: skip


@triton.jit
def _sum_tile(
    base, out, marks, W, stride, i, n, block, nb, width, weight,
    RULE: tl.constexpr, ADD: tl.constexpr, MAJORITY: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The numbers i of a row, whose wires begin at ``base`` and every ``stride`` bytes behind it."""
    inside = i < n
    total = tl.zeros((TILE,), tl.float32)
    if ADD:
        total = tl.load(out + i, inside, 0.0)
    k = i // block
    for _ in range(W):
        if RULE == 3:
            digit, good = load_code(base, i, inside, width, 0)
            mark_if(marks, (good == 0) & inside)
            total += (digit - 1).to(tl.float32) * weight
        else:
            bit, _good = load_code(base + 4 * RULE * nb, i, inside, width, 1)
            if RULE == 0:
                high = tl.zeros_like(total) + 1.0 * weight
                low = negated(high)
            elif RULE == 1:
                head = load_float(base + 4 * k, inside)
                mark_if(marks, ((head >= 0) & (head < float("inf"))) == 0)
                high = head * weight
                low = negated(high)
            else:
                lower = load_float(base + 4 * k, inside)
                upper = load_float(base + 4 * (nb + k), inside)
                mark_if(marks, ((tl.abs(lower) < float("inf")) & (tl.abs(upper) < float("inf"))) == 0)
                high = upper * weight
                low = lower * weight
            total += tl.where(bit == 1, high, low)
        base += stride
    if MAJORITY:
        total = tl.where(total > 0, 1.0, tl.where(total < 0, -1.0, 0.0))
    tl.store(out + i, total, inside)


def encode_signs(
    rows: Tensor, block: int, phase: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    check_rows(rows=rows, memory=memory, rest=rest)
    return _write(SIGNS, rows, block, positive_zeros("parity", phase), 0.0, memory, rest)


def encode_two_means(
    rows: Tensor, tau: float, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    check_rows(rows=rows, memory=memory, rest=rest)
    return _write(TWO_MEANS, rows, block, ALL, tau, memory, rest)


def encode_votes(
    rows: Tensor, zero: Zeros, phase: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    check_rows(rows=rows, memory=memory, rest=rest)
    rule, zeros = (_TRITS, ALL) if zero == "abstain" else (VOTES, positive_zeros(zero, phase))
    return _write(rule, rows, max(1, rows.shape[1]), zeros, 0.0, memory, rest)


def sum_signs(received: Sequence[Tensor], out: Tensor, block: int, weight: float, *, add: bool = False) -> None:
    _add_up(SIGNS, received, out, block, weight, add)


def sum_two_means(received: Sequence[Tensor], out: Tensor, block: int, weight: float, *, add: bool = False) -> None:
    _add_up(TWO_MEANS, received, out, block, weight, add)


def sum_votes(received: Sequence[Tensor], out: Tensor, zero: Zeros, weight: float, *, add: bool = False) -> None:
    _add_up(_TRITS if zero == "abstain" else VOTES, received, out, max(1, out.shape[1]), weight, add)


def take_majority(received: Sequence[Tensor], out: Tensor, zero: Zeros, weight: float) -> None:
    weight = math.copysign(1.0, weight) if weight else 0.0
    rule = _TRITS if zero == "abstain" else VOTES
    _add_up(rule, received, out, max(1, out.shape[1]), weight, False, majority=True)


# ---- many tensors ---------------------------------------------------------------------------------------------------
def encode_signs_many(message: Tensor, many: Many, block: int, phase: int) -> Tensor:
    return _write_many(
        SIGNS, message, many, block, positive_zeros("parity", phase), mean_magnitude_of_many(many, block)
    )


def encode_votes_many(message: Tensor, many: Many, zero: Zeros, phase: int) -> Tensor:
    rule, zeros = (_TRITS, ALL) if zero == "abstain" else (VOTES, positive_zeros(zero, phase))
    return _write_many(rule, message, many, max(many.sizes), zeros, None)


def sum_signs_many(rows: Tensor, many: Many, block: int, weight: float) -> Tensor:
    return _add_up_many(SIGNS, rows, many, block, weight)


def take_majority_many(rows: Tensor, many: Many, zero: Zeros, weight: float) -> Tensor:
    weight = math.copysign(1.0, weight) if weight else 0.0
    return _add_up_many(_TRITS if zero == "abstain" else VOTES, rows, many, max(many.sizes), weight, majority=True)


def _write_many(rule: int, message: Tensor, many: Many, block: int, zeros: int, high: Tensor | None) -> Tensor:
    bad, per = Marks(message, len(many)), 5 if rule == _TRITS else 8
    block, tiles = many.clip(block), many.tiles(TILE // 8 * per)
    launch(
        _encode_many, (len(tiles),), many.table, tiles, message, many.heads(block), high, bad.words, block,
        RULE=rule, ZEROS=zeros, HAS_MEMORY=many.memories is not None, HAS_REST=many.rests is not None, EVEN=many.even,
        G=TILE // 8, PER=per,
    )  # fmt: skip
    return bad.words == 0


def _add_up_many(rule: int, rows: Tensor, many: Many, block: int, weight: float, *, majority: bool = False) -> Tensor:
    marks, tiles = Marks(rows, len(many)), many.tiles(TILE)
    launch(
        _sum_many, (len(tiles),), many.table, tiles, rows, marks.words, rows.shape[0], rows.stride(0), many.clip(block),
        weight, RULE=rule, MAJORITY=majority, EVEN=many.even, PER=5 if rule == _TRITS else 8, TILE=TILE,
    )  # fmt: skip
    return marks.words == 0


# ---- one tensor after the other -------------------------------------------------------------------------------------
def _write(
    rule: int, rows: Tensor, block: int, zeros: int, tau: float, memory: Tensor | None, rest: Tensor | None
) -> tuple[Tensor, Flag]:
    b, n = rows.shape
    low, high = _heads(rule, rows, memory, block, tau)
    wire = torch.empty(b, _bytes(rule, n, block), dtype=torch.uint8, device=rows.device)
    bad, per = Marks(rows), 5 if rule == _TRITS else 8
    width = votes_bytes(n, "abstain") if rule == _TRITS else packed_bytes(n, 1)
    launch(
        _encode, (block_count(n, TILE // 8 * per), b), rows, memory, rest, wire, low, high, bad.words, n, block,
        block_count(n, block), wire.shape[1], width, tau,
        RULE=rule, ZEROS=zeros, HAS_MEMORY=memory is not None, HAS_REST=rest is not None, G=TILE // 8, PER=per,
    )  # fmt: skip
    return wire, bad.unset()


def _heads(
    rule: int, rows: Tensor, memory: Tensor | None, block: int, tau: float
) -> tuple[Tensor | None, Tensor | None]:
    """float32 ``[b, nb]``: what the bits of each block stand for."""
    if rule == SIGNS:
        return None, mean_magnitude(rows, memory, block)
    if rule != TWO_MEANS:
        return None, None
    count = how_many(rows, memory, block, tau)
    sizes = block_sizes(rows.shape[1], block, rows, torch.float64)
    upper = ordered_sum(rows, memory, block, UPPER, tau) / count.clamp_min(1)
    lower = ordered_sum(rows, memory, block, LOWER, tau) / (sizes - count).clamp_min(1)
    return lower.float(), upper.float()


def _add_up(
    rule: int, received: Sequence[Tensor], out: Tensor, block: int, weight: float, add: bool, majority: bool = False
) -> None:
    check_rows(out=out)
    (b, n), marks = out.shape, Marks(out)
    if not add and not received:
        out.zero_()
    width = votes_bytes(n, "abstain") if rule == _TRITS else packed_bytes(n, 1)
    runs = list(even_runs(received, b, _bytes(rule, n, block)))
    for number, run in enumerate(runs):
        launch(
            _sum, (block_count(n, TILE), b), run.first, out, marks.words, run.count, run.stride, run.row, n, block,
            block_count(n, block), width, weight,
            RULE=rule, ADD=add, MAJORITY=majority and number == len(runs) - 1, TILE=TILE,
        )  # fmt: skip
        add = True
    if rule == _TRITS:
        marks.refuse(0, lambda: PayloadError(BAD_VOTE))
    elif FIELDS[rule]:
        marks.refuse(0, lambda: _wrong(rule, received, n, block))


def _wrong(rule: int, received: Sequence[Tensor], n: int, block: int) -> Exception:
    """Which wire has a field that no sender writes."""
    for wire in received:
        try:
            split_wire(rule, wire, n, block)
        except PayloadError as error:
            return error
    return PayloadError(f"fields {FIELDS[rule]} must be finite")


def _bytes(rule: int, n: int, block: int) -> int:
    return votes_bytes(n, "abstain") if rule == _TRITS else wire_bytes(rule, n, block)
