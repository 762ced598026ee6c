"""Compressors that keep each number with a probability of its own, and make up for the others: Atomo and GSpar."""

from __future__ import annotations

import abc
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from grace.contract.compressor import Compressor
from grace.kernels import Chosen, TensorList, choose_drawn_many
from grace.kernels.index_codes.codes import IndexCode
from grace.kernels.sampling import Budgets, Chances, DrawnCode
from grace.kernels.sampling.wire import add_sampled_, sample_
from grace.random import Stream


class Sampled(Compressor):
    """Sends ``x_i / p_i`` with probability p_i, which :meth:`_rule` decides.

    Subclasses are dataclasses with the fields ``index`` and ``shrink``, which multiplies by 1/(1+omega).
    """

    __slots__ = ()

    varies: ClassVar[bool] = True
    index: IndexCode
    shrink: bool

    @property
    @abc.abstractmethod
    def _rule(self) -> Budgets | Chances:
        """The rule of probabilities."""

    def with_memory(self) -> Compressor:
        return replace(self, shrink=True)  # type: ignore[type-var]

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        rule = self._rule
        wire = sample_(rows, rule.unit, rng, rule.factor(rows.shape[1]), self.index)
        if keep_rest:
            add_sampled_(wire, rows, -1.0, self.index)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        add_sampled_(wire, out, scale, self.index)

    @property
    def counted(self) -> DrawnCode:
        return DrawnCode(self.index)

    def choose_many_(self, many: TensorList, rng: Stream, code: DrawnCode) -> Chosen:
        return choose_drawn_many(many.like, many, code, self._rule, rng.step)
