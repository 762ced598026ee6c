"""The wires of methods that send a few bits for each number, or for each of a list of places: signs, levels, exponents.

:func:`write_coded_`, :func:`write_means_` and :func:`add_coded_` are for what :data:`grace.kernels.sparse_codes.Codes` says of
numbers; :func:`join` and :func:`split` for any codes.

Letters: n numbers, of which k are sent; a head of f numbers that apply to all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError
from grace.kernels.packing import pack, packed_bytes, unpack
from grace.kernels.places import add_at_
from grace.kernels.selection import select_at_least
from grace.kernels.sparse import payloads
from grace.kernels.sparse_codes import Codes, SideMeans


def join(head: Tensor, index: Tensor, codes: Tensor, bits: int, n: int, code: str) -> Tensor:
    """A head ``[f]`` of any dtype, index ``[k]`` ascending, codes ``[k]`` below 2**bits -> one wire uint8 ``[w]``.

    Layout: k (int32), head, codes (packed), indices.
    """
    count = torch.tensor([[index.numel()]], dtype=torch.int32, device=head.device)
    return payloads.join([count, head[None], pack(codes[None], bits)], index[None], n, code)[0]


def split(
    wire: Tensor, head: tuple[str, torch.dtype, int], bits: int, n: int, code: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse of :func:`join`, for a wire ``[1, w]`` that padding may follow: head, index and codes (int64).

    Raises:
        PayloadError: a count, number or list that no sender writes.
    """
    count = ("count", torch.int32, 1)
    k = int(wires.split(wire, [count], slack=True)[0])
    if not 0 <= k <= n:
        raise PayloadError(f"field 'count' must be in [0, {n + 1}), got {k}")
    fields = [count, head, ("codes", torch.uint8, packed_bytes(k, bits))]
    _, front, packed, index = payloads.split(wire, fields, n, k, code, slack=True)
    return front[0], index[0], unpack(packed, bits, k)[0].long()


def write_coded_(
    row: Tensor, front: Tensor, bound: float, codes: Codes, code: str, *, strict: bool, keep_rest: bool
) -> Tensor:
    """Writes the numbers of a finite ``row [n]`` that reach (strict: exceed) the bound -> wire uint8 ``[w]``; nothing if
    ``front [1]`` is 0. With ``keep_rest`` the row keeps what the wire leaves out.
    """
    index = select_at_least(row, bound, strict=strict) if float(front) > 0 else row.new_empty(0, dtype=torch.int64)
    return _write_(row, index, row[index], front, codes, code, keep_rest=keep_rest)


def write_means_(row: Tensor, index: Tensor, code: str, *, keep_rest: bool) -> Tensor:
    """The numbers of a finite ``row [n]`` at ``index [k]``, ascending, none of them 0, as the means of both sides -> wire
    uint8 ``[w]``. With ``keep_rest`` the row keeps what the wire leaves out.
    """
    codes, values = SideMeans(), row[index]
    return _write_(row, index, values, codes.front_of(values), codes, code, keep_rest=keep_rest)


def _write_(
    row: Tensor, index: Tensor, values: Tensor, front: Tensor, codes: Codes, code: str, *, keep_rest: bool
) -> Tensor:
    """The wire of ``values [k]``, those of the row at ``index [k]``."""
    told = codes.encode(values, front)
    if keep_rest:
        row[index] = values - codes.decode(told, front)
    return join(front, index, told, codes.bits, row.numel(), code)


def add_coded_(wire: Tensor, out: Tensor, scale: float, codes: Codes, code: str) -> None:
    """``out [n]`` += scale times what a wire ``[1, w]`` of :func:`write_coded_`, which padding may follow, says.

    Raises:
        PayloadError: as :func:`split`; or a front or a code that no sender writes.
    """
    front, index, told = split(wire, codes.field, codes.bits, out.numel(), code)
    add_at_(out, 0, index, codes.decode(told, front) * scale)
