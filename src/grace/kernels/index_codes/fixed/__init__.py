"""Lists of indices in codes whose size follows from k and n alone: raw, bitmap, Elias-Fano. ``codes`` has all codes.

Letters: b lists of k indices, strictly increasing, below n <= 2**31.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from grace.compute.dispatch import operation
from grace.errors import PayloadError
from grace.flags.finite import on_host
from grace.flags.refusals import refuse_unless
from grace.kernels.packing import packed_bytes
from grace.kernels.tensor_list import TensorList

__all__ = [
    "FIXED",
    "PlaceLists",
    "decode_indices",
    "decode_indices_many",
    "elias_fano_split",
    "encode_indices",
    "encode_indices_many",
    "index_bits",
    "layout",
]

FIXED = ("raw", "bitmap", "elias-fano")
NOT_INCREASING, OUT_OF_RANGE, WRONG_BITS, NO_MEMORY = -2, -3, -4, -5  # why native code refused a list


class ListLayout(NamedTuple):
    """Layout of k indices below n in a code: its number in native code, the number of low bits that are packed, all bytes."""

    code: int
    low: int
    size: int


@dataclass(frozen=True)
class PlaceLists:
    """The lists of the tensors of a bucket.

    kept, codes: of each row k, at least 1, and the code, of :data:`FIXED`. before: bytes of its wire in front of the code.
    """

    kept: tuple[int, ...]
    codes: tuple[str, ...]
    before: tuple[int, ...]


def index_bits(n: int) -> int:
    """Bits of an index below n: ``ceil(log2 n)``, at least 1."""
    return max(1, (n - 1).bit_length())


@lru_cache(maxsize=4096)
def layout(n: int, k: int, code: str) -> ListLayout:
    """raw: k indices of ceil(log2 n) bits. bitmap: n bits, of which those in the list are set. elias-fano: see below."""
    if k == 0:
        return ListLayout(FIXED.index(code), 0, 0)
    if code == "raw":
        return ListLayout(0, index_bits(n), packed_bytes(k, index_bits(n)))
    if code == "bitmap":
        return ListLayout(1, 0, packed_bytes(n, 1))
    low, high = elias_fano_split(n, k)
    return ListLayout(2, low, packed_bytes(k, low) + packed_bytes(high, 1))


def elias_fano_split(n: int, k: int) -> tuple[int, int]:
    """(l, bits of the unary part) of the shortest code of k indices below n: about 2 + log2(n/k) bits each."""
    cost = {low: k * low + k + ((n - 1) >> low) for low in range(index_bits(n) + 1)}
    low = min(cost, key=cost.__getitem__)
    return low, k + ((n - 1) >> low)


@operation
def encode_indices(index: Tensor, n: int, code: str) -> Tensor:
    """Lists ``[b, k]`` int64, k >= 1 -> uint8 ``[b, w]``.

    Raises:
        PayloadError: a list that does not increase strictly, or leaves [0, n).
    """


@operation
def decode_indices(packed: Tensor, n: int, k: int, code: str) -> Tensor:
    """The inverse of :func:`encode_indices`: uint8 ``[b, w]``, w as :func:`layout` says -> ``[b, k]`` int64.

    Raises:
        PayloadError: another length, or bytes that are not such a list.
    """


@operation
def encode_indices_many(message: Tensor, many: TensorList, lists: PlaceLists, index: Tensor) -> None:
    """Writes the codes of the lists of several tensors, which lie side by side in ``index [K]`` int64 and are legal, to their
    places in ``message [s]`` uint8.
    """


@operation
def decode_indices_many(rows: Tensor, many: TensorList, lists: PlaceLists) -> tuple[Tensor, Tensor]:
    """The lists in ``rows [W, s]`` uint8, of all senders, side by side: (``[W, K]`` int64; ``[T]`` bool, of which tensors
    they are such as a sender writes). Of others they are in [0, n), if they do not raise.

    Raises:
        PayloadError: where the host can tell at once.
    """


def check_width(packed: Tensor, n: int, k: int, code: str) -> ListLayout:
    """The layout of a code, if ``packed [b, w]`` has its length.

    Raises:
        PayloadError: otherwise.
    """
    spec = layout(n, k, code)
    if packed.shape[1] != spec.size:
        raise PayloadError(f"field 'indices' of {packed.shape[1]} bytes, but its codes need {spec.size}")
    return spec


def refuse(why: int, n: int, k: int) -> None:
    """Raises the error for what native code has found.

    Raises:
        PayloadError, MemoryError: as :func:`explain`.
    """
    if why < 0:
        raise explain(why, n, k)


def explain(why: int, n: int, k: int) -> Exception:
    """The error for what is wrong with a list of k indices below n."""
    if why == NO_MEMORY:
        return MemoryError(f"kernels: no memory for a list of {k} indices")
    if why == NOT_INCREASING:
        return PayloadError("field 'indices' must increase strictly")
    if why == OUT_OF_RANGE:
        return PayloadError(f"field 'indices' must be in [0, {n})")
    return PayloadError(f"field 'indices' must have {k} bits set")


def check_list(index: Tensor, n: int) -> Tensor:
    """``index [b, k]`` itself, which has to increase strictly in [0, n). On an accelerator, which reports that later, clamped.

    Raises:
        PayloadError: otherwise.
    """
    if index.numel() == 0:
        return index
    k = index.shape[1]
    refuse_unless((index[:, 1:] > index[:, :-1]).all(), lambda: explain(NOT_INCREASING, n, k))
    refuse_unless((index[:, 0].min() >= 0) & (index[:, -1].max() < n), lambda: explain(OUT_OF_RANGE, n, k))
    return index if on_host(index.device) else index.clamp(0, n - 1)
