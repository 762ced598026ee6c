"""The wires of methods that send a few bits for each number, or for each of a list of places: signs, levels, exponents.

Letters: n numbers, of which k are sent; a head of f numbers that apply to all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grace import wire as wires
from grace.kernels import pack, packed_bytes, unpack
from grace.kernels.sparse import payloads


def join(head: Tensor, index: Tensor, codes: Tensor, bits: int, n: int, code: str) -> Tensor:
    """A head ``[f]`` of any dtype, index ``[k]`` ascending, codes ``[k]`` below 2**bits -> one wire uint8 ``[w]``.

    Layout: k (int32), head, codes (packed), indices.
    """
    count = torch.tensor([[index.numel()]], dtype=torch.int32, device=head.device)
    return payloads.join([count, head[None], pack(codes[None], bits)], index[None], n, code)[0]


def split(
    wire: Tensor, head: tuple[str, torch.dtype, int], bits: int, n: int, code: str
) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse of :func:`join`, for a wire ``[1, w]`` that padding may follow: head, index and codes (int64).

    Raises:
        PayloadError: a count, number or list that no sender writes.
    """
    count = ("count", torch.int32, 1)
    k = int(wires.split(wire, [count], slack=True)[0])
    wires.check_index("count", torch.tensor(k), n + 1)
    fields = [count, head, ("codes", torch.uint8, packed_bytes(k, bits))]
    _, front, packed, index = payloads.split(wire, fields, n, k, code, slack=True)
    return front[0], index[0], unpack(packed, bits, k)[0].long()


def split_all(wire: Tensor, head: tuple[str, torch.dtype, int], bits: int, n: int) -> tuple[Tensor, Tensor]:
    """A wire ``[b, w]`` of a head ``[b, f]`` and the codes of all n numbers, packed: the head, and the codes ``[b, n]``.

    Raises:
        PayloadError: a wire that is too short or too long.
    """
    front, packed = wires.split(wire, [head, ("codes", torch.uint8, packed_bytes(n, bits))])
    return front, unpack(packed, bits, n)
