"""Letters: nb blocks of B numbers, the last one shorter; kb of them are sent; a cycle has T = ceil(nb/kb) steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grace import codecs
from grace import wire as wires
from grace.collectives import AllReduce, Broadcast, Exchange, Traffic, cost
from grace.communicators import Allreduce
from grace.compressor import Compressor
from grace.errors import CompositionError, ConfigurationError, out_of_range
from grace.facts import Facts
from grace.kernels import block_count, select_topk
from grace.method import Exchanged, Method
from grace.methods.topk import kept
from grace.peer import Peer
from grace.random import Stream
from grace.registry import register


@register("blockrandomk", memory="residual", family="sparsification", aliases=("blockrandomkcompressor",))
@dataclass(frozen=True, slots=True)
class BlockRandomK(Method[None]):
    """Block-random-k: the same blocks on all ranks, so that the network can sum them and copies are contiguous.

    ``C(x)_i = a x_i if i is in a chosen block, else 0``, with kb = max(1, ceil(ratio nb)) blocks and a = nb/kb or 1

    Args:
        ratio: share of the blocks that is sent, in (0, 1].
        block: B, elements of a block, >= 1.
        mode: random: blocks drawn anew in each step. cyclic: one random order, again and again, so that every block is
            sent once in T steps. clt: the positions of the k = max(1, ceil(ratio n)) largest numbers of rank t mod W.
        scale: whether to multiply by a = nb/kb; by default only where there is no memory, and only in mode random.
    Wire:
        kb B values (float32), at most n: 32 ratio n bits, one round, summed by the network; zeros where the short block
        or the end of a cycle leaves fewer. clt: k values, and one round more, in which the k indices are broadcast.
    Bias:
        random: scaled: unbiased, omega = nb/kb - 1; else biased, delta = kb/nb. cyclic and clt: biased, without a bound
        for a single step; in T steps, cyclic sends everything.
    Differs from the paper:
        ratio instead of a number of blocks; of ScaleCom (clt), the local selection is exact, and its low-pass filter on
        the memory is not part of the method.
    Example:
        >>> method("blockrandomk:ratio=0.0625,block=256,mode=cyclic")
        ErrorFeedback(method=BlockRandomK(ratio=0.0625, block=256, mode='cyclic', scale=False), beta=1.0, gamma=1.0)

    Reference:
        Xie, Zheng, Koyejo, Gupta, Li and Lin, "CSER: Communication-efficient SGD with Error Reset", NeurIPS 2020, arXiv
        2007.13221; clt: Chen et al., "ScaleCom", NeurIPS 2020, arXiv 2104.11125.
    """

    ratio: float = 0.015625
    block: int = 1024
    mode: Literal["random", "cyclic", "clt"] = "random"
    scale: bool | None = None

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise out_of_range("blockrandomk", "ratio", self.ratio, "0 < ratio <= 1")
        if not (isinstance(self.block, int) and self.block >= 1):
            raise out_of_range("blockrandomk", "block", self.block, "a whole number >= 1")
        if self.mode not in ("random", "cyclic", "clt"):
            raise out_of_range("blockrandomk", "mode", self.mode, "'random', 'cyclic', 'clt'")
        if not (self.scale is None or isinstance(self.scale, bool)):
            raise out_of_range("blockrandomk", "scale", self.scale, "True, False, None")
        if self.scale and self.mode != "random":
            raise ConfigurationError(f"blockrandomk: scale=True makes only mode='random' unbiased, not {self.mode!r}")

    def with_memory(self) -> BlockRandomK:
        if self.scale:
            raise CompositionError(
                "blockrandomk: scale=True multiplies by nb/kb, and a memory of its error would grow without bound; "
                "use scale=False with a memory, or memory=none"
            )
        return replace(self, scale=False)

    @property
    def adds_memory(self) -> bool:
        return self.mode != "clt"

    def exchange(self, x: Tensor, state: None, peer: Peer) -> Exchange[Exchanged[None]]:
        if self.mode != "clt" or x.numel() == 0:
            return (yield from Allreduce(self._blocks).exchange(x, None, peer))
        n = x.numel()
        k = kept(self.ratio, n)
        leader = peer.step % peer.world
        mine = codecs.encode(select_topk(x.reshape(1, -1).float(), k), n, "auto")
        packed = yield Broadcast(mine if peer.rank == leader else torch.zeros_like(mine), leader)
        index = codecs.decode(packed, n, k, "auto")[0]
        return (yield from Allreduce(Positions(index)).exchange(x, None, peer))

    @property
    def _blocks(self) -> Blocks:
        return Blocks(self.ratio, self.block, self.mode == "cyclic", self.mode == "random" and self.scale is not False)

    def facts(self, like: Tensor) -> Facts:
        n = like.numel()
        if self.mode == "clt":
            return Facts(contraction=0.0, payload=4 * kept(self.ratio, n) if n else 0)
        return self._blocks.facts(n)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        n = like.numel()
        if self.mode != "clt" or n == 0:
            return Allreduce(self._blocks).traffic(like, peer)
        k = kept(self.ratio, n)
        packed = torch.empty(1, codecs.size(n, k, "auto") or 0, dtype=torch.uint8, device="meta")
        values = torch.empty(1, k, device="meta")
        ops = (Broadcast(packed, peer.step % peer.world), AllReduce(values))
        return sum((cost(op, peer.rank, peer.world) for op in ops), Traffic())


@dataclass(frozen=True, slots=True)
class Blocks(Compressor):
    """The operator of modes random and cyclic; the wire is the values of the chosen blocks, then zeros."""

    summable: ClassVar[bool] = True
    randomness: ClassVar[Literal["shared", "private"]] = "shared"
    ratio: float
    block: int
    cyclic: bool
    scaled: bool

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        n = rows.shape[1]
        whole, tail = self._places(n, rng, rows.device)
        blocks, short = self._cut(rows)
        wire = rows.new_zeros(rows.shape[0], self._width(n))
        room, behind = self._cut_wire(wire, whole, tail)
        torch.index_select(blocks, 1, whole, out=room)
        behind.copy_(short[:, :tail])
        if keep_rest:  # what the wire says is a x_i, so that (1 - a) x_i is left
            left = 1 - self._factor(n)
            blocks.index_copy_(1, whole, room * left)
            short[:, :tail] *= left
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n = out.shape[1]
        (values,) = wires.split(wire.view(torch.uint8), [("values", torch.float32, self._width(n))])
        whole, tail = self._places(n, rng, out.device)
        blocks, short = self._cut(out)
        said, behind = self._cut_wire(values * (scale * self._factor(n)), whole, tail)
        blocks.index_add_(1, whole, said)
        short[:, :tail] += behind

    def _places(self, n: int, rng: Stream, device: torch.device) -> tuple[Tensor, int]:
        """The chosen blocks of full size, ascending, and how many numbers of the short one behind them are chosen."""
        chosen = self.chosen(n, rng, device).sort().values
        full = n // self.block
        whole = chosen[chosen < full]
        return whole, n % self.block if whole.numel() < chosen.numel() else 0

    def _cut(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``[b, n]`` as full blocks ``[b, nb, B]``, and the short one behind them ``[b, < B]``."""
        b, n = rows.shape
        at = n // self.block * self.block
        return rows[:, :at].view(b, n // self.block, self.block), rows[:, at:]

    def _cut_wire(self, wire: Tensor, whole: Tensor, tail: int) -> tuple[Tensor, Tensor]:
        """What of a wire ``[b, w]`` belongs to the chosen full blocks, ``[b, m, B]``, and to the short one, ``[b, tail]``."""
        at = whole.numel() * self.block
        return wire[:, :at].view(wire.shape[0], whole.numel(), self.block), wire[:, at : at + tail]

    def chosen(self, n: int, rng: Stream, device: torch.device) -> Tensor:
        """The blocks of this step."""
        count, kb = self._counts(n)
        if not self.cyclic:
            return rng.subset(count, kb, device)
        at = rng.step % -(-count // kb) * kb
        return self.order(count, replace(rng, step=0), device)[at : at + kb]

    @staticmethod
    def order(count: int, rng: Stream, device: torch.device) -> Tensor:
        """A permutation of the blocks: all but one drawn in a random order, then the one that is missing."""
        drawn = rng.subset(count, count - 1, device)
        return torch.cat([drawn, count * (count - 1) // 2 - drawn.sum().view(1)])

    def _counts(self, n: int) -> tuple[int, int]:
        count = block_count(n, self.block)
        return count, kept(self.ratio, count)

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
            return Facts(contraction=0.0, deterministic=False, payload=payload)
        if self.scaled:
            return Facts(unbiased=True, variance=count / kb - 1, deterministic=False, payload=payload)
        return Facts(contraction=kb / count, deterministic=False, payload=payload)


@dataclass(frozen=True, slots=True)
class Positions(Compressor):
    """The operator of mode clt: the values at positions ``[k]`` that all ranks know."""

    summable: ClassVar[bool] = True
    index: Tensor

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        wire = rows[:, self.index]
        if keep_rest:
            rows[:, self.index] = 0.0
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        out[:, self.index] += wire * scale

    def facts(self, n: int) -> Facts:
        return Facts(contraction=0.0, payload=4 * self.index.numel())
