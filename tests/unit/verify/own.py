"""Methods as a user would write them: right ones, and for each law one that breaks it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

import grace
from grace import wire as wires
from grace.collectives import AllReduce, Traffic, cost
from grace.errors import CompositionError, PayloadError


@dataclass(frozen=True, slots=True)
class Half(grace.Compressor):
    """The first half of the numbers, float32."""

    def _k(self, n):
        return math.ceil(n / 2)

    def compress_(self, rows, rng, keep_rest):
        k = self._k(rows.shape[1])
        wire = rows[:, :k].clone()
        rows[:, :k] = 0
        return wire

    def decompress_add_(self, wire, out, scale, rng):
        k = self._k(out.shape[1])
        if wire.shape[1] != k or not bool(wire.isfinite().all()):
            raise PayloadError("field 'values' must be finite, and half as many as the numbers")
        out[:, :k].add_(wire * scale)

    def facts(self, n):
        return grace.Facts(contraction=0.0, payload=4 * self._k(n))


@dataclass(frozen=True, slots=True)
class Plain(grace.Method):
    """An all-reduce."""

    def exchange(self, x, state, peer):
        mean = yield AllReduce(x, "mean")
        if not bool(mean.isfinite().all()):
            return grace.Exchanged(torch.full_like(mean, math.nan), None, state, finite=False)
        return self._result(x, mean, state, peer)

    def _result(self, x, mean, state, peer):
        return grace.Exchanged(mean, torch.zeros_like(x) if peer.lent.keep_rest else None, state)

    def facts(self, like):
        return grace.Facts(unbiased=True, contraction=1.0, variance=0.0, payload=4 * like.numel())

    def traffic(self, like, peer):
        return cost(AllReduce(like), peer.rank, peer.world)

    def with_memory(self):
        return self


@dataclass(frozen=True, slots=True)
class RecoversLess(Half):
    """Says, where it is registered, that whole numbers come back."""


@dataclass(frozen=True, slots=True)
class NeedsRatio(Half):
    ratio: float


half = Half()
text = "topk:ratio=0.5"
number = 3


def factory():
    return grace.Allgather(Half())


def two(a, b=1):
    return a, b


# ---- broken ---------------------------------------------------------------------------------------------------------
class Disagrees(Plain):
    def _result(self, x, mean, state, peer):
        return Plain._result(self, x, mean + 1e-3 * peer.rank, state, peer)


@dataclass(frozen=True, slots=True)
class MixesRows(grace.Compressor):
    """Whole numbers of 8 bits and a scale for each row, of which the decoder takes the first row's for all."""

    def compress_(self, rows, rng, keep_rest):
        scale = rows.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        wire = wires.join((rows / scale).round().to(torch.int8), scale)
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire, out, scale, rng):
        codes, scales = wires.split(wire, [("codes", torch.int8, out.shape[1]), ("scale", torch.float32, 1)])
        scales = wires.check_scale("scale", scales)
        out.add_(codes.float() * self._choose(scales) * scale)

    def _choose(self, scales):
        return scales[:1]

    def facts(self, n):
        return grace.Facts(payload=n + 4)


class KeepsRowsApart(MixesRows):
    """The same, right."""

    def _choose(self, scales):
        return scales


class DoesNotConserve(Half):
    def compress_(self, rows, rng, keep_rest):
        wire = Half.compress_(self, rows, rng, keep_rest)
        rows.mul_(0.5)
        return wire


class LosesUnderMemory(Half):
    def with_memory(self):
        return DoesNotConserve()


class Shrinks(Half):
    def facts(self, n):
        return grace.Facts(unbiased=True, payload=4 * self._k(n))


class NoContraction(Half):
    def facts(self, n):
        return grace.Facts(contraction=0.9, payload=4 * self._k(n))


class CountsWrong(Plain):
    def traffic(self, like, peer):
        return Traffic(1, 2 * like.numel(), 2 * like.numel()) if like.numel() else Traffic(1)


class PayloadWrong(Half):
    def facts(self, n):
        return grace.Facts(payload=2 * self._k(n))


class ReadsTheStorage(Plain):
    """Instead of the answer, which is a piece of a larger one where tensors are fused."""

    def _result(self, x, mean, state, peer):
        whole = torch.empty(0, dtype=mean.dtype).set_(mean.untyped_storage())
        return Plain._result(self, x, whole[: mean.numel()].view(mean.shape).clone(), state, peer)


class ForgetsDonation(Plain):
    def exchange(self, x, state, peer):
        mean = yield AllReduce(x, "mean", donate=True)
        if not bool(mean.isfinite().all()):
            return grace.Exchanged(torch.full_like(mean, math.nan), None, state, finite=False)
        return grace.Exchanged(mean.clone(), x - mean if peer.lent.keep_rest else None, state)

    def with_memory(self):
        raise CompositionError("no memory")


class RestIsNotFree(Half):
    def compress_(self, rows, rng, keep_rest):
        if not keep_rest:
            rows = rows.half().float()
        return Half.compress_(self, rows, rng, keep_rest)


class GlobalRandomness(Half):
    def compress_(self, rows, rng, keep_rest):
        torch.rand(1)
        return Half.compress_(self, rows, rng, keep_rest)


class StateGrows(Plain):
    def init(self, like):
        return torch.zeros(1)

    def _result(self, x, mean, state, peer):
        return Plain._result(self, x, mean, torch.zeros(2), peer)


class KeepsNaN(Plain):
    def init(self, like):
        return torch.zeros_like(like)

    def exchange(self, x, state, peer):
        mean = yield AllReduce(x, "mean")
        state.add_(mean)
        return self._result(x, mean, state, peer)


class CommitsEarly(Plain):
    def init(self, like):
        return torch.zeros(1)

    def exchange(self, x, state, peer):
        if bool(x.isfinite().all()):
            state.add_(1)
        return (yield from Plain.exchange(self, x, state, peer))


class TrustsItsIndex(Half):
    """The largest number and where it is."""

    def compress_(self, rows, rng, keep_rest):
        index = rows.abs().argmax(1, keepdim=True)
        value = rows.gather(1, index)
        rows.scatter_(1, index, 0.0)
        return wires.join(index.int(), value)

    def decompress_add_(self, wire, out, scale, rng):
        index, value = wires.split(wire, [("index", torch.int32, 1), ("value", torch.float32, 1)])
        out.scatter_add_(1, index.long(), value.nan_to_num(0, 0, 0) * scale)

    def facts(self, n):
        return grace.Facts(contraction=1 / n, payload=8)


class DividesByZero(Half):
    summable: ClassVar[bool] = False

    def compress_(self, rows, rng, keep_rest):
        size = rows.abs().amax(1, keepdim=True)
        rows.div_(size)
        wire = torch.cat([rows, size], 1)
        rows.zero_()
        return wire

    def decompress_add_(self, wire, out, scale, rng):
        out.add_(wire[:, :-1] * wire[:, -1:] * scale)

    def facts(self, n):
        return grace.Facts(payload=4 * n + 4)

    def with_memory(self):
        raise CompositionError("no memory")


BROKEN = {
    "exact recovery": RecoversLess,
    "agreement": Disagrees,
    "rows": MixesRows,
    "conservation": DoesNotConserve,
    "nothing lost": LosesUnderMemory,
    "unbiased": Shrinks,
    "error bound": NoContraction,
    "traffic": CountsWrong,
    "payload": PayloadWrong,
    "fused equals alone": ReadsTheStorage,
    "answers in place": ForgetsDonation,
    "rest is free": RestIsNotFree,
    "randomness": GlobalRandomness,
    "state survives": StateGrows,
    "non-finite agreed": KeepsNaN,
    "failure": CommitsEarly,
    "corruption": TrustsItsIndex,
    "edge inputs": DividesByZero,
}
