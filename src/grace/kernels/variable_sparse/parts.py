"""Code of counted wires, and positions of those of a bucket once their widths are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace import wire as wires
from grace.compute.host import host_int64
from grace.errors import PayloadError
from grace.kernels.index_codes.codes import most, varies
from grace.kernels.index_codes.fixed import FIXED
from grace.kernels.sparse_codes import Codes, coded_bytes

L = TypeVar("L")
Numbers: TypeAlias = npt.NDArray[np.int64]
COUNT = 4  # bytes of the count
DENSE_COUNT = -1  # in place of the count: all n values follow, without indices


def fit_listed(bits: Numbers, each: int, sizes: Numbers) -> Numbers:
    """Greatest count of ``sizes [T]`` numbers that fits into ``bits [W, T]`` with ``each`` bits beside their places: ``[W,
    T]``.

    A list of k places takes no less than ``k log2(n / k)`` bits, and no less than k, if its size follows from n and k.
    """
    rooms = np.minimum(bits / (each + 1), sizes)
    for _ in range(3):
        place = np.maximum(np.log2(sizes / np.maximum(rooms, 1)), 1)
        rooms = np.minimum(bits / (each + place), sizes)
    return np.minimum(rooms.astype(np.int64) + 1, sizes)


@dataclass(frozen=True)
class CountedCode:
    """index: a code of :data:`grace.kernels.index_codes.codes.CODES`. narrow: whether values are bfloat16. codes: what travels
    instead of values; then there is always a list.
    """

    index: str
    narrow: bool
    codes: Codes | None = None

    @property
    def gaps(self) -> bool:
        """True if the size of a code depends on the places."""
        return varies(self.index)

    @property
    def number(self) -> int:
        """The code for kernels: its place in FIXED, or behind them."""
        return (*FIXED, "auto").index(self.index)

    @property
    def values(self) -> Literal["float32", "bfloat16"]:
        """Their type."""
        return "bfloat16" if self.narrow else "float32"

    @property
    def value(self) -> int:
        """Bytes of a value."""
        return 2 if self.narrow else 4

    @property
    def whole(self) -> bool:
        """True if all n values may travel, without a list."""
        return self.codes is None

    def bytes_of(self, k: int) -> int:
        """Bytes of k values, or of what travels in their place."""
        return self.value * k if self.codes is None else coded_bytes(self.codes, k)

    def most(self, n: int) -> int:
        """Bytes of a wire of n numbers at most."""
        return COUNT + self.bytes_of(n) + (0 if self.whole else 2 * most(n, n, self.index) + 8)  # fewer may need more

    def rooms(self, widths: Numbers, sizes: Numbers) -> Numbers:
        """For how many values wires of ``widths [W, T]`` bytes have room, of ``sizes [T]`` numbers: ``[W, T]``."""
        if self.codes is None:
            return (widths - COUNT) // self.value
        return fit_listed(8 * (widths - COUNT - coded_bytes(self.codes, 0)), self.codes.bits, sizes)


@dataclass(frozen=True)
class Chosen:
    """The numbers selected from T tensors, to be sent.

    widths: int64 ``[T]``, bytes of their wires. finite: ``[T]`` bool, which tensors are finite. notes: what their backend
    needs to write them.
    """

    widths: Tensor
    finite: Tensor
    notes: Any


class WirePlaces:
    """Positions of the wires of T tensors in the messages of W workers, all of the same layout.

    Args:
        widths: of each worker those of its wires, as they came from the network. own: this worker's rank.
        least, most: of each tensor, bytes that a sender writes.

    begins: of each tensor the byte where its sealed wire begins. sealed: the bytes of these. size: s, of a message. step: of
    the exchange, which keys what wires are read with.

    Raises:
        PayloadError: a width that no sender writes.
    """

    def __init__(self, widths: Sequence[Sequence[int]], own: int, least: Sequence[int], most: Sequence[int]):
        self.widths, self.own, self.limits = [list(row) for row in widths], own, list(most)
        for rank, row in enumerate(self.widths):
            for width, low, limit in zip(row, least, most, strict=True):
                if not low <= width <= limit:
                    raise PayloadError(f"field 'width' of rank {rank} must be in [{low}, {limit}], got {width}")
        self.sealed = tuple(wires.sealed_bytes(max(column)) for column in zip(*self.widths, strict=True))
        self.begins = [sum(self.sealed[:t]) for t in range(len(self.sealed))]
        self.size = sum(self.sealed)
        self.step = 0
        self._layout: Any = None

    def once(self, make: Callable[[], L]) -> L:
        """The result of ``make``, a backend's data for this selection: computed once."""
        if self._layout is None:
            self._layout = make()
        layout: L = self._layout
        return layout

    def words(self, device: torch.device) -> Tensor:
        """int64 ``[T]``: where the headers of the sealed wires are, in int32."""
        return host_int64(self.begins).div_(4, rounding_mode="floor").to(device, non_blocking=True)


class CountedPlaces(WirePlaces):
    """Positions of counted wires.

    Args:
        widths, own: as for :class:`WirePlaces`. sizes: the n of each tensor. code: of the wires.

    rooms: int64 ``[W, T]``, for how many values of each wire there is room, all n if it has no list. listed: likewise, for
    how many places.

    Raises:
        PayloadError: a width that no sender writes.
    """

    def __init__(self, widths: Sequence[Sequence[int]], own: int, sizes: Sequence[int], code: CountedCode):
        super().__init__(widths, own, [COUNT + code.bytes_of(0)] * len(sizes), list(map(code.most, sizes)))
        there = np.array(self.widths, np.int64)
        self.rooms = code.rooms(there, np.array(sizes, np.int64))
        self.listed = self.rooms * ((there < self.limits) | (not code.whole))
