"""Claims of a method about itself, for the laws to check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ROUNDING_BIAS = 2.0**-17  # of rounding at random by 16 bits: half of the last bit, in steps of the grid


@dataclass(frozen=True, slots=True)
class Facts:
    """Claims of a method about the operator C that it applies to n numbers; the laws check every line.

    unbiased: E C(x) = x, but for ``bias`` and the rounding of float32.
    bias: of an unbiased method: |E C(x)_i - x_i| <= bias max |x| for every i; what random numbers of 16 bits leave, so
        that numbers below about this share of the largest are never sent.
    contraction: the largest known delta with E|x - C(x)|^2 <= (1 - delta) |x|^2; None if there is none.
    variance: the smallest known omega with E|C(x) - x|^2 <= omega |x|^2; None where C is biased or no bound is known.
    deterministic: the same x gives the same C(x), whatever the seed.
    randomness: unless deterministic: "private", each worker draws its own numbers, so that of W workers who hold the same x
        what is random in the error of the mean has 1/W of the variance; "shared", all draw the same, at least some of those
        that matter, and it has not. It is of the first time that a number is compressed: what ScatterReduce and
        ParameterServer round once more, one worker alone rounds.
    payload: bytes that one worker encodes; None if it depends on the data or on the number of workers.
    kept, peak: bytes beside the gradient: those that a worker keeps from step to step, and the most that are alive at once in
        a step, besides. Nobody declares them: None, but in the answer of :func:`grace.verify.facts`, which counts them.
    """

    unbiased: bool = False
    contraction: float | None = None
    variance: float | None = None
    deterministic: bool = True
    randomness: Literal["private", "shared"] = "private"
    payload: int | None = None
    bias: float = 0.0
    kept: int | None = None
    peak: int | None = None
