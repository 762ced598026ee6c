"""Stochastic rounding to a table of integers that all workers share, so that sums of entries need no decoding.

Letters: n numbers in blocks of h, each with a bound A >= 0; T the table of 2**bits ascending integers, the first 0, the last
g; W workers, each the owner of a chunk of c = ceil(n/W) numbers, the last ones shorter, or empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.packing import packed_bytes
from grace.kernels.tensor_list import TensorList
from grace.wire import with_gaps

if TYPE_CHECKING:
    from grace.random import Stream

__all__ = [
    "Chunks",
    "decode_entries",
    "decode_entries_many",
    "encode_entries",
    "encode_entries_many",
    "sum_entries",
    "sum_entries_many",
]


class Chunks:
    """Positions in messages of a bucket of what owners of chunks are sent, and of what they send: one part for each
    tensor, with the gap behind it (:func:`grace.wire.with_gaps`).

    Args:
        sizes: n of each tensor. world: W. table: T. bits: of a sum.

    counts: c of each. codes, sums: where the parts begin, and where the last one ends.
    """

    def __init__(self, sizes: Sequence[int], world: int, table: tuple[int, ...], bits: int):
        self.world, self.table, self.bits = world, table, bits
        self.counts = [-(-n // world) for n in sizes]
        self.codes = _begins([packed_bytes(c, code_bits(table)) for c in self.counts])
        self.sums = _begins([packed_bytes(c, bits) for c in self.counts])


def code_bits(table: tuple[int, ...]) -> int:
    """Bits of a code."""
    return (len(table) - 1).bit_length()


def _begins(widths: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(with_gaps(widths))]


@operation
def encode_entries(
    y: Tensor,
    bounds: Tensor,
    block: int,
    table: tuple[int, ...],
    world: int,
    rng: Stream,
    shared: Stream,
    rows: Tensor | None = None,
    memory: Tensor | None = None,
    rest: Tensor | None = None,
) -> Tensor:
    """Codes z of float32 y ``[1, n]``, packed for the owners of chunks, zeros behind the last: ``[W, ceil(c bits / 8)]``.

    ``T[z]`` is a neighbour in T of ``v = (clip(y/A, -1, 1) + 1) g/2``: the upper one, hi, where ``u (hi - lo) < v - lo``,
    u the numbers of ``rng``. What is within 1e-6 of an integer, relative to ``max(v, 1)``, counts as that integer; y/A is 0
    in blocks whose A is below 2**-126. bounds are A ``[1, nb]``.

    ``rest [1, n]``, if it is wanted, becomes ``rows + memory`` minus what the codes say, rotated back with the signs of
    ``shared``; it may be ``rows``.
    """


@operation
def sum_entries(received: Tensor, table: tuple[int, ...], count: int, bits: int) -> Tensor:
    """Packed codes of ``count`` numbers from W workers, ``[W, w]`` uint8 -> ``[1, ceil(count bits / 8)]`` uint8: the sums of
    their entries, packed with so many bits, in which they must fit.
    """


@operation
def decode_entries(sums: Tensor, bits: int, g: int, bounds: Tensor, out: Tensor, block: int, shared: Stream) -> None:
    """Sets ``out [1, n]`` to the mean that packed sums of entries say, ``[W, ceil(c bits / 8)]`` of the chunks of W workers:
    ``(s 2/(g W) - 1) A`` for a sum s, the bracket in float64 and rounded once; rotated back with the signs of ``shared``.

    Raises:
        PayloadError: a sum above g W; ``out`` is then undefined.
    """


@operation
def encode_entries_many(
    message: Tensor, many: TensorList, chunks: Chunks, bounds: Tensor, block: int, step: int
) -> None:
    """As :func:`encode_entries` for each tensor of a bucket, whose rotated numbers are the xs of ``many.work``, into
    ``message [W, chunks.codes[-1]]`` uint8, with the stream of the tensor and the one that all ranks share, forked by 0, at
    this step. bounds: of all blocks, side by side. Rests are set, if there are any, and ``many.work`` means nothing then.
    """


@operation
def sum_entries_many(received: Tensor, message: Tensor, many: TensorList, chunks: Chunks) -> None:
    """As :func:`sum_entries` for each tensor, from ``received [W, chunks.codes[-1]]`` uint8 into
    ``message [chunks.sums[-1]]`` uint8.
    """


@operation
def decode_entries_many(
    sums: Tensor, many: TensorList, chunks: Chunks, bounds: Tensor, block: int, step: int
) -> Tensor:
    """As :func:`decode_entries` for each tensor, from ``sums [W, chunks.sums[-1]]`` uint8 into the float32 xs: ``[T]`` bool,
    which had sums such as a sender writes.
    """
