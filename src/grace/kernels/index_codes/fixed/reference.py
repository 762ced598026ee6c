"""The specification of index lists, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from grace.flags.refusals import Refusals, refuse_unless
from grace.kernels.index_codes.fixed import (
    WRONG_BITS,
    PlaceLists,
    check_list,
    check_width,
    elias_fano_split,
    explain,
    index_bits,
    layout,
)
from grace.kernels.packing import pack, packed_bytes, unpack
from grace.kernels.places import find_set
from grace.kernels.tensor_list import TensorList


def encode_indices(index: Tensor, n: int, code: str) -> Tensor:
    return _CODES[code][0](check_list(index, n), n)


def decode_indices(packed: Tensor, n: int, k: int, code: str) -> Tensor:
    check_width(packed, n, k, code)
    return check_list(_CODES[code][1](packed, n, k), n)


def encode_indices_many(message: Tensor, many: TensorList, lists: PlaceLists, index: Tensor) -> None:
    rows = zip(many.sizes, many.places, lists.codes, lists.before, index.split_with_sizes(lists.kept), strict=True)
    for n, place, code, before, own in rows:
        packed = encode_indices(own[None], n, code)[0]
        message[place + before : place + before + len(packed)] = packed


def decode_indices_many(rows: Tensor, many: TensorList, lists: PlaceLists) -> tuple[Tensor, Tensor]:
    parts, flags = [], []
    for n, place, k, code, before in zip(many.sizes, many.places, lists.kept, lists.codes, lists.before, strict=True):
        with Refusals() as refused:
            parts.append(decode_indices(rows[:, place + before :][:, : layout(n, k, code).size], n, k, code))
        flags.append(torch.as_tensor(refused.ok, device=rows.device, dtype=torch.bool))
    return torch.cat(parts, dim=1), torch.stack(flags).view(-1, many.rows).all(dim=1)


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
    high = pack(_bits((index >> low) + torch.arange(k, device=index.device, dtype=torch.int64), size), 1)
    return torch.cat([pack(index & ((1 << low) - 1), low), high], dim=1) if low else high


def _elias_fano_decode(packed: Tensor, n: int, k: int) -> Tensor:
    low, _ = elias_fano_split(n, k)
    at = packed_bytes(k, low)
    index = (_set_bits(packed[:, at:], n, k) - torch.arange(k, device=packed.device, dtype=torch.int64)) << low
    return index | unpack(packed[:, :at], low, k) if low else index


_CODES = {
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
    refuse_unless((bits.sum(dim=1) == k).all(), lambda: explain(WRONG_BITS, n, k))
    return find_set(bits, k)
