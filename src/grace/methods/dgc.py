"""DGC: deep gradient compression (Lin et al., ICLR 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Share, Steps
from grace.kernels import Chosen, CountedCode, Sampling, TensorList, choose_sampled_many
from grace.kernels.index_codes.codes import IndexCode
from grace.kernels.sparse import payloads
from grace.methods.common.counts import contraction, count_kept
from grace.random import Stream
from grace.registry import register

_LOWER, _ROUNDS = 0.8, 10  # a threshold that keeps fewer than 0.8 k is multiplied by 0.8, at most ten times
_STAGES = 4  # of the warm-up


@register(
    "dgc",
    communicator="allgather",
    memory="dgc",
    family="sparsification",
    cases=["ratio=0.2", "ratio=0.2,memory=residual"],
)
@dataclass(frozen=True, slots=True)
class DGC(Compressor):
    """Deep Gradient Compression: the largest magnitudes, found by a threshold estimated from a sample.

    ``C(x)_i = x_i if |x_i| >= t, else 0``, where t is the ceil(ratio s)-th largest of s magnitudes drawn at random;
    where more than ``k = max(1, ceil(ratio n))`` numbers reach t, only the k largest

    The recipe's memory "dgc" is the other half of the paper, see ``grace.MomentumCorrection``:
    its knobs are momentum, nesterov, masking, clip. The optimizer's momentum must then be 0. Small tensors, which go
    uncompressed, have the same momentum by default (``none:memory=dgc``), as in the authors' code.

    Args:
        ratio: the largest share of the elements that is kept, in (0, 1].
        sample: share of the elements that is sampled, in (0, 1]; at least 2/ratio elements are. 1 is an exact top-k.
        warmup: steps, >= 0, in four equal stages with the ratios ratio^(1/5), ratio^(2/5), ...: 0.25, 0.063, 0.016,
            0.004 before 0.001.
        index: how indices travel: raw, bitmap, elias-fano, delta, rice, or auto: the smallest of the first three.
        values: how values travel: float32 or bfloat16.
    Wire:
        a count (int32), at most k values, then their indices: 32 + k (32 + 12.0) bits at most at a ratio of 0.1 % with
        auto; -1 and all values where that is smaller. Data-dependent: one more small round exchanges the sizes of all
        tensors of a bucket.
    Bias:
        biased; delta = k/n where n <= 2/ratio or sample = 1, else (number sent)/n, at least 1/n.
    Differs from the paper:
        the sample is random: a stride may resonate with columns. Too many candidates are always cut to the k largest;
        the paper does so above 1.3 k, and below that sends the first k.
    Example:
        >>> method("dgc:ratio=0.01,sample=0.1,momentum=0.8").method
        Allgather(compressor=DGC(ratio=0.01, sample=0.1, warmup=0, index='auto', values='float32'))

    Reference:
        Lin, Han, Mao, Wang and Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
        Training", ICLR 2018, arXiv 1712.01887.
    """

    varies: ClassVar[bool] = True
    ratio: Share = 0.001
    sample: Share = 0.01
    warmup: Steps = 0
    index: IndexCode = "auto"
    values: payloads.ValueType = "float32"

    def ratio_at(self, step: int) -> float:
        """The ratio in this step."""
        if step >= self.warmup:
            return self.ratio
        stage: float = self.ratio ** ((_STAGES * step // self.warmup + 1) / (_STAGES + 1))
        return stage

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        sampling = self._sampling([rows.shape[1]] * len(rows), rng.step)
        selected = [sampling.select(j, row, rng.fork(j)) for j, row in enumerate(rows)]
        return payloads.write_counted_(rows, selected, self.index, self.values, keep_rest)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        payloads.sum_counted([wire], out, scale, self.index, self.values, add=True)

    def aggregate_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream) -> None:
        payloads.sum_counted(received, out, scale, self.index, self.values, add=False)

    @property
    def counted(self) -> CountedCode:
        return CountedCode(self.index, self.values == "bfloat16")

    def choose_many_(self, many: TensorList, rng: Stream, code: CountedCode) -> Chosen:
        sampling = self._sampling(many.sizes, rng.step)
        return choose_sampled_many(many.like, many, code, sampling, rng.step)

    def _sampling(self, sizes: Sequence[int], step: int) -> Sampling:
        """Counts of the numbers that this step samples and selects from tensors of so many numbers."""
        ratio, seen = self.ratio_at(step), tuple(self._sample_size(n) for n in sizes)
        sought, most = (tuple(count_kept(ratio, n) for n in counts) for counts in (seen, sizes))
        return Sampling(seen, sought, most, _LOWER, _ROUNDS)

    def _sample_size(self, n: int) -> int:
        return min(n, max(math.ceil(self.sample * n), math.ceil(2 / self.ratio)))

    def facts(self, n: int) -> Facts:
        exact = self._sample_size(n) == n
        kept = count_kept(self.ratio, n) / n if exact else 1 / n
        return Facts(contraction=contraction(kept, self.values), deterministic=exact)
