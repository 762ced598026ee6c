"""The specification of the random operations, in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from grace.random import Stream

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_CHUNK = 1 << 15  # groups at a time: the working set stays in the cache
SORTED_SUBSET = 4096  # up to here a subset is drawn by sorting keys, beyond by a Feistel permutation
FEISTEL_ROUNDS = 6


def fill_words(out: Tensor, rng: Stream, first: int) -> None:
    key = rng.key()
    for start in range(0, len(out), _CHUNK):
        stop = min(len(out), start + _CHUNK)
        counter = torch.arange(first + start, first + stop, dtype=torch.int32, device=out.device)
        out[start:stop, 0], out[start:stop, 1] = threefry2x32(key, counter, rng.step)


def fill_uniform(out: Tensor, rng: Stream, first: int) -> None:
    out.copy_(rng.lanes(out.numel(), out.device, first)).add_(0.5).mul_(2.0**-16)


def fill_subset(out: Tensor, rng: Stream, n: int) -> None:
    k = out.numel()
    if n > SORTED_SUBSET:
        _feistel(out, rng, n)
    else:
        words = rng.words(n, out.device).to(torch.int64)
        out.copy_(((words[:, 0] << 32) + words[:, 1]).argsort(stable=True)[:k])


def _to_signed(word: int) -> int:
    """A 32-bit word as the int32 that torch wants."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


def threefry2x32(key: tuple[int, int], c0: Tensor, c1: int) -> tuple[Tensor, Tensor]:
    """Threefry-2x32 with 20 rounds on counters ``(c0[i], c1)``: two int32 tensors (bit patterns) like ``c0``."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x0 = c0 + _to_signed(schedule[0])
    x1 = torch.full_like(c0, _to_signed(c1 + schedule[1]))
    high = torch.empty_like(x0)
    for block in range(5):
        for turn in _ROTATIONS[block % 2]:
            x0 += x1
            torch.bitwise_right_shift(x1, 32 - turn, out=high)
            high &= (1 << turn) - 1
            x1 <<= turn
            x1 |= high
            x1 ^= x0
        x0 += _to_signed(schedule[(block + 1) % 3])
        x1 += _to_signed(schedule[(block + 2) % 3] + block + 1)
    return x0, x1


def _feistel(out: Tensor, rng: Stream, n: int) -> None:
    """Sets ``out [k]`` to the images of 0..k-1 under a pseudo-random permutation of [0, n): a Feistel network on the next even
    number of bits, repeated until the image lies below n. Costs O(k), whatever n is.
    """
    half = ((n - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    keys = [int(w) & 0xFFFFFFFF for w in rng.words(FEISTEL_ROUNDS)[:, 0]]
    image = torch.arange(out.numel(), dtype=torch.int64, device=out.device)
    todo = image
    at: Tensor | None = None  # positions of `todo` in `image`; None while that is all of them
    while todo.numel():
        left, right = todo >> half, todo & mask
        for key in keys:
            left, right = right, left ^ (_hash32(right ^ key) & mask)
        todo = (left << half) | right
        if at is None:
            image = todo
            at = (todo >= n).nonzero().view(-1)
            todo = todo[at]
        else:
            image[at] = todo
            again = todo >= n
            at, todo = at[again], todo[again]
    out.copy_(image)


def _hash32(x: Tensor) -> Tensor:
    """A full-avalanche hash of 32-bit words held in int64 ("lowbias32" of Wellons' hash prospector)."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 0x846CA68B) & 0xFFFFFFFF
    x ^= x >> 16
    return x
