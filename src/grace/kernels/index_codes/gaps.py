"""Codes of gaps, whose size depends on the list: delta, Rice.

The gaps of a list are ``d_1 = i_1, d_j = i_j - i_(j-1) - 1``. The parts of all codes are laid out as separate streams,
first the fixed fields, then the others, so that each stream is encoded and decoded as a whole, without a loop over
elements.

Letters: one list of k >= 1 indices, strictly increasing, below n; w bits of a gap.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grace.errors import PayloadError
from grace.kernels.packing import pack, packed_bytes, unpack

BLOCK = 128  # gaps that share a width
_WIDTH_BITS = 5
_GOLDEN = math.log((math.sqrt(5) - 1) / 2)


def gaps(index: Tensor) -> Tensor:
    """``[k]`` -> ``[k]``: how many places lie between an index and the one before."""
    return torch.diff(index, prepend=index.new_tensor([-1])) - 1


def _indices(gap: Tensor) -> Tensor:
    return (gap + 1).cumsum(0) - 1


# ---- delta: blocks of 128 gaps in as many bits as the largest of the block needs --------------------------------------
def delta_head(k: int) -> int:
    """Bytes of the widths of all blocks of k gaps."""
    return packed_bytes(math.ceil(k / BLOCK), _WIDTH_BITS)


def delta_most(n: int, k: int) -> int:
    """Bytes that k indices below n need at most."""
    return delta_head(k) + packed_bytes(k, (n - 1).bit_length())


def delta_encode(index: Tensor, n: int) -> Tensor:
    """``index [k]``, rising -> bytes ``[w]``: the widths of all blocks, 5 bits each; then the blocks, each packed
    by its width and starting at a byte.
    """
    blocks = _in_blocks(gaps(index))  # [nb, 128]
    width = _bit_length(blocks.amax(dim=1))  # [nb]
    starts, end = _places(width, index.numel())
    body = torch.zeros(int(starts[-1]) + 16 * int(width[-1]), dtype=torch.uint8, device=index.device)
    for w in sorted(set(width.tolist())):
        if w:
            selected = width == w
            at = starts[selected, None] + torch.arange(
                16 * w, dtype=torch.int64, device=index.device
            )  # [blocks of this width, bytes]
            body[at] = pack(blocks[selected], w)
    return torch.cat([pack(width[None], _WIDTH_BITS)[0], body[:end]])


def delta_decode(packed: Tensor, n: int, k: int) -> tuple[Tensor, int]:
    """Bytes ``[w]`` -> the list ``[k]``, and how many bytes it took."""
    count = math.ceil(k / BLOCK)
    at = delta_head(k)
    _require(packed, at)
    width = unpack(packed[None, :at], _WIDTH_BITS, count)[0].long()
    starts, end = _places(width, k)
    _require(packed, at + end)
    body = packed.new_zeros(int(starts[-1]) + 16 * int(width[-1]))
    body[:end] = packed[at : at + end]
    blocks = torch.zeros(count, BLOCK, dtype=torch.int64, device=packed.device)
    for w in sorted(set(width.tolist())):
        if w:
            selected = width == w
            where = starts[selected, None] + torch.arange(16 * w, device=packed.device, dtype=torch.int64)
            blocks[selected] = unpack(body[where], w, BLOCK).long()
    return _indices(blocks.view(-1)[:k]), at + end


def _in_blocks(gap: Tensor) -> Tensor:
    blocks = gap.new_zeros(math.ceil(gap.numel() / BLOCK) * BLOCK)
    blocks[: gap.numel()] = gap
    return blocks.view(-1, BLOCK)


def _bit_length(value: Tensor) -> Tensor:
    """Bits of each number, 0 for 0; exact below 2**53."""
    return torch.frexp(value.double()).exponent.long()


def _places(width: Tensor, k: int) -> tuple[Tensor, int]:
    """The start of each block in the body, in bytes, and the end of the last one, which may be shorter."""
    size = 16 * width  # 128 w bits
    starts = size.cumsum(0) - size
    last = k - BLOCK * (width.numel() - 1)
    return starts, int(starts[-1]) + packed_bytes(last, int(width[-1]))


# ---- Rice: the r low bits of a gap as they are, the rest in unary -----------------------------------------------------
def rice_parameter(n: int, k: int) -> int:
    """``max(0, 1 + floor(log2(ln((sqrt 5 - 1)/2) / ln(1 - p))))`` with p = k/n: the best one for random lists."""
    return 0 if k == n else max(0, 1 + math.floor(math.log2(_GOLDEN / math.log1p(-k / n))))


def rice_head(n: int, k: int) -> int:
    """Bytes of r and of the low bits of k gaps."""
    return 1 + packed_bytes(k, rice_parameter(n, k))


def rice_most(n: int, k: int) -> int:
    """Bytes that k indices below n need at most: the gaps sum to n - k at most, which bounds the unary part."""
    return rice_head(n, k) + packed_bytes(k + ((n - k) >> rice_parameter(n, k)), 1)


def rice_encode(index: Tensor, n: int) -> Tensor:
    """``index [k]``, rising -> bytes ``[w]``: one byte for r; the r low bits of all gaps, packed; then ``gap >> r``
    ones and a zero for each.
    """
    k = index.numel()
    r = rice_parameter(n, k)
    gap = gaps(index)
    ends = ((gap >> r) + 1).cumsum(0) - 1  # where the zeros are
    unary = torch.ones(int(ends[-1]) + 1, dtype=torch.uint8, device=index.device)
    unary[ends] = 0
    parts = [torch.tensor([r], dtype=torch.uint8, device=index.device), pack(unary[None], 1)[0]]
    if r:
        parts.insert(1, pack(gap[None] & ((1 << r) - 1), r)[0])
    return torch.cat(parts)


def rice_decode(packed: Tensor, n: int, k: int) -> tuple[Tensor, int]:
    """Bytes ``[w]`` -> the list ``[k]``, and how many bytes it took.

    Raises:
        PayloadError: they are no such list.
    """
    _require(packed, 1)
    r = int(packed[0])
    if r > 31:
        raise PayloadError(f"field 'indices' must have a Rice parameter of at most 31, got {r}")
    at = 1 + packed_bytes(k, r)
    _require(packed, at)
    most = packed_bytes(k + ((n - k) >> r), 1)  # no more unary bytes than a list below n can have
    bits = unpack(packed[None, at : at + most], 1, 8 * min(most, packed.numel() - at))[0]
    ends = (bits == 0).nonzero()[:k, 0]
    if ends.numel() < k:
        raise PayloadError(f"truncated payload: field 'indices' has {ends.numel()} codes of {k}")
    end = at + packed_bytes(int(ends[-1]) + 1, 1)
    if bool(bits[int(ends[-1]) : 8 * (end - at)].any()):
        raise PayloadError("field 'indices' must end in zero bits")
    gap = (torch.diff(ends, prepend=ends.new_tensor([-1])) - 1) << r
    if r:
        gap |= unpack(packed[None, 1:at], r, k)[0].long()
    return _indices(gap), end


def _require(packed: Tensor, size: int) -> None:
    if packed.numel() < size:
        raise PayloadError(f"truncated payload: field 'indices' needs {size} bytes of {packed.numel()}")
