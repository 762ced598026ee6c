"""Random rotations of blocks, and codes of rotated blocks: centroids of the normal distribution and one scale.

A wire ``[b, w]`` of :func:`encode_rotated` holds a row's scales (float32 ``[nb]``), then its codes, packed. One that was
rotated in private begins with the key of its sender's stream (two words of 32 bits): who decodes it draws the signs
from that stream, at its own step, and needs to know neither the sender nor the hop.

Letters: b rows of n numbers; blocks of h = 2**j numbers, nb = ceil(n/h) of them per row, the last one shorter; H is
Sylvester's Hadamard matrix over sqrt(h), D the random signs of a stream, the same for all rows, and R = H D; W workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from grace.compute.dispatch import operation
from grace.flags.finite import Flag
from grace.kernels.blocks import block_count
from grace.kernels.packing import packed_bytes
from grace.kernels.tensor_list import TensorList

if TYPE_CHECKING:
    from grace.random import Stream

__all__ = [
    "CENTROIDS",
    "MOST_AT_ONCE",
    "CentroidCode",
    "encode_rotated",
    "encode_rotated_many",
    "hadamard",
    "rotate_back_many",
    "rotate_blocks",
    "rotate_blocks_back",
    "rotate_many",
    "rotate_norms",
    "rotate_norms_many",
    "sum_rotated",
    "sum_rotated_many",
]

# the Lloyd-Max quantizers of the standard normal distribution, by the bits of a code: positive halves
CENTROIDS = {
    1: (0.7978846,),
    2: (0.4527800, 1.5104176),
    3: (0.2450942, 0.7560053, 1.3439093, 2.1519457),
    4: (0.1283950, 0.3880483, 0.6567591, 0.9423405, 1.2562312, 1.6180464, 2.0690172, 2.7325896),
}
MOST_AT_ONCE = 4096  # numbers of a block that one program rotates back for one sender after the other
KEY = 8  # bytes of the key of a stream, in front of a wire that was rotated in private
BAD_SCALE = "field 'scales' must be finite and not negative, and small enough for its codes"


class CentroidCode(NamedTuple):
    """Codes of 1 to 4 bits, for rotated blocks of so many numbers, a power of two from 2 to 65536.

    unbiased: which scale a block has. private: the wires begin with the key of the stream that rotated them.
    """

    bits: int
    block: int
    unbiased: bool = True
    private: bool = False

    def payload(self, n: int) -> int:
        """Bytes of the wire of n numbers."""
        return KEY * self.private + 4 * block_count(n, self.block) + packed_bytes(n, self.bits)


@operation
def hadamard(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> new ``[b, n]``: each block of h numbers times ``H / sqrt(h)``, which is its own inverse.

    What is left after the last whole block is cut into powers of two, the largest first, down to 16, each transformed on its
    own; the last numbers, fewer than 16, stay as they are. A block with a number beyond 2**96 is transformed at 2**-32 of its
    size; results beyond float32 become its largest number.

    The order of additions: at distance s = 1, 2, 4, ..., h/2 the pair (p, q) becomes (p + q, p - q); then one product
    with the float32 nearest to 1/sqrt(h).
    """


@operation
def rotate_blocks(rows: Tensor, block: int, rng: Stream) -> Tensor:
    """``[b, n]`` -> new ``[b, n]``: ``R x = H D x``. Number i of each row changes its sign where bit i of the stream's words
    is set.
    """


@operation
def rotate_blocks_back(rows: Tensor, block: int, rng: Stream) -> Tensor:
    """``[b, n]`` -> new ``[b, n]``: ``D H y``, the inverse of :func:`rotate_blocks`."""


@operation
def rotate_norms(
    rows: Tensor, block: int, rng: Stream, out: Tensor, memory: Tensor | None = None
) -> tuple[Tensor, Flag]:
    """Sets ``out [1, n]`` to ``R p`` for ``p = rows + memory``: (the norms of its blocks ``[1, nb]``, whether p was finite).
    If it was not, ``out`` and the norms mean nothing. All are float32 ``[1, n]``, contiguous.
    """


@operation
def encode_rotated(
    rows: Tensor, code: CentroidCode, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
) -> tuple[Tensor, bool]:
    """``p = rows + memory`` -> (wire ``[b, w]`` uint8, whether p was finite).

    A number of a block y of R p becomes the code of the centroid c nearest to it in units of the block's root mean square, of
    two equally near ones the larger. The block's scale is that unit times ``|u|^2 / <c, u>`` (unbiased) or ``<c, u> / |c|^2``,
    u = y in that unit; no larger than what keeps all numbers finite. ``rest``, which may be ``rows``, becomes p minus what
    the wire says. If p is not finite, wire and rest mean nothing.

    Rows, memory and rest are float32 ``[b, n]``, contiguous.
    """


@operation
def sum_rotated(
    received: Sequence[Tensor], out: Tensor, code: CentroidCode, weight: float, rng: Stream, *, add: bool = False
) -> None:
    """Sets (adds to, with ``add``) ``out [b, n]``: weight times the sum of what the wires ``[b, w]`` say. Those of one
    rotation are added up in order as they are, rotated, and rotated back once. In private each row of each wire is rotated
    back by its own key, at the step of ``rng``, and added to ``out``, one after the other: D differs, so nothing is shared.

    Raises:
        PayloadError: a length or scale that no sender writes; ``out`` is then undefined.
    """


@operation
def encode_rotated_many(message: Tensor, many: TensorList, code: CentroidCode, step: int) -> Tensor:
    """As :func:`encode_rotated` for each tensor, into its place in ``message [s]`` uint8, with the stream that all ranks
    share, or in private the tensor's own, forked by 0, at this step: ``[T]`` bool, which were finite. Overwrites
    ``many.work``.
    """


@operation
def sum_rotated_many(rows: Tensor, many: TensorList, code: CentroidCode, weight: float, step: int) -> Tensor:
    """As :func:`sum_rotated` for each tensor, from its places in ``rows [W, s]`` uint8: ``[T]`` bool, which had wires such as
    a sender writes. In private a block is of at most 4,096 numbers: :data:`MOST_AT_ONCE`.
    """


@operation
def rotate_many(storage: Tensor, many: TensorList, into: TensorList, block: int, salt: int, step: int) -> Tensor:
    """Sets the xs of ``into``, float32, to ``R p`` for ``p = x + memory`` of each tensor of ``many``, as
    :func:`rotate_blocks` with the stream that all ranks share, forked by ``salt``: ``[T]`` bool, which p were finite. The xs
    of both may be the same, and are on the device of ``storage``, of any shape.
    """


@operation
def rotate_norms_many(storage: Tensor, many: TensorList, block: int, salt: int, step: int) -> tuple[Tensor, Tensor]:
    """As :func:`rotate_many` into ``many.work``, whose xs are one row each: (the norms of all blocks, side by side, float32
    ``[blocks]``; ``[T]`` bool, which were finite).
    """


@operation
def rotate_back_many(
    storage: Tensor, many: TensorList, into: TensorList, block: int, salt: int, step: int, *, subtract: bool = False
) -> None:
    """Sets the xs of ``into``, float32, to ``D H y`` for the xs y of ``many``, float32, which mean nothing afterwards; or with
    ``subtract`` the rests of ``into`` to ``x + memory - D H y``. Otherwise as :func:`rotate_many`.
    """
