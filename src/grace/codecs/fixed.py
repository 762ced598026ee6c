"""Codes whose size follows from k and n alone: raw, bitmap, Elias-Fano.

Letters: b lists of k indices, strictly increasing, below n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace.errors import PayloadError
from grace.kernels import pack, packed_bytes, unpack


def index_bits(n: int) -> int:
    """Bits of an index below n: ``ceil(log2 n)``, at least 1."""
    return max(1, (n - 1).bit_length())


# ---- raw: k indices of ceil(log2 n) bits ----------------------------------------------------------------------------
def raw_bytes(n: int, k: int) -> int:
    """Bytes of k indices below n."""
    return packed_bytes(k, index_bits(n))


def raw_encode(index: Tensor, n: int) -> Tensor:
    """``[b, k]`` -> ``[b, w]``."""
    return pack(index, index_bits(n))


def raw_decode(packed: Tensor, n: int, k: int) -> Tensor:
    """``[b, w]`` -> ``[b, k]``."""
    return unpack(packed, index_bits(n), k).long()


# ---- bitmap: n bits, bit i is set if i is in the list ---------------------------------------------------------------
def bitmap_bytes(n: int, k: int) -> int:
    """Bytes of a bitmap, whatever k is."""
    return packed_bytes(n, 1)


def bitmap_encode(index: Tensor, n: int) -> Tensor:
    """``[b, k]`` -> ``[b, w]``."""
    return pack(_bits(index, n), 1)


def bitmap_decode(packed: Tensor, n: int, k: int) -> Tensor:
    """``[b, w]`` -> ``[b, k]``."""
    return _set_bits(packed, k)


# ---- Elias-Fano: the l low bits of each index as they are; the high ones in unary -----------------------------------
def elias_fano_split(n: int, k: int) -> tuple[int, int]:
    """(l, bits of the unary part) that make the code of k indices below n shortest: about 2 + log2(n/k) bits each."""
    cost = {low: k * low + k + ((n - 1) >> low) for low in range(index_bits(n) + 1)}
    low = min(cost, key=cost.__getitem__)
    return low, k + ((n - 1) >> low)


def elias_fano_bytes(n: int, k: int) -> int:
    """Bytes of k indices below n."""
    low, high = elias_fano_split(n, k)
    return packed_bytes(k, low) + packed_bytes(high, 1)


def elias_fano_encode(index: Tensor, n: int) -> Tensor:
    """First the low bits, packed; then a bit stream in which bit ``(i_j >> l) + j`` is set for the j-th index."""
    k = index.shape[1]
    low, size = elias_fano_split(n, k)
    high = pack(_bits((index >> low) + torch.arange(k, device=index.device), size), 1)
    return torch.cat([pack(index & ((1 << low) - 1), low), high], dim=1) if low else high


def elias_fano_decode(packed: Tensor, n: int, k: int) -> Tensor:
    """The inverse of :func:`elias_fano_encode`."""
    low, _ = elias_fano_split(n, k)
    at = packed_bytes(k, low)
    index = (_set_bits(packed[:, at:], k) - torch.arange(k, device=packed.device)) << low
    return index | unpack(packed[:, :at], low, k) if low else index


def _bits(index: Tensor, size: int) -> Tensor:
    """``[b, k]`` -> ``[b, size]`` uint8: ones at these places."""
    return torch.zeros(index.shape[0], size, dtype=torch.uint8, device=index.device).scatter_(1, index, 1)


def _set_bits(packed: Tensor, k: int) -> Tensor:
    """``[b, w]`` bytes -> ``[b, k]``: the places of the bits that are set.

    Raises:
        PayloadError: not k in each row.
    """
    bits = unpack(packed, 1, 8 * packed.shape[1])
    ones = bits.sum(dim=1)
    if not bool((ones == k).all()):
        raise PayloadError(f"field 'indices' must have {k} bits set, got {ones.tolist()}")
    return bits.nonzero()[:, 1].view(packed.shape[0], k)
