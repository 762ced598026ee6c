"""How counted wires are coded, and where those of a bucket lie once their widths are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.errors import PayloadError
from grace.kernels.index_lists import FIXED
from grace.kernels.index_lists.codes import varies

COUNT = 4  # bytes of the count
DENSE_COUNT = -1  # in place of the count: all n values follow, without indices


@dataclass(frozen=True)
class CountedCode:
    """index: a code of :data:`grace.kernels.index_lists.codes.CODES`. narrow: whether values are bfloat16."""

    index: str
    narrow: bool

    @property
    def gaps(self) -> bool:
        """Whether the size of a code depends on the places."""
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


@dataclass(frozen=True)
class Chosen:
    """What is to be sent of T tensors.

    widths: int64 ``[T]``, bytes of their wires. finite: ``[T]`` bool, which tensors are finite. notes: what their backend
    needs to write them.
    """

    widths: Tensor
    finite: Tensor
    notes: Any


class WirePlaces:
    """Where the wires of T tensors lie in the messages of W workers, all of the same layout.

    Args:
        widths: of each worker those of its wires, as they came from the network. own: this worker's rank.
        least, most: of each tensor, bytes that a sender writes.

    begins: of each tensor the byte where its sealed wire begins. sealed: the bytes of these. size: s, of a message. layout:
    what a backend makes of it.

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
        self.layout: Any = None

    def words(self, device: torch.device) -> Tensor:
        """int64 ``[T]``: where the headers of the sealed wires are, in int32."""
        return torch.tensor(self.begins).div_(4, rounding_mode="floor").to(device, non_blocking=True)


class CountedPlaces(WirePlaces):
    """Where counted wires lie.

    Args:
        widths, own: as for :class:`WirePlaces`. sizes: the n of each tensor. code: of the wires.

    rooms: for how many values of each wire there is room, all n if it has no list.

    Raises:
        PayloadError: a width that no sender writes.
    """

    def __init__(self, widths: Sequence[Sequence[int]], own: int, sizes: Sequence[int], code: CountedCode):
        super().__init__(widths, own, [COUNT] * len(sizes), [COUNT + code.value * n for n in sizes])
        self.rooms = [[(width - COUNT) // code.value for width in row] for row in self.widths]
