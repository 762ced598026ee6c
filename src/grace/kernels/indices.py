"""Lists of indices in codes whose size follows from k and n alone: raw, bitmap, Elias-Fano.

The torch functions below specify what the native kernels do, to the byte.

Letters: b lists of k indices, strictly increasing, below n <= 2**31.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from grace import backends, native
from grace.errors import PayloadError
from grace.kernels.packing import pack, unpack
from grace.kernels.reference import packed_bytes

FIXED = ("raw", "bitmap", "elias-fano")
NOT_INCREASING, OUT_OF_RANGE, WRONG_BITS, NO_MEMORY = -2, -3, -4, -5  # why native code refused
_ENCODE = native.declare(
    "encode_indices",
    *(native.P, native.N, native.N, native.N, native.I, native.I, native.P, native.N, native.I),
)
_DECODE = native.declare(
    "decode_indices",
    *(native.P, native.N, native.N, native.N, native.N, native.I, native.I, native.P, native.I),
)


class Layout(NamedTuple):
    """How k indices below n lie in a code: its number in native code, the low bits of each that are packed, all bytes."""

    code: int
    low: int
    size: int


def index_bits(n: int) -> int:
    """Bits of an index below n: ``ceil(log2 n)``, at least 1."""
    return max(1, (n - 1).bit_length())


@lru_cache(maxsize=4096)
def layout(n: int, k: int, code: str) -> Layout:
    """raw: k indices of ceil(log2 n) bits. bitmap: n bits, of which those in the list are set. elias-fano: see below."""
    if k == 0:
        return Layout(FIXED.index(code), 0, 0)
    if code == "raw":
        return Layout(0, index_bits(n), packed_bytes(k, index_bits(n)))
    if code == "bitmap":
        return Layout(1, 0, packed_bytes(n, 1))
    low, high = elias_fano_split(n, k)
    return Layout(2, low, packed_bytes(k, low) + packed_bytes(high, 1))


def elias_fano_split(n: int, k: int) -> tuple[int, int]:
    """(l, bits of the unary part) that make the code of k indices below n shortest: about 2 + log2(n/k) bits each."""
    cost = {low: k * low + k + ((n - 1) >> low) for low in range(index_bits(n) + 1)}
    low = min(cost, key=cost.__getitem__)
    return low, k + ((n - 1) >> low)


def encode_indices(index: Tensor, n: int, code: str) -> Tensor:
    """Lists ``[b, k]`` int64, k >= 1 -> uint8 ``[b, w]``.

    Raises:
        PayloadError: a list that does not increase strictly, or leaves [0, n).
    """
    fast = backends.function(_ENCODE) if index.device.type == "cpu" and index.dtype == torch.int64 else None
    if fast is None:
        return _SPECIFIED[code][0](checked_list(index, n), n)
    b, k = index.shape
    number, low, width = layout(n, k, code)
    index = index.contiguous()
    out = torch.empty(b, width, dtype=torch.uint8)
    refused(fast(index.data_ptr(), b, k, n, number, low, out.data_ptr(), width, native.threads()), n, k)
    return out


def decode_indices(packed: Tensor, n: int, k: int, code: str) -> Tensor:
    """The inverse of :func:`encode_indices`: uint8 ``[b, w]``, w as :func:`layout` says -> ``[b, k]`` int64.

    Raises:
        PayloadError: another length, or bytes that are no such list.
    """
    b, w = packed.shape
    number, low, width = layout(n, k, code)
    if w != width:
        raise PayloadError(f"field 'indices' of {w} bytes, but its codes need {width}")
    fast = backends.function(_DECODE) if packed.device.type == "cpu" and packed.dtype == torch.uint8 else None
    if fast is None:
        return checked_list(_SPECIFIED[code][1](packed, n, k), n)
    if w > 1 and packed.stride(1) != 1:
        packed = packed.contiguous()
    index = torch.empty(b, k, dtype=torch.int64)
    refused(fast(packed.data_ptr(), b, packed.stride(0), k, n, number, low, index.data_ptr(), native.threads()), n, k)
    return index


def refused(why: int, n: int, k: int) -> None:
    """Raises what native code has found.

    Raises:
        PayloadError, MemoryError: what it is.
    """
    if why >= 0:
        return
    if why == NO_MEMORY:
        raise MemoryError(f"kernels: no memory for a list of {k} indices")
    if why == NOT_INCREASING:
        raise PayloadError("field 'indices' must increase strictly")
    if why == OUT_OF_RANGE:
        raise PayloadError(f"field 'indices' must be in [0, {n})")
    raise PayloadError(f"field 'indices' must have {k} bits set")


def checked_list(index: Tensor, n: int) -> Tensor:
    """``index [b, k]`` itself, if it increases strictly in [0, n).

    Raises:
        PayloadError: otherwise.
    """
    if index.numel():
        if not bool((index[:, 1:] > index[:, :-1]).all()):
            refused(NOT_INCREASING, n, index.shape[1])
        if int(index[:, 0].min()) < 0 or int(index[:, -1].max()) >= n:
            refused(OUT_OF_RANGE, n, index.shape[1])
    return index


# ---- the specification ----------------------------------------------------------------------------------------------
def _raw_encode(index: Tensor, n: int) -> Tensor:
    return pack(index, index_bits(n))


def _raw_decode(packed: Tensor, n: int, k: int) -> Tensor:
    return unpack(packed, index_bits(n), k).long()


def _bitmap_encode(index: Tensor, n: int) -> Tensor:
    return pack(_bits(index, n), 1)


def _bitmap_decode(packed: Tensor, n: int, k: int) -> Tensor:
    return _set_bits(packed, n, k)


def _elias_fano_encode(index: Tensor, n: int) -> Tensor:
    """First the l low bits of each, packed; then a bit stream in which bit ``(i_j >> l) + j`` is set for the j-th."""
    k = index.shape[1]
    low, size = elias_fano_split(n, k)
    high = pack(_bits((index >> low) + torch.arange(k, device=index.device), size), 1)
    return torch.cat([pack(index & ((1 << low) - 1), low), high], dim=1) if low else high


def _elias_fano_decode(packed: Tensor, n: int, k: int) -> Tensor:
    low, _ = elias_fano_split(n, k)
    at = packed_bytes(k, low)
    index = (_set_bits(packed[:, at:], n, k) - torch.arange(k, device=packed.device)) << low
    return index | unpack(packed[:, :at], low, k) if low else index


_SPECIFIED = {
    "raw": (_raw_encode, _raw_decode),
    "bitmap": (_bitmap_encode, _bitmap_decode),
    "elias-fano": (_elias_fano_encode, _elias_fano_decode),
}


def _bits(index: Tensor, size: int) -> Tensor:
    """``[b, k]`` -> ``[b, size]`` uint8: ones at these places."""
    return torch.zeros(index.shape[0], size, dtype=torch.uint8, device=index.device).scatter_(1, index, 1)


def _set_bits(packed: Tensor, n: int, k: int) -> Tensor:
    """``[b, w]`` bytes -> ``[b, k]``: the places of the bits that are set, k in each row."""
    bits = unpack(packed, 1, 8 * packed.shape[1])
    if not bool((bits.sum(dim=1) == k).all()):
        refused(WRONG_BITS, n, k)
    return bits.nonzero()[:, 1].view(packed.shape[0], k)
