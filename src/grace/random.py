"""Counter-based random streams: the only source of randomness in Grace. The global generator is never touched.

Every number is a pure function of (seed, method, tensor, rank or "shared", salt, step, position), computed with
Threefry-2x32-20 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): additions, rotations and xors
of 32-bit words only, so that every backend can reproduce it to the bit: the torch code here specifies what native kernels
do.

- A *private* stream differs between ranks: stochastic rounding.
- A *shared* stream is the same on all ranks: index sets, rotations, initial subspaces.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grace import native
from grace.kernels.portable import cosine_and_sine, natural_log

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_CHUNK = 1 << 15  # groups at a time: the working set stays in the cache
_SHARED = 0xFFFFFFFF  # the rank field of a shared stream
_SORTED_SUBSET = 4096  # up to here a subset is drawn by sorting keys, beyond by a Feistel permutation
_FEISTEL_ROUNDS = 6
_DRAW = (native.U, native.U, native.U, native.N, native.N, native.P, native.I)
_WORDS, _UNIFORM, _SUBSET = (native.declare(name, *_DRAW) for name in ("words", "uniform", "subset"))
_MOST_NATIVE = (1 << 32) - 1  # numbers of which a subset is drawn


def _signed(word: int) -> int:
    """A 32-bit word as the int32 that torch wants."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


def threefry2x32(key: tuple[int, int], c0: Tensor, c1: int) -> tuple[Tensor, Tensor]:
    """Threefry-2x32 with 20 rounds on counters ``(c0[i], c1)``: two int32 tensors (bit patterns) like ``c0``."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x0 = c0 + _signed(schedule[0])
    x1 = torch.full_like(c0, _signed(c1 + schedule[1]))
    high = torch.empty_like(x0)
    for block in range(5):
        for turn in _ROTATIONS[block % 2]:
            x0 += x1
            torch.bitwise_right_shift(x1, 32 - turn, out=high)
            high &= (1 << turn) - 1
            x1 <<= turn
            x1 |= high
            x1 ^= x0
        x0 += _signed(schedule[(block + 1) % 3])
        x1 += _signed(schedule[(block + 2) % 3] + block + 1)
    return x0, x1


@functools.lru_cache(maxsize=16384)
def _key(seed: int, method: str, tensor: str, rank: int, salt: int) -> tuple[int, int]:
    """The ids mixed to 64 bits."""
    text = "\0".join((str(seed), method, tensor, str(rank), str(salt)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


@functools.lru_cache(maxsize=16384)
def _native_key(seed: int, method: str, tensor: str, rank: int, salt: int) -> tuple[ctypes.c_uint32, ctypes.c_uint32]:
    key0, key1 = _key(seed, method, tensor, rank, salt)
    return native.U(key0), native.U(key1)


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of random numbers. ``rank`` is None for a shared stream. Drawing does not change it:
    the same call gives the same numbers; use :meth:`fork` for an independent second draw.
    """

    seed: int
    method: str
    tensor: str
    rank: int | None
    step: int
    salt: int = 0

    def fork(self, salt: int) -> Stream:
        """An independent stream with the same owner."""
        return replace(self, salt=self.salt * 1009 + salt + 1)

    def key(self) -> tuple[int, int]:
        """The key of this stream, two 32-bit words; its counters are (group, step)."""
        rank = _SHARED if self.rank is None else self.rank
        return _key(self.seed, self.method, self.tensor, rank, self.salt)

    def native_key(self) -> tuple[ctypes.c_uint32, ctypes.c_uint32, int]:
        """What native kernels need to draw from this stream: its key, as C numbers, and the step as a 32-bit word."""
        rank = _SHARED if self.rank is None else self.rank
        key0, key1 = _native_key(self.seed, self.method, self.tensor, rank, self.salt)
        return key0, key1, self.step & 0xFFFFFFFF

    def _drawn(self, name: str, out: Tensor, first: int, count: int) -> bool:
        """Whether the native kernel of this name has filled ``out``."""
        fast = native.function(name) if out.device.type == "cpu" else None
        if fast is None:
            return False
        fast(*self.native_key(), first, count, out.data_ptr(), native.threads())
        return True

    def words(self, groups: int, device: torch.device | str = "cpu", first: int = 0) -> Tensor:
        """``[groups, 2]`` int32: one 64-bit output for each counter, from counter ``first`` on."""
        out = torch.empty(groups, 2, dtype=torch.int32, device=device)
        if self._drawn(_WORDS, out, first, groups):
            return out
        key = self.key()
        for start in range(0, groups, _CHUNK):
            stop = min(groups, start + _CHUNK)
            counter = torch.arange(first + start, first + stop, dtype=torch.int32, device=device)
            out[start:stop, 0], out[start:stop, 1] = threefry2x32(key, counter, self.step)
        return out

    def uniform(self, n: int, device: torch.device | str = "cpu", first: int = 0) -> Tensor:
        """``[n]`` float32 in (0, 1): ``(lane + 1/2) / 2**16`` of the stream's :meth:`lanes` from ``first`` on."""
        out = torch.empty(n, dtype=torch.float32, device=device)
        if self._drawn(_UNIFORM, out, first, n):
            return out
        return self.lanes(n, device, first).to(torch.float32).add_(0.5).mul_(2.0**-16)

    def lanes(self, n: int, device: torch.device | str = "cpu", first: int = 0) -> Tensor:
        """``[n]`` int32 in [0, 65536): the 16-bit lanes of the words, in order; the stream's numbers from ``first`` on."""
        skip = first % 4
        lanes = self.words(math.ceil((skip + n) / 4), device, first // 4).view(torch.int16).view(-1)[skip : skip + n]
        return lanes.to(torch.int32).bitwise_and_(0xFFFF)

    def normal(self, n: int, device: torch.device | str = "cpu") -> Tensor:
        """``[n]`` float32 standard normal numbers (Box-Muller on pairs of 32-bit words)."""
        words = self.words(math.ceil(n / 2), device).to(torch.float64)
        unit = words.add_(2.0**31 + 0.5).mul_(2.0**-32)  # [g, 2] in (0, 1)
        radius = natural_log(unit[:, 0]).mul_(-2).sqrt_()
        cosine, sine = cosine_and_sine(unit[:, 1])
        return torch.stack((radius * cosine, radius * sine), dim=1).view(-1)[:n].float()

    def subset(self, n: int, k: int, device: torch.device | str = "cpu") -> Tensor:
        """``[k]`` int64: k distinct positions out of n, every position equally likely; all of them in order if k = n."""
        if not 0 <= k <= n:
            raise ValueError(f"a subset of {k} out of {n} does not exist")
        if k == n:
            return torch.arange(n, device=device)
        out = torch.empty(k, dtype=torch.int64, device=device)
        if n <= _MOST_NATIVE and self._drawn(_SUBSET, out, n, k):
            return out
        if n <= _SORTED_SUBSET:
            words = self.words(n, device).to(torch.int64)
            return ((words[:, 0] << 32) + words[:, 1]).argsort(stable=True)[:k]
        return self._feistel(n, k, device)

    def _feistel(self, n: int, k: int, device: torch.device | str) -> Tensor:
        """The images of 0..k-1 under a pseudo-random permutation of [0, n): a Feistel network on the next even
        number of bits, walked until the image lies below n. Costs O(k), whatever n is.
        """
        half = ((n - 1).bit_length() + 1) // 2
        mask = (1 << half) - 1
        keys = [int(w) & 0xFFFFFFFF for w in self.words(_FEISTEL_ROUNDS)[:, 0]]
        image = torch.arange(k, dtype=torch.int64, device=device)
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
        return image


def _hash32(x: Tensor) -> Tensor:
    """A full-avalanche hash of 32-bit words held in int64 ("lowbias32" of Wellons' hash prospector)."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 0x846CA68B) & 0xFFFFFFFF
    x ^= x >> 16
    return x
