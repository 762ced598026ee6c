"""Rules for the values that the bits of a wire stand for."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from grace import wire as wires
from grace.kernels.blocks import block_count
from grace.kernels.packing import packed_bytes

VOTES, SIGNS, TWO_MEANS = range(3)  # the rules
ALL, EVEN, ODD, NONE = range(4)  # positions whose zeros count as positive
FIELDS: Final[dict[int, tuple[str, ...]]] = {VOTES: (), SIGNS: ("scales",), TWO_MEANS: ("lo", "hi")}
BAD_VOTE = "field 'votes' must be in [0, 242]"


def positive_zeros(zero: str, phase: int) -> int:
    """The positions whose zeros count as positive: all ("plus"), or those that are odd together with the phase ("parity")."""
    return ALL if zero == "plus" else ODD - (phase & 1)


def wire_bytes(rule: int, n: int, block: int) -> int:
    """Bytes of the wire of n numbers."""
    return 4 * len(FIELDS[rule]) * block_count(n, block) + packed_bytes(n, 1)


def split_wire(rule: int, wire: Tensor, n: int, block: int) -> list[Tensor]:
    """The checked fields of a wire ``[b, w]``, and its bits.

    Raises:
        PayloadError: a length or scale that no sender writes.
    """
    names, nb = FIELDS[rule], block_count(n, block)
    bits = "bits" if rule == TWO_MEANS else "signs" if rule == SIGNS else "votes"
    out = wires.split(wire, [*((name, torch.float32, nb) for name in names), (bits, torch.uint8, packed_bytes(n, 1))])
    for name, field in zip(names, out[:-1], strict=True):
        wires.check_scale(name, field.abs() if rule == TWO_MEANS else field)
    return out
