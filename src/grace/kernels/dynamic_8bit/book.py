"""The codebook: its values, and how a number finds its code."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from grace.compute.host import to_device
from grace.errors import InputError

SIZE = 128
CELLS = 0x3F81  # the upper halves of the float32s from 0 to 1


@dataclass(frozen=True, eq=False)
class Codebook:
    """128 ascending magnitudes from 0 to at most 1, float32 ``[128]``, and tables for finding the nearest one.

    middle: ``[128]``, between a magnitude and the next; infinite for the last.
    floor: uint8 ``[0x3F81]``: how many middles are below all floats with this upper half.

    Raises:
        InputError: another shape or dtype, not ascending, or so dense that two middles share the upper half of their bits.
    """

    entries: Tensor
    middle: Tensor
    floor: Tensor

    def entries_on(self, device: torch.device) -> Tensor:
        """The magnitudes on a device, copied there once."""
        return _copy(self, device)

    @staticmethod
    def of(entries: Tensor) -> Codebook:
        """The codebook of these magnitudes, ``[128]`` float32.

        Raises:
            InputError: they do not ascend from 0 to at most 1, or lie too close together.
        """
        good = entries.shape == (SIZE,) and entries.dtype is torch.float32 and entries.is_contiguous()
        if not good or entries[0] != 0 or entries[-1] > 1 or not bool((entries[1:] > entries[:-1]).all()):
            raise InputError("codebook: needs 128 float32 magnitudes that ascend from 0 to at most 1")
        middle = (entries[1:].double() + entries[:-1].double()).div_(2).float()  # as `nearest`
        half = middle.view(torch.int32) >> 16
        if bool((half[1:] == half[:-1]).any()):
            raise InputError("codebook: no two middles may agree in the upper 16 bits; use magnitudes further apart")
        edges = torch.arange(CELLS, dtype=torch.int32, device="cpu") << 16
        floor = torch.bucketize(edges.view(torch.float32), middle).to(torch.uint8)  # middles below each edge
        return Codebook(
            entries, torch.cat((middle, torch.tensor([math.inf], dtype=torch.float32, device="cpu"))), floor
        )


@functools.cache
def _copy(book: Codebook, device: torch.device) -> Tensor:
    return to_device(book.entries, device, waits=True)
