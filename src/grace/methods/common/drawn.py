"""Subsets that all ranks draw alike, of the tensors of a bucket by one launch each: random-k, and random blocks."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from grace.contract.compressor import Compressor
from grace.kernels import Drawing, TensorList, put_subsets_many, sum_subsets_many, take_subsets_many
from grace.random import Stream


class Drawn(Compressor):
    """Sends ``a x_i`` for each i of a subset, which :meth:`_drawing` says how to draw, and a :meth:`_factor`."""

    __slots__ = ()

    @abc.abstractmethod
    def _drawing(self, many: TensorList) -> Drawing:
        """Drawing of the subsets of these tensors."""

    @abc.abstractmethod
    def _factor(self, n: int) -> float:
        """a, of a tensor of n numbers."""

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        left = [1 - self._factor(n) for n in many.sizes]
        return take_subsets_many(message.view(torch.float32), many, self._drawing(many), rng.step, left)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        weight = [scale * self._factor(n) for n in many.sizes]
        return sum_subsets_many(rows.view(torch.float32), many, self._drawing(many), rng.step, weight)

    def put_many_(self, message: Tensor, many: TensorList, rng: Stream, into: TensorList) -> Tensor:
        weight = [self._factor(n) for n in many.sizes]
        return put_subsets_many(message, many, self._drawing(many), rng.step, weight, into)
