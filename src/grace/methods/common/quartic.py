"""Five ternary digits to a byte, and runs of zeros shortened: 3lc.

Letters: n numbers; L = ceil(n/5) bytes of five digits each; a digit is 0, 1 or 2, for -1, 0 and 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace.errors import PayloadError
from grace.kernels import pack_trits, packed_trits_bytes, unpack_trits

_ZEROS = 121  # the byte of five zeros: 1 + 3 + 9 + 27 + 81
_RUN = 241  # plus j: a run of j such bytes, 2 <= j <= 14
_LONGEST = 14


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
    at = torch.arange(packed.numel(), device=packed.device)
    before = torch.where(zero, -1, at).cummax(0).values  # the last other byte
    behind = torch.where(zero, packed.numel(), at).flip(0).cummin(0).values.flip(0)  # the next one
    place = (at - before - 1) % _LONGEST  # in its run
    length = (behind - at).clamp_max_(_LONGEST)  # of the run that begins here
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
