"""The specification of the random operations, in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grace.errors import GraceError
from grace.flags.capturing import CapturedStep, refuse_capture, step_word
from grace.flags.finite import on_host
from grace.flags.refusals import refuse_unless

if TYPE_CHECKING:
    from grace.random import Stream

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_WORD = 0xFFFFFFFF
_CHUNK = 1 << 15  # groups at a time: the working set stays in the cache
SORTED_SUBSET = 4096  # up to here a subset is drawn by sorting keys, beyond by a Feistel permutation
FEISTEL_ROUNDS = 6


def fill_words(out: Tensor, rng: Stream, first: int) -> None:
    key, step = rng.key(), step_word(rng.step, out.device)
    for start in range(0, len(out), _CHUNK):
        stop = min(len(out), start + _CHUNK)
        counter = torch.arange(first + start, first + stop, dtype=torch.int32, device=out.device)
        out[start:stop, 0], out[start:stop, 1] = threefry2x32(key, counter, step)


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


def _to_signed_or_same(word: int | Tensor) -> int | Tensor:
    """As :func:`_to_signed`; int32 as they are."""
    return word if isinstance(word, Tensor) else _to_signed(word)


def threefry2x32(key: tuple[int | Tensor, int | Tensor], c0: Tensor, c1: int | Tensor) -> tuple[Tensor, Tensor]:
    """Threefry-2x32 with 20 rounds on counters ``(c0[i], c1)``: two int32 tensors (bit patterns) like ``c0 [g]``.

    ``c1`` may be an int32 ``[1]``, too, and the words of the key int32 ``[b, 1]``: then there are b rows, ``[b, g]``.
    """
    schedule = [_to_signed_or_same(word) for word in (key[0], key[1], key[0] ^ key[1] ^ _PARITY)]
    x0 = c0 + schedule[0]
    x1 = torch.zeros_like(x0).add_(schedule[1]).add_(_to_signed_or_same(c1))
    high = torch.empty_like(x0)
    for block in range(5):
        for turn in _ROTATIONS[block % 2]:
            x0 += x1
            torch.bitwise_right_shift(x1, 32 - turn, out=high)
            high &= (1 << turn) - 1
            x1 <<= turn
            x1 |= high
            x1 ^= x0
        x0 += schedule[(block + 1) % 3]
        x1 += schedule[(block + 2) % 3]
        x1 += block + 1
    return x0, x1


def feistel_keys(rng: Stream) -> list[int]:
    """The round keys of a subset's permutation, 32-bit words: the first of each pair of ``rng.words(FEISTEL_ROUNDS)``,
    computed in Python, so that nothing has to be read from a tensor.
    """
    if isinstance(rng.step, CapturedStep):
        refuse_capture(f"{rng.method!r} draws random numbers on the host, and would draw the same in each replay")
    key0, key1 = rng.key()
    keys = (key0, key1, key0 ^ key1 ^ _PARITY)
    out = []
    for counter in range(FEISTEL_ROUNDS):
        x0, x1 = (counter + keys[0]) & _WORD, (rng.step + keys[1]) & _WORD
        for block in range(5):
            for turn in _ROTATIONS[block % 2]:
                x0 = (x0 + x1) & _WORD
                x1 = ((x1 << turn) & _WORD | x1 >> (32 - turn)) ^ x0
            x0 = (x0 + keys[(block + 1) % 3]) & _WORD
            x1 = (x1 + keys[(block + 2) % 3] + block + 1) & _WORD
        out.append(x0)
    return out


def _feistel(out: Tensor, rng: Stream, n: int) -> None:
    """Sets ``out [k]`` to the images of 0..k-1 under a pseudo-random permutation of [0, n): a Feistel network on the next even
    number of bits, repeated until the image lies below n. Costs O(k), whatever n is.

    On an accelerator nobody asks how many have to go on: see :func:`walk_sizes`.
    """
    half = half_bits(n)
    if isinstance(rng.step, CapturedStep):  # the keys of each replay are its own
        words = rng.words(FEISTEL_ROUNDS, out.device)[:, 0].to(torch.int64) & _WORD
        _walk_without_sync(out, list(words.unbind()), half, n)
        return
    keys = feistel_keys(rng)
    if not on_host(out.device):
        _walk_without_sync(out, keys, half, n)
        return
    image = _permute(torch.arange(out.numel(), dtype=torch.int64, device=out.device), keys, half)
    at = (image >= n).nonzero().view(-1)  # positions of `todo` in `image`
    todo = image[at]
    while todo.numel():
        todo = _permute(todo, keys, half)
        image[at] = todo
        again = todo >= n
        at, todo = at[again], todo[again]
    out.copy_(image)


def half_bits(n: int) -> int:
    """Bits of a half of the Feistel network that permutes at least n numbers."""
    return ((n - 1).bit_length() + 1) // 2


def _permute(x: Tensor, keys: Sequence[int | Tensor], half: int) -> Tensor:
    """The Feistel network's image of numbers of 2 half bits, int64."""
    mask = (1 << half) - 1
    left, right = x >> half, x & mask
    for key in keys:
        left, right = right, left ^ (_hash32(right ^ key) & mask)
    return (left << half) | right


def walk_sizes(k: int, n: int, half: int) -> list[int]:
    """Count of the numbers that can be outside of [0, n) after one walk, two, ...: the mean and eight standard deviations, so
    that a larger number is less likely than 1e-12; the last one, 0, comes where any at all are as unlikely.
    """
    share = 1 - n / (1 << 2 * half)  # of the domain that lies outside
    sizes, expected = [], k * share
    while expected > 1e-12:
        sizes.append(min(k, math.ceil(expected + 8 * math.sqrt(expected)) + 16))
        expected *= share
    return [*sizes, 0]


def _walk_without_sync(out: Tensor, keys: Sequence[int | Tensor], half: int, n: int) -> None:
    """As the host's walk, with sizes that are known beforehand. If they do not suffice, this is raised two steps later."""
    k = out.numel()
    image = torch.empty(k + 1, dtype=torch.int64, device=out.device)  # the last place is nobody's
    todo = at = torch.arange(k, dtype=torch.int64, device=out.device)
    enough = torch.ones((), dtype=torch.bool, device=out.device)
    for size in walk_sizes(k, n, half):
        todo = _permute(todo, keys, half)
        image.scatter_(0, at, todo)
        outside = (todo >= n) & (at < k)
        count = outside.cumsum(0)
        enough &= count[-1] <= size
        place = torch.where(outside, count - 1, size).clamp_(max=size)
        todo = todo.new_zeros(size + 1).scatter_(0, place, todo)
        at = torch.full_like(todo, k).scatter_(0, place, at)
        at[size:] = k  # of one number, at[size] = k would wait for a copy from the host
    refuse_unless(
        enough, lambda: GraceError(f"a subset of {k} out of {n} needs more walks than were made: use another seed")
    )
    out.copy_(image[:k]).clamp_(max=n - 1)


def _hash32(x: Tensor) -> Tensor:
    """A full-avalanche hash of 32-bit words held in int64 ("lowbias32" of Wellons' hash prospector)."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 0x846CA68B) & 0xFFFFFFFF
    x ^= x >> 16
    return x
