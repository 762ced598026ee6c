"""Decoders alone: whatever the bytes, a PayloadError or numbers, and never more work than their size justifies."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from grace.compute import backends
from grace.contract.compressor import Compressor
from grace.contract.wrapping import find_compressor
from grace.errors import PayloadError
from grace.random import Stream
from tests.fuzz.damage import Payloads, damage
from tests.fuzz.tally import Tally
from tests.laws.cases import CASES

ROWS = 1024  # payloads that are decoded together, unless told otherwise
SIZES = (1, 7, 37, 64, 300)  # numbers of a row
# Decoders that copy a sender's numbers: an inf in the wire is an inf in the answer, and the exchange says so.
COPIES = ("Identity", "FP16", "BF16")


@functools.cache
def _all() -> Mapping[str, Compressor]:
    out: dict[str, Compressor] = {}
    for spec, method in CASES.items():
        compressor = find_compressor(method)
        if compressor is not None and compressor not in out.values():
            out[spec] = compressor
    return out


def compressors(names: Iterable[str] = ()) -> Mapping[str, Compressor]:
    """Every compressor of the laws' list once, by the first string that makes it; with ``names`` those of these methods."""
    wanted = set(names)
    return {spec: made for spec, made in _all().items() if not wanted or spec.partition(":")[0] in wanted}


class Decoder:
    """A compressor under one backend of the kernels.

    Args:
        compressor: whose wires are damaged.
        backend: as in ``GRACE_KERNELS``.
        seed: what is drawn follows from it.
        rows: payloads that are decoded together.
    """

    def __init__(self, compressor: Compressor, backend: str, seed: int = 0, rows: int = ROWS):
        self.compressor, self.backend, self._rows = compressor, backend, rows
        self.tally = Tally()
        self._dice = np.random.default_rng(seed)
        self._rng = Stream(1, compressor.id, "fuzz", None if compressor.randomness == "shared" else 0, 3)
        self._valid: dict[int, tuple[Payloads, torch.dtype]] = {}
        # what is multiplied by n/k may overflow where one number is near the largest, as sums do
        self._overflows = type(compressor).__name__ in COPIES or getattr(compressor, "scaled", False)

    def run(self, payloads: int) -> Tally:
        """Decodes at least so many damaged payloads."""
        with backends.using(self.backend):
            while self.tally.payloads < payloads:
                self._round()
        return self.tally

    def _round(self) -> None:
        n = int(self._dice.choice(SIZES))
        if n not in self._valid:
            self._valid[n] = self._encode(n)
        valid, dtype = self._valid[n]
        raw, damaged = damage(valid, self._dice)
        self.tally.payloads += damaged
        self._decode(raw, dtype, n, damaged)

    def _decode(self, raw: Payloads, dtype: torch.dtype, n: int, damaged: int) -> None:
        """Decodes rows together; where they are refused, halves of them, so that one bad row does not hide the others."""
        if not self._accepts(raw, dtype, n):
            half = len(raw) // 2
            if damaged > 1 and half and self._dice.random() < 0.25:
                for part in (raw[:half], raw[half:]):
                    self._decode(part, dtype, n, damaged // 2)
            else:
                self.tally.refused += damaged

    def _accepts(self, raw: Payloads, dtype: torch.dtype, n: int) -> bool:
        whole = raw.shape[1] // dtype.itemsize
        wire = torch.empty(len(raw), whole, dtype=dtype)
        if whole:
            wire.view(torch.uint8).copy_(torch.from_numpy(raw[:, : whole * dtype.itemsize]))
        out = torch.zeros(len(raw), n)
        alone = self._dice.random() < 0.5
        try:
            with self.tally.watch():
                if alone:
                    self.compressor.decompress_add_(wire, out, 0.5, self._rng)
                else:
                    self.compressor.aggregate_([wire, wire], out, 0.5, self._rng)
        except PayloadError:
            return False
        assert out.shape == (len(raw), n)
        # the sum of two that are near the largest number may overflow: the exchange looks at sums, see exchanges.py
        assert self._overflows or not alone or bool(out.isfinite().all()), "an inf or NaN came out of an accepted wire"
        return True

    def _encode(self, n: int) -> tuple[Payloads, torch.dtype]:
        """Valid wires of n numbers each, of several kinds of rows."""
        wire = self.compressor.compress_(_draw(self._rows, n, self._dice), self._rng, False)
        raw = wire.contiguous().view(torch.uint8).view(self._rows, -1).numpy().copy()
        limit, self.tally.usual = self.tally.usual, math.inf
        for _ in range(4):  # alone and with others; the first is slower
            before = self.tally.seconds
            assert self._accepts(raw, wire.dtype, n), "valid wires were refused"
            limit = max(limit, self.tally.seconds - before)
        self.tally.usual = limit
        return raw, wire.dtype


def _draw(rows: int, n: int, dice: np.random.Generator) -> Tensor:
    """``[rows, n]``: usual numbers, many zeros, one sign, one magnitude, and all exponents."""
    x = torch.from_numpy(dice.standard_normal((rows, n), dtype=np.float32))
    kind = torch.arange(rows)[:, None] % 5
    x = torch.where((kind == 1) & (x < 1), 0.0, x)
    x = torch.where(kind == 2, -x.abs(), x)
    x = torch.where(kind == 3, x.sign() * 4, x)
    return torch.where(kind == 4, torch.ldexp(x, torch.from_numpy(dice.integers(-60, 60, (rows, n)))), x).contiguous()
