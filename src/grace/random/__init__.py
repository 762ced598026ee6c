"""Counter-based random streams: the only source of randomness in Grace. The global generator is never touched.

Every number is a pure function of (seed, method, tensor, rank or "shared", salt, step, position), computed with
Threefry-2x32-20 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): additions, rotations and xors
of 32-bit words only, so that every backend can reproduce it to the bit.

- A *private* stream differs between ranks: stochastic rounding.
- A *shared* stream is the same on all ranks: index sets, rotations, initial subspaces.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from grace.compute import native
from grace.compute.dispatch import operation
from grace.compute.portable import cosine_and_sine, natural_log, square_root
from grace.flags.capturing import CapturedStep, refuse_capture

_SHARED = 0xFFFFFFFF  # the rank field of a shared stream


@operation
def fill_words(out: Tensor, rng: Stream, first: int) -> None:
    """Sets ``out [g, 2]``, int32, contiguous: one 64-bit output for each counter, from counter ``first`` on."""


@operation
def fill_uniform(out: Tensor, rng: Stream, first: int) -> None:
    """Sets ``out [n]``, float32, contiguous: ``(lane + 1/2) / 2**16`` of the :meth:`Stream.lanes` from ``first`` on."""


@operation
def fill_subset(out: Tensor, rng: Stream, n: int) -> None:
    """Sets ``out [k]``, int64, contiguous, k < n: k distinct positions out of n, every position equally likely."""


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
    """A stream of random numbers. ``rank`` is None for a shared stream. Drawing does not change it:
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
        return Stream(self.seed, self.method, self.tensor, self.rank, self.step, self.salt * 1009 + salt + 1)

    def key(self) -> tuple[int, int]:
        """The key of this stream, two 32-bit words; its counters are (group, step): see
        :func:`grace.flags.capturing.step_word`.

        Raises:
            ConfigurationError: work is captured, and the step does not say where its replays find theirs.
        """
        if not isinstance(self.step, CapturedStep):
            refuse_capture(
                f"{self.method!r} draws random numbers, and would draw the same in each replay: make a step before the capture"
            )
        rank = _SHARED if self.rank is None else self.rank
        return _key(self.seed, self.method, self.tensor, rank, self.salt)

    def native_key(self) -> tuple[ctypes.c_uint32, ctypes.c_uint32, int]:
        """The stream for native kernels: its key, as C numbers, and the step as a 32-bit word."""
        rank = _SHARED if self.rank is None else self.rank
        key0, key1 = _native_key(self.seed, self.method, self.tensor, rank, self.salt)
        return key0, key1, self.step & 0xFFFFFFFF

    def words(self, groups: int, device: torch.device | str = "cpu", first: int = 0) -> Tensor:
        """``[groups, 2]`` int32: one 64-bit output for each counter, from counter ``first`` on."""
        out = torch.empty(groups, 2, dtype=torch.int32, device=device)
        fill_words(out, self, first)
        return out

    def uniform(self, n: int, device: torch.device | str = "cpu", first: int = 0) -> Tensor:
        """``[n]`` float32 in (0, 1): ``(lane + 1/2) / 2**16`` of the stream's :meth:`lanes` from ``first`` on."""
        out = torch.empty(n, dtype=torch.float32, device=device)
        fill_uniform(out, self, first)
        return out

    def lanes(self, n: int, device: torch.device | str = "cpu", first: int = 0) -> Tensor:
        """``[n]`` int32 in [0, 65536): the 16-bit lanes of the words, in order; the stream's numbers from ``first`` on."""
        skip = first % 4
        lanes = self.words(math.ceil((skip + n) / 4), device, first // 4).view(torch.int16).view(-1)[skip : skip + n]
        return lanes.to(torch.int32).bitwise_and_(0xFFFF)

    def normal(self, n: int, device: torch.device | str = "cpu") -> Tensor:
        """``[n]`` float32 standard normal numbers (Box-Muller on pairs of 32-bit words)."""
        words = self.words(math.ceil(n / 2), device).to(torch.float64)
        unit = words.add_(2.0**31 + 0.5).mul_(2.0**-32)  # [g, 2] in (0, 1)
        radius = square_root(natural_log(unit[:, 0]).mul_(-2))
        cosine, sine = cosine_and_sine(unit[:, 1])
        return torch.stack((radius * cosine, radius * sine), dim=1).view(-1)[:n].float()

    def subset(self, n: int, k: int, device: torch.device | str = "cpu") -> Tensor:
        """``[k]`` int64: k distinct positions out of n, every position equally likely; all of them in order if k = n.

        Raises:
            ValueError: k is not in [0, n].
        """
        if not 0 <= k <= n:
            raise ValueError(f"a subset of {k} out of {n} does not exist")
        if k == n:
            return torch.arange(n, device=device, dtype=torch.int64)
        out = torch.empty(k, dtype=torch.int64, device=device)
        fill_subset(out, self, n)
        return out
