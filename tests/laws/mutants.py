"""Methods that are broken on purpose, each in one way that a law forbids."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import grace
from grace.collectives import AllReduce, Exchange, Traffic, cost
from grace.communicators import Allgather, Allreduce
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.errors import TransportError
from grace.kernels import block_abs_max, repeat_by_block
from grace.memories import ErrorFeedback
from grace.methods import EDEN, QSGD, Identity, PowerSGD, RandomK, TopK
from grace.random import Stream


@dataclass(frozen=True)
class Wrapper(Method[Any]):
    """A method like another; subclasses break something."""

    method: Method[Any]

    def init(self, like: Tensor) -> Any:
        return self.method.init(like)

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        return (yield from self.method.exchange(x, state, peer))

    def facts(self, like: Tensor) -> Facts:
        return self.method.facts(like)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return self.method.traffic(like, peer)

    def with_memory(self) -> Method[Any]:
        return replace(self, method=self.method.with_memory())

    def owed(self, state: Any) -> Tensor | None:
        return self.method.owed(state)


# ---- law 1: agreement -----------------------------------------------------------------------------------------------
class OwnMean(Wrapper):
    """The last bit of the mean depends on the rank."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from self.method.exchange(x, state, peer)
        mean = out.mean * (1 + 2.0**-23) if peer.rank else out.mean
        return replace(out, mean=mean)


class AlwaysFloat32(Wrapper):
    """The mean is not of the dtype of the gradient."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from self.method.exchange(x, state, peer)
        return replace(out, mean=out.mean.float())


class Flattened(Wrapper):
    """The mean has lost its shape."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from self.method.exchange(x, state, peer)
        return replace(out, mean=out.mean.view(-1))


# ---- law 2: conservation --------------------------------------------------------------------------------------------
class SumInsteadOfMean(Wrapper):
    """The original GRACE forgot to divide by W in places."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from self.method.exchange(x, state, peer)
        return replace(out, mean=out.mean * peer.world)


class RestIsZero(Wrapper):
    """Forgets what was not sent."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from self.method.exchange(x, state, peer)
        return replace(out, rest=torch.zeros_like(x))


@dataclass(frozen=True)
class NoSecondDebt(grace.ScatterReduce):
    """A ScatterReduce whose owner forgets what its second rounding dropped."""

    def _exchange(self, x: Tensor, peer: Peer, state: Any) -> Exchange[Exchanged[Any]]:
        rest = x.reshape(-1).clone()
        self.compressor.compress_(rest.view(1, -1), peer.private(self.compressor.id), True)
        out = yield from super()._exchange(x, peer, state)
        return replace(out, rest=rest.view(x.shape) if out.rest is not None else None)


class NextRow(Wrapper):
    """Each rank has its neighbor's row of the mean."""

    def scatter(self, rows: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from self.method.exchange(rows, state, peer)
        return replace(out, mean=out.mean[(peer.rank + 1) % peer.world])


class KeepsItsOwnRow(Wrapper):
    """Nobody sends it, so it is taken to be in the rest as well."""

    def scatter(self, rows: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        own = rows[peer.rank].clone()
        out = yield from self.method.scatter(rows, state, peer)
        if out.rest is not None:
            out.rest[peer.rank] = own
        return out

    def scatter_traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return self.method.scatter_traffic(like, peer)


class OnlyItsOwnRow(Wrapper):
    """A rank looks for inf and NaN in its own row of the mean only."""

    def scatter(self, rows: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        clean = rows.nan_to_num(nan=0.0)
        dirty = (yield AllReduce(rows.isnan().any(1).float(), "max"))[peer.rank]
        out = yield from self.method.scatter(clean, state, peer)
        return Exchanged.poisoned(out.mean, state) if bool(dirty) else out

    def scatter_traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        inner = self.method.scatter_traffic(like, peer)
        return None if inner is None else inner + cost(AllReduce(like[:, 0]), peer.rank, peer.world)


# ---- law 3: nothing lost --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class NeverUpdated(ErrorFeedback[Any]):
    """The memory stays what it was."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        before = state[0].clone()
        out = yield from ErrorFeedback.exchange(self, x, state, peer)
        out.state[0].copy_(before)
        return out


@dataclass(frozen=True, slots=True)
class Doubled(ErrorFeedback[Any]):
    """The memory is added to instead of replaced."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        before = state[0].clone()
        out = yield from ErrorFeedback.exchange(self, x, state, peer)
        out.state[0].add_(before)
        return out


# ---- law 4: declared facts ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Nearest(QSGD):
    """Rounds to nearest, and still says that it is unbiased: what lies on the grid does not move."""

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        p = rows.clone() if memory is None else rows + memory
        unit = repeat_by_block(block_abs_max(p, self.bucket), p.shape[1], self.bucket).clamp_min(1e-30) / self.s
        on_grid = (p / unit).round() * unit
        encoded = QSGD.encode_(self, on_grid, rng, None, on_grid.clone() if rest is not None else None)
        if rest is not None:
            rest.copy_(p - on_grid)
        return encoded


@dataclass(frozen=True)
class Unscaled(RandomK):
    """Forgets n/k."""

    def _factor(self, rows: Tensor) -> float:
        return 1.0


@dataclass(frozen=True)
class Boastful(TopK):
    """Claims a contraction that it has not, of more than it keeps."""

    def facts(self, n: int) -> Facts:
        return replace(TopK.facts(self, n), contraction=min(1.0, 3 * self.ratio))


@dataclass(frozen=True)
class Smooth(QSGD):
    """Claims half the variance."""

    def facts(self, n: int) -> Facts:
        return replace(QSGD.facts(self, n), variance=self._levels.variance(n) / 4)


@dataclass(frozen=True)
class Settled(QSGD):
    """Claims to be deterministic."""

    def facts(self, n: int) -> Facts:
        return replace(QSGD.facts(self, n), deterministic=True)


@dataclass(frozen=True)
class Slim(TopK):
    """Forgets its indices in the payload."""

    def facts(self, n: int) -> Facts:
        return replace(TopK.facts(self, n), payload=4)


class OneRoundLess(Wrapper):
    """Mis-declares its rounds."""

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        declared = self.method.traffic(like, peer)
        return None if declared is None else replace(declared, rounds=declared.rounds - 1)


class ScattersForFree(Wrapper):
    """Declares half of what a scatter moves."""

    def scatter(self, rows: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        return self.method.scatter(rows, state, peer)

    def scatter_traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        declared = self.method.scatter_traffic(like, peer)
        return None if declared is None else replace(declared, sent=declared.sent // 2)


class ServerLikeAll(Wrapper):
    """Declares for every rank what the first one moves."""

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return self.method.traffic(like, replace(peer, rank=0))


class Unsure(Wrapper):
    """Does not declare what it knows."""

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        return None


@dataclass(frozen=True)
class Squares(Identity):
    """Wires whose sum does not decode to the sum."""

    summable: ClassVar[bool] = True

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        return rows.square() * rows.sign()

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        out.add_(wire.abs().sqrt() * wire.sign(), alpha=scale)


# ---- rows -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FirstScale(QSGD):
    """Rounds every row to a grid as coarse as the first two of them need, which wires and decoder agree on."""

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        if len(rows) == 1:
            return QSGD.encode_(self, rows, rng, memory, rest)
        unit = rows[:2].abs().max() / 4
        return QSGD.encode_(self, (rows / unit).round() * unit, rng, memory, rest)


# ---- law 5: exact recovery ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SmallestK(TopK):
    """Keeps the wrong end."""

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        return TopK.encode_(self, 1 / (rows + 1e-3), rng, memory, rest)


# ---- law 6: fused equals alone, donation, keep_rest -----------------------------------------------------------------
class Sensitive(Wrapper):
    """Reads a buffer that it has donated after the answer is there."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        own = x.reshape(-1).float().clone()
        answer = yield AllReduce(own, donate=True)
        return Exchanged((answer + (own - x.reshape(-1))).view(x.shape).to(x.dtype), None, state)


class Neighborly(Wrapper):
    """Its mean depends on whether others share its answer's storage."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        answer = yield AllReduce(x.reshape(-1).clone(), donate=True)
        start = answer.storage_offset() == 0 and answer.untyped_storage().nbytes() == answer.nbytes
        return Exchanged((answer * (1 if start else 2)).view(x.shape), None, state)


class RestCosts(Wrapper):
    """Sends something else if the rest is wanted."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from self.method.exchange(x * 2 if peer.lent.keep_rest else x, state, peer)
        return out


# ---- law 7: randomness ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Other(QSGD):
    """Draws from another stream than the one it is given."""

    def other(self, rng: Stream) -> Stream:
        raise NotImplementedError

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        return QSGD.encode_(self, rows, self.other(rng), memory, rest)


@dataclass(frozen=True)
class GlobalTorch(_Other):
    """Draws from torch's global generator."""

    def other(self, rng: Stream) -> Stream:
        return replace(rng, seed=int(torch.randint(1 << 30, ())))


@dataclass(frozen=True)
class GlobalNumpy(_Other):
    """Draws from numpy's."""

    def other(self, rng: Stream) -> Stream:
        return replace(rng, seed=np.random.randint(1 << 30))  # noqa: NPY002


@dataclass(frozen=True)
class GlobalPython(_Other):
    """Draws from Python's."""

    def other(self, rng: Stream) -> Stream:
        return replace(rng, seed=random.getrandbits(30))


@dataclass(frozen=True)
class Seedless(_Other):
    """The same numbers whatever the seed."""

    def other(self, rng: Stream) -> Stream:
        return replace(rng, seed=0)


@dataclass(frozen=True)
class InStep(_Other):
    """All ranks round alike, so that averaging does not help."""

    def other(self, rng: Stream) -> Stream:
        return replace(rng, rank=None)


@dataclass(frozen=True)
class OneRotation(EDEN):
    """All workers rotate alike, and still it says that each draws its own."""

    bits: int = 1
    rotation: str = "shared"

    def facts(self, n: int) -> Facts:
        return replace(EDEN.facts(self, n), randomness="private")


# ---- law 8: state ---------------------------------------------------------------------------------------------------
class Hidden(Wrapper):
    """Keeps a running sum where no checkpoint finds it."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        kept = self.__dict__.setdefault("kept", {})
        if peer.step == 0:
            kept.clear()
        kept[peer.rank] = kept.get(peer.rank, 0) + x.detach().clone()
        own = kept[peer.rank].clone()
        return (yield from self.method.exchange(own, state, peer))


# ---- law 9: non-finite ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Poisoned(ErrorFeedback[Any]):
    """Commits whatever came: one NaN stays for ever."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from ErrorFeedback.exchange(self, x, state, peer)
        if not out.finite:
            out.state[0].fill_(math.nan)
        return out


@dataclass(frozen=True, slots=True)
class Emptied(ErrorFeedback[Any]):
    """Forgets its memory when it sees a NaN."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from ErrorFeedback.exchange(self, x, state, peer)
        if not out.finite:
            out.state[0].zero_()
        return out


class Silent(Wrapper):
    """Turns NaN into zero, so that loss scaling does not see it."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from self.method.exchange(x, state, peer)
        return replace(out, mean=out.mean.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))


class OnlyMine(Wrapper):
    """Each rank believes only what it saw itself."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        bad = not bool(x.isfinite().all())
        out = yield from self.method.exchange(x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0), state, peer)
        return replace(out, mean=torch.full_like(out.mean, math.nan) if bad else out.mean, finite=not bad)


# ---- law 10: failures -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Hasty(ErrorFeedback[Any]):
    """Adds to the memory before it knows how the exchange ended."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        state[0].add_(x)
        return (yield from ErrorFeedback.exchange(self, torch.zeros_like(x), state, peer))


@dataclass(frozen=True)
class EarlyQ(PowerSGD):
    """Overwrites its subspace before the second round has answered."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        run = PowerSGD.exchange(self, x, state, peer)
        try:
            op = next(run)
            while True:
                if state is not None and op.buf.numel() == state.numel():
                    state.copy_(op.buf.view(state.mT.shape).mT)
                op = run.send((yield op))
        except StopIteration as stop:
            result: Exchanged[Any] = stop.value
            return result


@dataclass(frozen=True, slots=True)
class InPlace(ErrorFeedback[Any]):
    """Writes the new memory over the old one, which is still the state if an exchange beside it fails."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from ErrorFeedback.exchange(self, x, state, peer)
        return replace(out, state=out.state._replace(memory=state.memory.copy_(out.state.memory)))


class Stubborn(Wrapper):
    """Swallows the failure and returns its own gradient."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        own = x.clone()
        try:
            return (yield from self.method.exchange(x, state, peer))
        except TransportError:
            return Exchanged(own, None, state)


SOUND: dict[str, Method[Any]] = {
    "topk": Allgather(TopK(ratio=0.2)),
    "none": Allreduce(Identity()),
    "qsgd": Allgather(QSGD(bits=3, bucket=32)),
    "wrapper": Wrapper(Allgather(TopK(ratio=0.2))),
}


def compressor_of(method: Method[Any]) -> Compressor:
    """The compressor of a communicator."""
    compressor: Compressor = method.compressor  # type: ignore[attr-defined]
    return compressor
