"""AdaQ: adaptive quantization of gradients (Dryden et al., MLHPC 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Share, Steps
from grace.kernels import Chosen, CountedCode, SideSelection, TensorList, choose_sides_many
from grace.kernels.index_codes.codes import IndexCode, pad
from grace.kernels.sparse_codes import SideMeans
from grace.kernels.sparse_codes.wire import add_coded_, write_means_
from grace.methods.common.counts import KeptOfEach
from grace.random import Stream
from grace.registry import register


@register("adaq", communicator="allgather", memory="residual", family="hybrid", cases=["ratio=0.2"])
@dataclass(frozen=True, slots=True)
class AdaQ(Compressor):
    """Adaptive thresholds: the largest positive and the largest negative numbers, each replaced by their mean.

    ``C(x)_i = mu+ if i is in S+, mu- if i is in S-, else 0``: S+ holds the ceil(ratio n+) largest of the n+ positive
    numbers, mu+ is their mean; S- and mu- likewise. A zero is on neither side

    Args:
        ratio: share of each side that is sent, in (0, 1]; the paper's one in pi is 1/pi.
        sample: how many numbers of a side its threshold is estimated from, >= 0; 0: all of them, exactly.
        joint: one threshold for both signs, on magnitudes, as in the authors' later code.
        index: how indices travel: raw, bitmap, elias-fano, delta, rice, or auto: the smallest of the first three.
    Wire:
        a count (int32), mu+ and -mu- (float32), then for each number sent a sign bit and its index:
        96 + k (1 + ceil(log2 n)) bits with ``index="raw"``; at a ratio of 1 %, k (1 + 8.6) with auto. Data-dependent:
        one more small round exchanges the sizes of all tensors of a bucket.
    Bias:
        biased; a projection: delta = (k+ mu+^2 + k- mu-^2) / |x|^2 >= ratio |x|_1^2 / (n |x|^2) >= ratio/n; with
        ``sample`` at least 1/n^2. Exact where each side has one magnitude and ratio = 1.
    Differs from the paper:
        the first of equal numbers win; one list with a sign bit instead of two lists; means per tensor, not per column.
    Example:
        >>> method("adaq:ratio=0.3").method
        Allgather(compressor=AdaQ(ratio=0.3, sample=0, joint=False, index='auto'))

    Reference:
        Dryden, Moon, Jacobs and Van Essen, "Communication Quantization for Data-Parallel Training of Deep Neural
        Networks", MLHPC 2016, doi 10.1109/MLHPC.2016.004.
    """

    varies: ClassVar[bool] = True
    ratio: Share = 0.01
    sample: Steps = 0
    joint: bool = False
    index: IndexCode = "auto"

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        encoded = []
        for j, row in enumerate(rows):  # [n]
            streams = [rng.fork(2 * j + side) for side in range(self._selection.searches)]
            index = self._selection.select(row, streams)  # [k]
            encoded.append(write_means_(row, index, self.index, keep_rest=keep_rest))
        return pad(encoded)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        for part, row in zip(wire[:, None], out, strict=True):  # [1, w], [n]
            add_coded_(part, row, scale, SideMeans(), self.index)

    @property
    def counted(self) -> CountedCode:
        return CountedCode(self.index, False, SideMeans())

    def choose_many_(self, many: TensorList, rng: Stream, code: CountedCode) -> Chosen:
        return choose_sides_many(many.like, many, code, self._selection, rng.step)

    @property
    def _selection(self) -> SideSelection:
        return SideSelection(KeptOfEach(self.ratio), self.joint, self.sample)

    def facts(self, n: int) -> Facts:
        return Facts(contraction=1 / n**2 if self.sample else self.ratio / n, deterministic=self.sample == 0)
