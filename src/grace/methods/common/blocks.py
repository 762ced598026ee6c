"""Whole blocks of a vector, the same on all ranks: blockrandomk.

Letters: nb blocks of B numbers, the last one shorter; kb of them are sent; a cycle has T = ceil(nb/kb) steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.facts import Facts
from grace.flags.capturing import refuse_capture
from grace.kernels import Drawing, TensorList, block_count
from grace.kernels.places import add_at_
from grace.methods.common.counts import count_kept
from grace.methods.common.drawn import Drawn
from grace.random import Stream


@dataclass(frozen=True, slots=True)
class Blocks(Drawn):
    """Blocks drawn anew in each step, or in turn; the wire is the values of the chosen blocks, then zeros."""

    summable: ClassVar[bool] = True
    randomness: ClassVar[Literal["shared", "private"]] = "shared"
    handles_many: ClassVar[bool] = True
    ratio: float
    block: int
    cyclic: bool
    scaled: bool

    @property
    def overflows(self) -> bool:  # type: ignore[override]  # here it depends on a knob
        return self.scaled

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        n = rows.shape[1]
        full, tail = self._places(n, rng, rows.device)
        blocks, short = self._cut(rows)
        wire = rows.new_zeros(rows.shape[0], self._width(n))
        room, behind = self._cut_wire(wire, full, tail)
        torch.index_select(blocks, 1, full, out=room)
        behind.copy_(short[:, :tail])
        if keep_rest:  # the wire decodes to a x_i, so that (1 - a) x_i is left
            left = 1 - self._factor(n)
            blocks.index_copy_(1, full, room * left)
            short[:, :tail] *= left
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n = out.shape[1]
        (values,) = wires.split(wire.view(torch.uint8), [("values", torch.float32, self._width(n))])
        whole, tail = self._places(n, rng, out.device)
        blocks, short = self._cut(out)
        sent, behind = self._cut_wire(values * (scale * self._factor(n)), whole, tail)
        add_at_(blocks, 1, whole, sent)
        short[:, :tail] += behind

    def _drawing(self, many: TensorList) -> Drawing:
        return self._draw(many.sizes)

    def _draw(self, sizes: Sequence[int]) -> Drawing:
        """Drawing of the blocks of tensors of so many numbers."""
        if self.cyclic:
            refuse_capture("which blocks have their turn follows from the step, which is a number of the host's")
        return Drawing(tuple(self._counts(n)[1] for n in sizes), self.block, self.cyclic)

    def _places(self, n: int, rng: Stream, device: torch.device) -> tuple[Tensor, int]:
        """The chosen blocks of full size, ascending, and how many numbers of the short last one are chosen."""
        chosen = self.choose(n, rng, device).sort().values
        full = n // self.block
        whole = chosen[chosen < full]
        return whole, n % self.block if whole.numel() < chosen.numel() else 0

    def _cut(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``[b, n]`` as full blocks ``[b, nb, B]``, and the short last one ``[b, < B]``."""
        b, n = rows.shape
        at = n // self.block * self.block
        return rows[:, :at].view(b, n // self.block, self.block), rows[:, at:]

    def _cut_wire(self, wire: Tensor, whole: Tensor, tail: int) -> tuple[Tensor, Tensor]:
        """The parts of a wire ``[b, w]``: the chosen full blocks ``[b, m, B]``, and the short one ``[b, tail]``."""
        at = whole.numel() * self.block
        return wire[:, :at].view(wire.shape[0], whole.numel(), self.block), wire[:, at : at + tail]

    def choose(self, n: int, rng: Stream, device: torch.device) -> Tensor:
        """The blocks of this step."""
        return self._draw([n]).choose(0, n, rng, device)

    def _counts(self, n: int) -> tuple[int, int]:
        count = block_count(n, self.block)
        return count, count_kept(self.ratio, count)

    def _width(self, n: int) -> int:
        return min(n, self._counts(n)[1] * self.block)

    def _factor(self, n: int) -> float:
        count, kb = self._counts(n)
        return count / kb if self.scaled else 1.0

    def facts(self, n: int) -> Facts:
        if n == 0:
            return Facts(payload=0)
        (count, kb), payload = self._counts(n), 4 * self._width(n)
        if kb == count:
            return Facts(unbiased=True, contraction=1.0, variance=0.0, payload=payload)
        if self.cyclic:
            return Facts(contraction=0.0, deterministic=False, randomness="shared", payload=payload)
        if self.scaled:
            return Facts(
                unbiased=True, variance=count / kb - 1, deterministic=False, randomness="shared", payload=payload
            )
        return Facts(contraction=kb / count, deterministic=False, randomness="shared", payload=payload)
