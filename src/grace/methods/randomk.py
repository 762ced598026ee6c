"""Random-k, from "Sparsified SGD with Memory" (Stich, Cordonnier and Jaggi, NeurIPS 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from grace.contract.facts import Facts
from grace.contract.knobs import Share
from grace.errors import CompositionError, PayloadError
from grace.flags.refusals import refuse_unless
from grace.kernels import Drawing, TensorList, add_subset, all_finite, take_subset
from grace.methods.common.counts import count_kept
from grace.methods.common.drawn import Drawn
from grace.random import Stream
from grace.registry import register


@register(
    "randomk",
    communicator="allreduce",
    memory="residual",
    family="sparsification",
    cases=["ratio=0.3", "ratio=1", "ratio=0.001", "ratio=0.5,scale=true,memory=none", "scale=false,memory=none"],
    recovers={"whole": "ratio=1,memory=none"},
)
@dataclass(frozen=True, slots=True)
class RandomK(Drawn):
    """Random-k: k positions drawn at random, the same on all ranks, so that no index travels.

    ``C(x)_i = a x_i if i is in S, else 0``, with |S| = k = max(1, ceil(ratio n)) and a = n/k (scaled) or 1

    Args:
        ratio: share of the elements that is kept, in (0, 1].
        scale: whether to multiply by n/k; by default only where there is no memory.
    Wire:
        k values (float32): 32 k bits, one round, summed by the network.
    Bias:
        scaled: unbiased, omega = n/k - 1. Not scaled: biased, delta = k/n. Exact for ratio = 1.
    Differs from the paper:
        positions are drawn without replacement, anew in each step, from the stream that all ranks share.
    Example:
        >>> method("randomk:ratio=0.1,memory=none")
        Allreduce(compressor=RandomK(ratio=0.1, scale=None))

    Reference:
        Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, arXiv 1809.07599.
    """

    summable: ClassVar[bool] = True
    randomness: ClassVar[Literal["shared", "private"]] = "shared"
    handles_many: ClassVar[bool] = True
    ratio: Share = 0.01
    scale: bool | None = None

    @property
    def overflows(self) -> bool:  # type: ignore[override]  # here it depends on a knob
        return self.scaled

    @property
    def scaled(self) -> bool:
        return self.scale is not False

    def with_memory(self) -> RandomK:
        if self.scale:
            raise CompositionError(
                "randomk: scale=True multiplies by n/k, and a memory of its error would grow without bound; "
                "use scale=False with a memory, or memory=none"
            )
        return replace(self, scale=False)

    def for_second_hop(self) -> RandomK:
        """An average of decoded wires is already scaled, and zero outside of the positions, which are the same."""
        return replace(self, scale=False)

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        # what the wire says is a x_i, so that (1 - a) x_i is left
        n = rows.shape[1]
        return take_subset(rows, count_kept(self.ratio, n), rng, 1 - self._factor(n) if keep_rest else None)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        self._add([wire], out, scale, rng)

    def aggregate_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream) -> None:
        self._add(received, out.zero_(), scale, rng)

    def _add(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream) -> None:
        k = count_kept(self.ratio, out.shape[1])
        if any(wire.shape[1] != k for wire in received):
            widths = [wire.shape[1] for wire in received]
            raise PayloadError(f"field 'values' must have {k} numbers, got {widths}")
        for wire in received:
            refuse_unless(all_finite(wire), lambda: PayloadError("field 'values' must be finite"))
        add_subset(received, out, scale * self._factor(out.shape[1]), rng)

    def _drawing(self, many: TensorList) -> Drawing:
        return Drawing(tuple(count_kept(self.ratio, n) for n in many.sizes), None)

    def _factor(self, n: int) -> float:
        return n / count_kept(self.ratio, n) if self.scaled else 1.0

    def facts(self, n: int) -> Facts:
        k = count_kept(self.ratio, n)
        if self.scaled:
            return Facts(unbiased=True, variance=n / k - 1, deterministic=k == n, randomness="shared", payload=4 * k)
        return Facts(contraction=k / n, deterministic=k == n, randomness="shared", payload=4 * k)
