"""Lists of indices in few bytes. A list is strictly increasing; k, n and the code are known to both sides.

==========  ====================================================  ==================================================
code        bytes (n numbers of which k are listed)               bits per index at k/n = 0.5, 0.1, 0.01, 0.001
==========  ====================================================  ==================================================
raw         ceil(k ceil(log2 n) / 8)                              ceil(log2 n), 20 for a million
bitmap      ceil(n / 8)                                           2, 10, 100, 1000
elias-fano  about k (2 + log2(n/k)) / 8, from k and n alone       2.0 (2 as bitmap), 5.3, 8.6, 12.0
rice        depends on the list; the best for random ones         2.0, 4.8, 8.1, 11.5
delta       depends on the list; the best for clustered ones      about 1.5 more than the information in it
auto        the smallest of raw, bitmap and elias-fano, by size:  the least of them
            it follows from k and n, so nothing on the wire
            says which
==========  ====================================================  ==================================================

The information in a random list is 2.0, 4.7, 8.1 and 11.4 bits per index. An empty list takes no byte in any code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from grace.errors import PayloadError, out_of_range
from grace.kernels.index_codes import gaps
from grace.kernels.index_codes.fixed import FIXED, check_list, decode_indices, encode_indices, layout
from grace.kernels.index_codes.fixed import index_bits as index_bits

IndexCode: TypeAlias = Literal["raw", "bitmap", "delta", "elias-fano", "rice", "auto"]


class _Varying(NamedTuple):
    """The largest size, and codes of one list ``[k]``, k >= 1; the decoder also says how many bytes it took."""

    most: Callable[[int, int], int]
    encode: Callable[[Tensor, int], Tensor]
    decode: Callable[[Tensor, int, int], tuple[Tensor, int]]


_VARYING = {
    "delta": _Varying(gaps.delta_most, gaps.delta_encode, gaps.delta_decode),
    "rice": _Varying(gaps.rice_most, gaps.rice_encode, gaps.rice_decode),
}
CODES: tuple[str, ...] = (*FIXED, *_VARYING, "auto")
_MOST = 1 << 31


def varies(code: str) -> bool:
    """True if the size of this code depends on the list."""
    return code in _VARYING


@lru_cache(maxsize=4096)
def choose(n: int, k: int) -> str:
    """The code that ``auto`` stands for: the smallest of those of fixed size, and the first of equal ones."""
    return min(FIXED, key=lambda code: layout(n, k, code).size)


def fixed_code(n: int, k: int, code: str) -> str:
    """The code of fixed size that ``code`` is or stands for."""
    return choose(n, k) if code == "auto" else code


def size(n: int, k: int, code: str) -> int | None:
    """Bytes of k indices below n; None if they depend on the list."""
    return None if varies(code) else most(n, k, code)


def most(n: int, k: int, code: str) -> int:
    """Bytes of k indices below n at most."""
    if not 0 <= k <= n <= _MOST:
        raise out_of_range("codecs", "n, k", (n, k), f"0 <= k <= n <= {_MOST}")
    if k == 0:
        return 0
    return _VARYING[code].most(n, k) if varies(code) else layout(n, k, fixed_code(n, k, code)).size


def encode(index: Tensor, n: int, code: str) -> Tensor:
    """Lists ``[b, k]`` int64 -> uint8 ``[b, w]``. Where sizes vary, zeros follow the shorter ones.

    Raises:
        PayloadError: a list that does not increase strictly, or leaves [0, n).
    """
    b, k = index.shape
    if most(n, k, code) == 0 or b == 0:
        return torch.zeros(b, 0, dtype=torch.uint8, device=index.device)
    if varies(code):
        return pad([_VARYING[code].encode(row, n) for row in check_list(index, n)])
    return encode_indices(index, n, fixed_code(n, k, code))


def decode(packed: Tensor, n: int, k: int, code: str, *, slack: bool = False) -> Tensor:
    """The inverse of :func:`encode`: uint8 ``[b, w]`` -> ``[b, k]`` int64. With ``slack`` more bytes may follow.

    Raises:
        PayloadError: too few or too many bytes, or not a list that increases strictly in [0, n).
    """
    b, w = packed.shape
    if varies(code) and k:
        lists = [take(row[None], n, k, code) for row in packed]
        used = max((end for _, end in lists), default=w)
        index = (
            torch.cat([places for places, _ in lists]) if lists else torch.zeros(0, k, dtype=torch.int64, device="cpu")
        )
    else:
        used = most(n, k, code)
        if used > w:
            raise PayloadError(f"truncated payload: field 'indices' needs {used} bytes of {w}")
        index = torch.zeros(b, k, dtype=torch.int64, device=packed.device)
        if k:
            index = decode_indices(packed[:, :used], n, k, fixed_code(n, k, code))
    if used != w and not slack:
        raise PayloadError(f"field 'indices' of {w} bytes, but its codes end at {used}")
    return index


def take(packed: Tensor, n: int, k: int, code: str) -> tuple[Tensor, int]:
    """Takes one list ``[1, k]`` from the front of uint8 ``[1, w]``; returns it and its bytes: other fields may follow.

    Raises:
        PayloadError: as :func:`decode`.
    """
    if not varies(code) or k == 0:
        return decode(packed, n, k, code, slack=True), most(n, k, code)
    most(n, k, code)
    index, used = _VARYING[code].decode(packed[0].contiguous(), n, k)
    return check_list(index[None], n), used


def pad(rows: list[Tensor]) -> Tensor:
    """Rows ``[w_i]`` -> ``[b, max w_i]``, with zeros after the shorter ones."""
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
