"""Hash functions and the count sketch.

Letters: b rows of n numbers; R hash functions; a sketch has R rows of c cells; P = 2**31 - 1. Of a bucket: T tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from grace.compute.dispatch import operation
from grace.kernels.tensor_list import TensorList

__all__ = [
    "PRIME",
    "add_sketch_",
    "count_sketch",
    "count_sketches_many",
    "hash_coefficients",
    "polynomial_hash",
    "read_sketches_many",
    "sketch_add_",
    "sketch_hashes",
    "sketch_query",
]

PRIME = (1 << 31) - 1


def sketch_unit(n: int) -> float:
    """The factor of the sums of n numbers when they are sent: with it they cannot overflow, whatever the numbers are."""
    return 2.0 ** -n.bit_length()


@operation
def hash_coefficients(words: Tensor, degree: int) -> Tensor:
    """Random int32 words, R (degree + 1) or more of them -> int64 ``[R, degree + 1]`` in [0, P), the first not zero."""


@operation
def polynomial_hash(coefficients: Tensor, keys: Tensor) -> Tensor:
    """``[R, d + 1]`` and keys ``[m]`` in [0, P) -> ``[R, m]``: ``(a_0 i^d + ... + a_d) mod P``, (d+1)-wise independent."""


@operation
def sketch_hashes(words: Tensor, rows: int, n: int, cols: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Piece by piece for the keys 0..n-1: their slice, their cells ``[R, m]`` (pairwise independent), and their signs
    ``[R, m]``, 1 or -1 (4-wise independent). ``words`` are 6 R random int32 numbers.
    """


@operation
def sketch_add_(sketch: Tensor, numbers: Tensor, cells: Tensor, signs: Tensor) -> None:
    """``sketch[:, j, cells[j, i]] += signs[j, i] numbers[:, i]``: ``[b, R, c]``, ``[b, m]``, ``[R, m]``, ``[R, m]``."""


@operation
def sketch_query(sketch: Tensor, cells: Tensor, signs: Tensor) -> Tensor:
    """``[b, m]``: the median over j of ``signs[j, i] sketch[:, j, cells[j, i]]``; for an even R the lower one."""


@operation
def count_sketch(numbers: Tensor, words: Tensor, rows: int, cols: int) -> Tensor:
    """``[b, n]`` -> float32 ``[b, R c]``: their sketches, with hashes from 6 R random int32 ``words``. A cell's numbers are
    added up in order, in float64; the sum is divided by the power of two above n.
    """


@operation
def add_sketch_(out: Tensor, sketch: Tensor, words: Tensor, rows: int, scale: float) -> None:
    """``out [b, n] += scale`` times what a sketch ``[b, R c]`` of :func:`count_sketch`, with the same words, says of each
    number: the median of its cells, at most the largest float32.
    """


@operation
def count_sketches_many(message: Tensor, many: TensorList, rows: int, cols: tuple[int, ...], step: int) -> None:
    """As :func:`count_sketch` for each of T tensors, with so many columns, into its place in ``message [s]`` float32; places
    are in bytes. The numbers are the rests, or where there are none the xs; the words are those of its stream at this step.
    """


@operation
def read_sketches_many(message: Tensor, many: TensorList, rows: int, cols: tuple[int, ...], step: int) -> Tensor:
    """Sets each of T tensors x, float32, to what its sketch says, which :func:`count_sketches_many` has put into
    ``message [s]`` float32: ``[T]`` bool, which sketches are finite.
    """
