"""Codes of 8 bits: a sign, and the nearest of 128 magnitudes, in units of the largest magnitude of a block.

A wire ``[b, w]`` holds a row's scales (float32 ``[nb]``), then a byte for each number: 128 for a minus, and the
position of the magnitude. The torch functions below specify what the native kernel does, to the bit.

Letters: b rows of n numbers; blocks of B numbers, nb = ceil(n/B) of them per row, the last one shorter; W workers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grace import backends, native
from grace import wire as wires
from grace.errors import InputError, PayloadError
from grace.kernels import check
from grace.kernels.encoding import LAYOUTS, Layout, encode
from grace.kernels.quantize import nearest
from grace.kernels.reference import block_abs_max, block_count, spread
from grace.kernels.spans import spans

_SIZE = 128
_SIGN = 0x80  # alone it is minus zero, which no sender writes
_CELLS = 0x3F81  # the upper halves of the float32s from 0 to 1
_TINY, _SMALL, _UP = 2.0**-126, 2.0**-64, 2.0**60
_ENCODE = native.declare(
    "codebook",
    *(native.P, native.P, native.P, native.N, native.N, native.N, native.P, native.N),
    *(native.P, native.P, native.P, native.I),
)
_DECODE = native.declare(
    "codebook_sum",
    *(native.P, native.N, native.P, native.N, native.N, native.P, native.F, native.I, native.I),
)
_BAD_SCALE = "field 'scales' must be finite and not negative"
_BAD_CODE = f"field 'codes' must not be {_SIGN}, a minus zero"


@dataclass(frozen=True, eq=False)
class Codebook:
    """128 ascending magnitudes from 0 to at most 1, float32 ``[128]``, and what finding the nearest one needs.

    middle: ``[128]``, between a magnitude and the next; infinite for the last.
    floor: uint8 ``[0x3F81]``: how many middles are below all floats with this upper half.

    Raises:
        InputError: another shape or dtype, not ascending, or so dense that two middles share the upper half of their bits.
    """

    entries: Tensor
    middle: Tensor
    floor: Tensor

    @staticmethod
    def of(entries: Tensor) -> Codebook:
        """The codebook of these magnitudes."""
        good = entries.shape == (_SIZE,) and entries.dtype is torch.float32 and entries.is_contiguous()
        if not good or entries[0] != 0 or entries[-1] > 1 or not bool((entries[1:] > entries[:-1]).all()):
            raise InputError("codebook: needs 128 float32 magnitudes that ascend from 0 to at most 1")
        middle = (entries[1:].double() + entries[:-1].double()).div_(2).float()  # as `nearest`
        half = middle.view(torch.int32) >> 16
        if bool((half[1:] == half[:-1]).any()):
            raise InputError("codebook: no two middles may agree in the upper 16 bits; use magnitudes further apart")
        edges = torch.arange(_CELLS, dtype=torch.int32) << 16
        floor = torch.bucketize(edges.view(torch.float32), middle).to(
            torch.uint8
        )  # how many middles are below the edge
        return Codebook(entries, torch.cat((middle, torch.tensor([math.inf]))), floor)


def codebook_bytes(n: int, block: int) -> int:
    """Bytes of the wire of n numbers."""
    return n + 4 * block_count(n, block)


def codebook(
    rows: Tensor, book: Codebook, block: int, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    Number i becomes the magnitude nearest to ``|p_i| / N``, at most 1, of two that are equally near the smaller one, with its
    sign; N is the largest magnitude of its block, 0 where that is below 2**-126. ``rest``, which may be ``rows``, becomes p
    minus what the wire says. If p is not finite, wire and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous; block >= 1.
    """
    fast = backends.function(_ENCODE) if rows.is_cpu else None
    if fast is None:
        return _codebook(rows, book, block, memory, rest)
    _, n = rows.shape
    return encode(fast, _layout(n, book, block), rows, memory, rest)


@functools.lru_cache(LAYOUTS)
def _layout(n: int, book: Codebook, block: int) -> Layout:
    tables = (native.P(table.data_ptr()) for table in (book.entries, book.middle, book.floor))
    return Layout(codebook_bytes(n, block), n, block, *tables)


def codebook_sum(
    received: Sequence[Tensor], out: Tensor, book: Codebook, block: int, weight: float, *, add: bool = False
) -> None:
    """Out ``[b, n]`` = (or, with ``add``, +=) weight times the sum of what the wires ``[b, w]`` say, in their order.

    Raises:
        PayloadError: a length, scale or code that no sender writes; ``out`` is then undefined.
    """
    b, n = out.shape
    fast = backends.function(_DECODE) if out.device.type == "cpu" else None
    if fast is None:
        if not add:
            out.zero_()
        for wire in received:
            _codebook_add(wire, out, book, block, weight)
        return
    W, at = len(received), check.numbers("out", out)
    addresses = check.wire_rows(received, b, codebook_bytes(n, block))
    for row in range(b):
        mine = check.pointers(addresses[row * W : (row + 1) * W])
        refused = fast(mine, W, at + 4 * n * row, n, block, book.entries.data_ptr(), weight, add, native.threads())
        if refused:
            raise PayloadError(_BAD_SCALE if refused == native.BAD_HEAD else _BAD_CODE)


# ---- the specification ----------------------------------------------------------------------------------------------
def _codebook(
    rows: Tensor, book: Codebook, block: int, memory: Tensor | None, rest: Tensor | None
) -> tuple[Tensor, bool]:
    b, n = rows.shape
    scales = rows.new_empty(b, block_count(n, block))
    codes = rows.new_empty(b, n, dtype=torch.uint8)
    entries = book.entries.to(rows.device)
    finite = True
    for span in spans(b, n, block):
        part = rows[span.row, None, span.columns]  # [1, m]
        if memory is not None:
            part = part + memory[span.row, None, span.columns]
        finite = finite and bool(part.isfinite().all())
        scale = block_abs_max(part, block)  # [1, nb]
        scale = torch.where(scale >= _TINY, scale, 0.0)
        up = torch.where(scale < _SMALL, _UP, 1.0)  # else the reciprocal could overflow
        factor = torch.where(scale > 0, 1 / (scale * up), 0.0)
        y = part.abs() * spread(up, len(span), block) * spread(factor, len(span), block)
        code = nearest(y.clamp_max_(1), entries).to(torch.uint8)
        code |= ((part < 0) & (code > 0)).to(torch.uint8).mul_(_SIGN)
        scales[span.row, span.blocks], codes[span.row, span.columns] = scale, code
        if rest is not None:
            said = _entries(code, entries).mul_(spread(scale, len(span), block))
            torch.sub(part, said, out=rest[span.row, None, span.columns])
    return wires.join(scales, codes), finite


def _entries(code: Tensor, entries: Tensor) -> Tensor:
    return torch.cat((entries, -entries))[code.long()]


def _codebook_add(wire: Tensor, out: Tensor, book: Codebook, block: int, weight: float) -> None:
    b, n = out.shape
    scales, codes = wires.split(wire, [("scales", torch.float32, block_count(n, block)), ("codes", torch.uint8, n)])
    if not bool(((scales >= 0) & (scales < math.inf)).all()):
        raise PayloadError(_BAD_SCALE)
    if bool((codes == _SIGN).any()):
        raise PayloadError(_BAD_CODE)
    entries = book.entries.to(out.device)
    for span in spans(b, n, block):
        factor = scales[span.row, None, span.blocks] * weight
        value = _entries(codes[span.row, None, span.columns], entries)
        out[span.row, None, span.columns].add_(value.mul_(spread(factor, len(span), block)))
