"""Three values, five ternary digits to a byte, and runs of zeros shortened: the wires of 3lc.

Letters: b rows of n numbers; L = ceil(n/5) bytes of five digits each; a digit is 0, 1 or 2, for -1, 0 and 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace import wire as wires
from grace.compute.host import host_int64
from grace.errors import PayloadError
from grace.flags.refusals import refuse_unless
from grace.kernels.packing import pack_trits, packed_trits_bytes, unpack_trits
from grace.kernels.stochastic_levels import block_divide
from grace.kernels.sums import add_scaled_
from grace.kernels.ternary.parts import LONGEST

_ZEROS = 121  # the byte of five zeros: 1 + 3 + 9 + 27 + 81
_RUN = 241  # plus j: a run of j such bytes, 2 <= j <= LONGEST


def pack_quartic(digits: Tensor) -> Tensor:
    """Digits ``[b, n]`` -> uint8 ``[b, L]``: byte j is 81 d0[j] + 27 d1[j] + 9 d2[j] + 3 d3[j] + d4[j], where d0 to d4
    are the five parts of L digits; the last ones are filled with zeros (digit 1).
    """
    b, n = digits.shape
    L = packed_trits_bytes(n)
    parts = digits.new_ones(b, 5 * L)
    parts[:, :n] = digits
    return pack_trits(parts.view(b, 5, L).flip(1).transpose(1, 2).reshape(b, 5 * L))


def unpack_quartic(packed: Tensor, n: int) -> Tensor:
    """The inverse of :func:`pack_quartic`, for bytes of at most 242."""
    b, L = packed.shape
    return unpack_trits(packed, 5 * L).reshape(b, L, 5).transpose(1, 2).flip(1).reshape(b, 5 * L)[:, :n]


def shorten_runs(packed: Tensor) -> Tensor:
    """uint8 ``[L]`` -> ``[<= L]``: each run of j bytes of zeros as one byte for every 14, and one for what is left."""
    zero = packed == _ZEROS
    at = torch.arange(packed.numel(), device=packed.device, dtype=torch.int64)
    before = torch.where(zero, -1, at).cummax(0).values  # the last other byte
    behind = torch.where(zero, packed.numel(), at).flip(0).cummin(0).values.flip(0)  # the next one
    place = (at - before - 1) % LONGEST  # in its run
    length = (behind - at).clamp_max_(LONGEST)  # of the run that begins here
    run = torch.where(length == 1, _ZEROS, length + _RUN).to(torch.uint8)
    return torch.where(zero, run, packed)[~zero | (place == 0)]


def lengthen_runs(short: Tensor, size: int) -> Tensor:
    """The inverse of :func:`shorten_runs`, which must give ``size`` bytes.

    Raises:
        PayloadError: it does not.
    """
    length = (short.to(torch.int64) - _RUN).clamp_min_(1)
    if int(length.sum()) != size:
        raise PayloadError(f"field 'digits' must stand for {size} bytes, got {int(length.sum())}")
    return torch.where(short > 242, _ZEROS, short).repeat_interleave(length)


def write_ternary(rows: Tensor, s: float, *, zre: bool) -> Tensor:
    """float32 ``[b, n]``, finite -> wire uint8 ``[b, w]`` of each number's nearest of -M, 0 and M, ``M = s max |x|``; of
    halves 0. It is M (float32), then L bytes; with ``zre`` the count (uint32) of the bytes follows M, and runs are shortened.
    """
    top = rows.abs().amax(dim=1, keepdim=True).mul_(s).clamp_max_(torch.finfo(torch.float32).max)
    scale, share = block_divide(rows, top, rows.shape[1])  # [b, 1], [b, n]
    packed = pack_quartic(share.round_().add_(1))
    if not zre:
        return wires.join(scale, packed)
    encoded = []
    for row, row_scale in zip(packed, scale[:, None], strict=True):
        short = shorten_runs(row)
        count = torch.tensor([[short.numel()]], dtype=torch.int32, device=rows.device)
        encoded.append(wires.join(row_scale, count, short[None])[0])
    return torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)


def add_ternary(wire: Tensor, out: Tensor, scale: float, *, zre: bool) -> None:
    """float32 out ``[b, n]`` += scale times what a wire ``[b, w]`` of :func:`write_ternary` says.

    Raises:
        PayloadError: a length, count, scale or byte that no sender writes.
    """
    n = out.shape[1]
    L = packed_trits_bytes(n)
    for part, row in zip(wire[:, None], out[:, None], strict=True):
        head = [("scale", torch.float32, 1)]
        if zre:
            head.append(("count", torch.int32, 1))
            count = int(wires.split(part, head, slack=True)[1])
            wires.check_index("count", host_int64(count), L + 1)
            top, _, short = wires.split(part, [*head, ("digits", torch.uint8, count)], slack=True)
            packed = lengthen_runs(short[0], L)[None]
        else:
            top, packed = wires.split(part, [*head, ("digits", torch.uint8, L)])
            refuse_unless((packed <= 242).all(), lambda: PayloadError("field 'digits' must be in [0, 242]"))
        value = unpack_quartic(packed, n).float().sub_(1).mul_(wires.check_scale("scale", top))
        add_scaled_(row, value, scale)
