"""Stochastic rounding to a table of integers that all workers share, so that sums of entries need no decoding.

Letters: n numbers in blocks of h, each with a bound A >= 0; T the table of 2**bits ascending integers, the first 0, the last
g; W workers, each the owner of a chunk of c = ceil(n/W) numbers, the last ones shorter, or empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from grace.compute.dispatch import operation

if TYPE_CHECKING:
    from grace.random import Stream

__all__ = ["decode_entries", "encode_entries", "sum_entries"]


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
