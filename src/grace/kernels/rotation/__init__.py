"""Fast orthonormal transforms. Letters: b rows of n numbers; blocks of h = 2**j numbers; H is Sylvester's Hadamard matrix."""

from __future__ import annotations

from torch import Tensor

from grace.compute.dispatch import operation

__all__ = ["hadamard"]


@operation
def hadamard(rows: Tensor, block: int) -> Tensor:
    """``[b, n]`` -> new ``[b, n]``: each block of h numbers times ``H / sqrt(h)``, which is its own inverse.

    What is left after the last whole block is cut into powers of two, the largest first, down to 16, each transformed on its
    own; the last numbers, fewer than 16, stay as they are. A block with a number beyond 2**96 is transformed at 2**-32 of its
    size; results beyond float32 become its largest number.

    The order of additions: at distance s = 1, 2, 4, ..., h/2 the pair (p, q) becomes (p + q, p - q); then one product
    with the float32 nearest to 1/sqrt(h).
    """
