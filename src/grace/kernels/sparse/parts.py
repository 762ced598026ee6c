"""The parts of a sparse wire, for one row and for a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from grace.errors import InputError, PayloadError
from grace.kernels.index_codes.fixed import FIXED, PlaceLists, layout
from grace.kernels.packing import packed_bytes, packed_trits_bytes

LIST: Final = "list"  # in place of a code: the indices are there
DENSE: Final = "dense"  # in place of a code: all n values, without indices
NUMBERS = {name: number for number, name in enumerate((*FIXED, LIST, DENSE))}  # in native code
BAD_CODE = "field 'codes' has one that no sender writes"
BAD_VALUES = "field 'values' must be finite"


class WirePart(NamedTuple):
    """The part of one wire that belongs to one row.

    wire: uint8 ``[w]``, bytes side by side; its values begin at byte ``values``, the code of its k indices at ``codes``.
    code: of :data:`grace.kernels.index_codes.fixed.FIXED`; or LIST, with ``places [k]`` (int32 or int64) instead of
        codes; or DENSE.
    """

    wire: Tensor
    values: int
    codes: int
    k: int
    code: str
    places: Tensor | None = None


@dataclass(frozen=True)
class ScaledCodes:
    """Values that travel as one scale, float32, and codes: c, below ``count``, stands for ``(step c - unit) scale / unit``.

    bits: of a code; 0: in base 3, five to a byte.
    """

    bits: int
    count: int
    step: int
    unit: int

    def width(self, k: int) -> int:
        """Bytes of k values."""
        return 4 + (packed_bytes(k, self.bits) if self.bits else packed_trits_bytes(k))


class TopKPairs(NamedTuple):
    """The k largest numbers of a row, with a code of their indices, and as bfloat16 if ``narrow``."""

    k: int
    code: str
    narrow: bool = False

    @property
    def before(self) -> int:
        """Bytes of the values, which come before the indices."""
        return value_bytes(self.k, self.narrow, None)


@dataclass(frozen=True)
class Pairs:
    """The pairs of index and value in the wires of several rows.

    kept, codes: of each row how many pairs, 1 <= kept <= n, and the code of their indices, of
        :data:`grace.kernels.index_codes.fixed.FIXED`. narrow: whether values are bfloat16. grid: what they are instead of
        numbers.
    """

    kept: tuple[int, ...]
    codes: tuple[str, ...]
    narrow: bool
    grid: ScaledCodes | None = None

    @property
    def lists(self) -> PlaceLists:
        """Offsets of the places: in each wire its values come before them."""
        return PlaceLists(self.kept, self.codes, tuple(value_bytes(k, self.narrow, self.grid) for k in self.kept))

    def widths(self, sizes: Sequence[int]) -> list[int]:
        """Bytes of the wire of each row, of so many numbers."""
        rows = zip(sizes, self.kept, self.codes, self.lists.before, strict=True)
        return [before + layout(n, k, code).size for n, k, code, before in rows]


def value_bytes(k: int, narrow: bool, grid: ScaledCodes | None) -> int:
    """Bytes of k values in a wire: bfloat16 or float32, or on a grid."""
    return (2 if narrow else 4) * k if grid is None else grid.width(k)


def check_parts(parts: Sequence[WirePart], n: int, *, narrow: bool) -> list[tuple[int, int]]:
    """For each part: its code's number in native code, and how many low bits are packed. Its fields must lie inside its wire.

    Raises:
        InputError: a wire that is not uint8 ``[w]``, bytes side by side.
        PayloadError: too short a wire.
    """
    width, out = 2 if narrow else 4, []
    for part in parts:
        number, low, size = layout(n, part.k, part.code) if part.code in FIXED else (NUMBERS[part.code], 0, 0)
        _check_inside("values", part, part.values, (n if part.code == DENSE else part.k) * width)
        _check_inside("indices", part, part.codes, size)
        out.append((number, low))
    return out


def _check_inside(name: str, part: WirePart, at: int, size: int) -> None:
    wire = part.wire
    if wire.dtype is not torch.uint8 or wire.ndim != 1 or (wire.numel() > 1 and wire.stride(0) != 1):
        raise InputError(f"kernels: a wire must be uint8 [w] with bytes side by side, got {wire.dtype} {wire.shape}")
    if at + size > wire.numel():
        raise PayloadError(f"truncated payload: field {name!r} needs bytes {at} to {at + size} of {wire.numel()}")
