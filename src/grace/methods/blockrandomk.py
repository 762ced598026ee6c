"""Block-random-k, from CSER (Xie et al., NeurIPS 2020); its leader mode, from ScaleCom (Chen et al., NeurIPS 2020).

Letters: nb blocks of B numbers, the last one shorter; kb of them are sent; a cycle has T = ceil(nb/kb) steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from grace.collectives import AllReduce, Broadcast, Exchange, Traffic
from grace.communicators import Allreduce
from grace.communicators.base import meta_tensor, sum_costs
from grace.compute import backends
from grace.contract.facts import Facts
from grace.contract.knobs import Count, Share, check_knobs
from grace.contract.lent import Lent
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer, Peers
from grace.errors import CompositionError, ConfigurationError
from grace.flags.capturing import refuse_capture
from grace.flags.finite import on_host
from grace.kernels import select_topk
from grace.kernels.index_codes import codes as index_codes
from grace.methods.common.blocks import Blocks
from grace.methods.common.counts import count_kept
from grace.methods.common.led_bucket import LEADS, exchange_led, prepare_led
from grace.methods.common.positions import Positions
from grace.registry import register


@register(
    "blockrandomk",
    memory="residual",
    family="sparsification",
    cases=["ratio=0.3,block=8", "ratio=0.3,block=8,mode=cyclic", "ratio=0.2,block=4,mode=clt"],
)
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
        or the end of a cycle leaves fewer. clt: k values, and one more round, which broadcasts the k indices.
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

    ratio: Share = 0.015625
    block: Count = 1024
    mode: Literal["random", "cyclic", "clt"] = "random"
    scale: bool | None = None

    def __post_init__(self) -> None:
        check_knobs(self)
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
        return True

    def exchange(self, x: Tensor, state: None, peer: Peer) -> Exchange[Exchanged[None]]:
        if self.mode != "clt" or x.numel() == 0:
            return (yield from Allreduce(self._blocks).exchange(x, None, peer))
        refuse_capture(LEADS)
        n = x.numel()
        k = count_kept(self.ratio, n)
        leader = peer.step % peer.world
        packed = torch.zeros(1, index_codes.most(n, k, "auto"), dtype=torch.uint8, device=x.device)
        if peer.rank == leader:
            packed = index_codes.encode(select_topk(_sum_with_memory(x, peer.lent), k), n, "auto")
        packed = yield Broadcast(packed[0], leader)
        index = index_codes.decode(packed[None], n, k, "auto")[0]
        return (yield from Allreduce(Positions(index)).exchange(x, None, peer))

    def batches(self, like: Tensor) -> bool:
        if self.mode == "clt":
            return not on_host(like.device) and backends.runs_triton(like.device)
        return Allreduce(self._blocks).batches(like)

    def exchange_all(
        self, xs: Sequence[Tensor], states: Sequence[None], peers: Sequence[Peer]
    ) -> Exchange[list[Exchanged[None]]]:
        """As :meth:`grace.communicators.Allreduce.exchange_all`, and so do the positions of a leader."""
        if self.mode == "clt":
            workspace = peers[0].lent.workspace if peers else None
            if workspace is not None and self.batches(xs[0]):
                whose = Peers.of(peers)
                bucket = prepare_led(partial(count_kept, self.ratio), xs, whose)
                if bucket is not None:
                    leader = whose.like.step % whose.like.world
                    return (yield from exchange_led(bucket, leader, xs, whose, workspace))
            return (yield from Method.exchange_all(self, xs, states, peers))
        return (yield from Allreduce(self._blocks).exchange_all(xs, states, peers))

    @property
    def _blocks(self) -> Blocks:
        return Blocks(self.ratio, self.block, self.mode == "cyclic", self.mode == "random" and self.scale is not False)

    def facts(self, like: Tensor) -> Facts:
        n = like.numel()
        if self.mode == "clt":
            return Facts(contraction=0.0, payload=4 * count_kept(self.ratio, n) if n else 0)
        return self._blocks.facts(n)

    def traffic(self, like: Tensor, peer: Peer) -> Traffic | None:
        n = like.numel()
        if self.mode != "clt" or n == 0:
            return Allreduce(self._blocks).traffic(like, peer)
        k = count_kept(self.ratio, n)
        packed, values = meta_tensor(index_codes.size(n, k, "auto") or 0), meta_tensor(1, k, dtype=torch.float32)
        return sum_costs(peer, Broadcast(packed, peer.step % peer.world), AllReduce(values))


def _sum_with_memory(x: Tensor, lent: Lent) -> Tensor:
    """float32 ``[1, n]``: what is to be sent."""
    if lent.memory is None or lent.rest is None:
        return x.reshape(1, -1).float()
    return torch.add(x.reshape(1, -1), lent.memory.view(1, -1), out=lent.rest.view(1, -1))
