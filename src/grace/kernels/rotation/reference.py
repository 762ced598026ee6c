"""The specification of the transforms, in plain torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import grace.kernels.rotation as family
from grace import wire as wires
from grace.compute.host import to_device
from grace.compute.launching import signed
from grace.errors import PayloadError
from grace.flags.capturing import step_word
from grace.flags.finite import Flag, flag
from grace.flags.refusals import refuse_unless
from grace.kernels.blocks import block_count, block_roots, repeat_by_block
from grace.kernels.finite import all_finite
from grace.kernels.packing import pack, packed_bytes, unpack
from grace.kernels.rotation import BAD_SCALE, CENTROIDS, CentroidCode
from grace.kernels.statistics import block_abs_max, block_norm, block_sum
from grace.kernels.stochastic_levels import MOST, block_divide, nearest
from grace.kernels.tensor_list import TensorList
from grace.kernels.tensor_list.reference import encode_each, stack_flags, sum_each
from grace.random.reference import threefry2x32

if TYPE_CHECKING:
    from grace.random import Stream

_SHORTEST = 16  # what is left of a row after its last block is transformed in pieces down to this size
_LARGE = 2.0**96  # a block with a number beyond this is transformed at 2**-32 of its size
_SHRINK = 2.0**-32


def hadamard(rows: Tensor, block: int) -> Tensor:
    large = block_abs_max(rows, block) > _LARGE
    shrink = repeat_by_block(torch.where(large, _SHRINK, 1.0), rows.shape[1], block)
    most = repeat_by_block(torch.where(large, torch.finfo(torch.float32).max * _SHRINK, math.inf), rows.shape[1], block)
    return _blocks(rows * shrink, block).clamp_(-most, most).div_(shrink)


def rotate_blocks(rows: Tensor, block: int, rng: Stream) -> Tensor:
    return hadamard(rows * draw_signs(rows, rng), block)


def rotate_blocks_back(rows: Tensor, block: int, rng: Stream) -> Tensor:
    return hadamard(rows, block).mul_(draw_signs(rows, rng))


def rotate_norms(
    rows: Tensor, block: int, rng: Stream, out: Tensor, memory: Tensor | None = None
) -> tuple[Tensor, Flag]:
    p = rows if memory is None else rows + memory
    out.copy_(rotate_blocks(p, block, rng))
    return block_norm(out, block), flag(p.isfinite().all())


def encode_rotated(
    rows: Tensor, code: CentroidCode, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, Flag]:
    n, block, book = rows.shape[1], code.block, _book(code.bits, rows.device)
    p = rows if memory is None else rows + memory
    finite = flag(p.isfinite().all())
    y = rotate_blocks(p, block, rng)
    rms = block_norm(y, block) / block_roots(n, block, rows)  # [b, nb]
    rms, unit = block_divide(y, rms, block)  # [b, n], as if standard normal
    # zero is on the positive side, which only matters for one bit
    number = nearest(-unit, book).neg_().add_(book.numel() - 1)
    centroid = book[number].double()
    product = block_sum(centroid * unit, block)  # [b, nb] <c, y> / rms; 0 only where y is
    if code.unbiased:
        factor = block_sum(unit.double().square(), block) / product.clamp_min(1e-300)
    else:
        factor = product / block_sum(centroid.square(), block)
    most = MOST / block_abs_max(centroid.float(), block).clamp_min_(1.0)  # so that no number of the block overflows
    scale = torch.minimum(factor * rms, most.double()).float()  # [b, nb]
    if rest is not None:
        decoded = rotate_blocks_back(book[number].mul_(repeat_by_block(scale, n, block)), block, rng)
        torch.sub(p, decoded, out=rest)
    wire = wires.join(scale, pack(number, code.bits))
    return (wires.join(_key_of(rng, rows), wire) if code.private else wire), finite


def sum_rotated(
    received: Sequence[Tensor], out: Tensor, code: CentroidCode, weight: float, rng: Stream, *, add: bool = False
) -> None:
    n, block, bits, book = out.shape[1], code.block, code.bits, _book(code.bits, out.device)
    total = torch.zeros_like(out)
    if not add:
        out.zero_()
    for wire in received:
        fields = [("scales", torch.float32, block_count(n, block)), ("codes", torch.uint8, packed_bytes(n, bits))]
        key, scales, packed = wires.split(wire, [("key", torch.int32, 2 * code.private), *fields])
        centroid = book[unpack(packed, bits, n).long()]
        value = centroid * repeat_by_block(wires.check_scale("scales", scales), n, block)
        refuse_unless(value.isfinite().all(), lambda: PayloadError(BAD_SCALE))
        decoded = centroid.mul_(repeat_by_block(scales * weight, n, block))
        if code.private:
            out.add_(hadamard(decoded, block).mul_(_signs_of(key, n, rng)))
        else:
            total.add_(decoded)
    if not code.private:
        out.add_(rotate_blocks_back(total, block, rng))


def encode_rotated_many(message: Tensor, many: TensorList, code: CentroidCode, step: int) -> Tensor:
    def encode_one(t: int, x: Tensor, memory: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Flag]:
        rng = many.own_stream(t, 0) if code.private else many.shared_stream(t, 0)
        return family.encode_rotated(x, code, replace(rng, step=step), memory, rest)

    return encode_each(message, many, encode_one)


def sum_rotated_many(rows: Tensor, many: TensorList, code: CentroidCode, weight: float, step: int) -> Tensor:
    streams = iter([_stream(many, row // many.rows, 0, step) for row in range(len(many))])
    return sum_each(
        rows,
        many,
        [code.payload(n) for n in many.sizes],
        lambda received, out: family.sum_rotated(received, out, code, weight, next(streams)),
    )


def rotate_many(storage: Tensor, many: TensorList, into: TensorList, block: int, salt: int, step: int) -> Tensor:
    flags = []
    for t, (x, y) in enumerate(zip(many.xs, into.xs, strict=True)):
        p = x.float() if many.memories is None else x + many.memories[t]
        flags.append(all_finite(p))  # before y, which may be x
        y.copy_(family.rotate_blocks(p, block, _stream(many, t, salt, step)))
    return stack_flags(flags, many)


def rotate_norms_many(storage: Tensor, many: TensorList, block: int, salt: int, step: int) -> tuple[Tensor, Tensor]:
    assert many.work is not None
    finite = rotate_many(storage, many, many.work, block, salt, step)
    return torch.cat([block_norm(y, block).view(-1) for y in many.work.xs]), finite


def rotate_back_many(
    storage: Tensor, many: TensorList, into: TensorList, block: int, salt: int, step: int, *, subtract: bool = False
) -> None:
    for t, (y, x) in enumerate(zip(many.xs, into.xs, strict=True)):
        back = family.rotate_blocks_back(y, block, _stream(many, t, salt, step))
        if not subtract:
            x.copy_(back)
            continue
        assert into.rests is not None
        torch.sub(x if into.memories is None else x + into.memories[t], back, out=into.rests[t])


def _stream(many: TensorList, t: int, salt: int, step: int) -> Stream:
    return replace(many.shared_stream(t, salt), step=step)


@functools.cache
def _book(bits: int, device: torch.device) -> Tensor:
    """``[2**bits]`` float32: the centroids, ascending."""
    half = torch.tensor(CENTROIDS[bits], dtype=torch.float32, device="cpu")
    return to_device(torch.cat((-half.flip(0), half)), device, waits=True)


def draw_signs(rows: Tensor, rng: Stream) -> Tensor:
    """D ``[1, n]``: +1 or -1 for each position."""
    n = rows.shape[1]
    return _signs(rng.words(block_count(n, 64), rows.device)[None], n)


def _signs(words: Tensor, n: int) -> Tensor:
    """D ``[b, n]`` float32: +1, or -1 where the bit of ``words [b, groups, 2]`` int32 is set."""
    bits = words.contiguous().view(torch.uint8).view(words.shape[0], -1)
    return unpack(bits, 1, n).float().mul_(-2).add_(1)


def _key_of(rng: Stream, rows: Tensor) -> Tensor:
    """``[b, 2]`` int32: the words of the stream's key, for each row."""
    key = torch.empty(rows.shape[0], 2, dtype=torch.int32, device=rows.device)
    for column, word in zip(key.unbind(1), rng.key(), strict=True):
        column.fill_(signed(word))
    return key


def _signs_of(keys: Tensor, n: int, rng: Stream) -> Tensor:
    """D ``[b, n]`` of the streams with ``keys [b, 2]`` int32, at the step of ``rng``."""
    counters = torch.arange(block_count(n, 64), dtype=torch.int32, device=keys.device)
    words = threefry2x32((keys[:, :1], keys[:, 1:]), counters, step_word(rng.step, keys.device))
    return _signs(torch.stack(words, dim=-1), n)


def _blocks(rows: Tensor, block: int) -> Tensor:
    """The transform, piece by piece."""
    out = rows.clone()
    n, at, h = rows.shape[1], 0, block
    while at < n:
        while h > n - at:
            h //= 2
        if h < min(_SHORTEST, block):
            break
        end = at + (n - at) // h * h
        out[:, at:end] = _transform(rows[:, at:end].reshape(-1, h)).view(rows.shape[0], -1)
        at = end
    return out


def _transform(x: Tensor) -> Tensor:
    """``[m, h]``, contiguous -> ``[m, h]``."""
    m, h = x.shape
    s = 1
    while s < h:
        p, q = x.view(m, h // (2 * s), 2, s).unbind(dim=2)
        x = torch.stack((p + q, p - q), dim=2)
        s *= 2
    return x.view(m, h) * (1 / math.sqrt(h))
