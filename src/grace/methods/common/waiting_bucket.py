"""The tensors of a bucket whose numbers wait until their sums are certain, on an accelerator, by few launches: varsparse.

What is computed of each number is done by torch operations on all tensors side by side, with what lies between them: a fixed
number of calls. r and d: the two parts of the state (:mod:`grace.methods.varsparse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from grace.collectives import Exchange
from grace.communicators.counted_many import NoPlan, exchange_chosen
from grace.communicators.many import Prepared, prepare
from grace.compute.portable import hypotenuse
from grace.contract.compressor import Compressor
from grace.contract.method import Exchanged
from grace.contract.peer import Peer, Peers
from grace.contract.workspace import padded_sizes, take_flat
from grace.kernels import TensorList


class Waiting(Protocol):
    """The state of a tensor; seen: what d learns in this step instead of x."""

    @property
    def r(self) -> Tensor: ...
    @property
    def d(self) -> Tensor: ...
    @property
    def seen(self) -> Tensor | None: ...


@dataclass
class WaitingBucket:
    """A bucket of tensors of any shapes, which kernels read, and in ``flats`` what there is of all numbers, each ``[N]``
    float32.
    """

    bucket: Prepared[NoPlan]
    xs: Sequence[Tensor]
    states: Sequence[Waiting]
    peers: Peers
    flats: dict[str, Tensor]

    @staticmethod
    def of(owner: object, inner: Compressor, xs: Sequence[Tensor], peers: Sequence[Peer]) -> WaitingBucket | None:
        """The bucket of these tensors, of any shapes, whose wires ``inner`` makes; None: they go one by one."""
        whose = Peers.of(peers)
        workspace = whose.like.lent.workspace
        if workspace is None:
            return None
        plain = Peers(whose.like.lending(keep_rest=False), whose.names)
        bucket = prepare(owner, inner, lambda peer: peer.private(inner.id), xs, plain, workspace, NoPlan.of)
        return None if bucket is None else WaitingBucket(bucket, xs, (), plain, {})

    def add(self, states: Sequence[Waiting], share: float) -> None:
        """Adds x to what waits; what is certain is then to be sent: where ``|r| > share d``."""
        self.states = states
        old_r, _ = self._gather([state.r for state in states])
        old_d, _ = self._gather([state.d for state in states])
        given, rooms = self._gather(self.xs)
        seen = given
        if any(state.seen is not None for state in states):
            pairs = zip(rooms, states, strict=True)
            seen, _ = self._gather([x if state.seen is None else state.seen for x, state in pairs])
        r, d = old_r + given, hypotenuse(old_d, seen)
        sure = r.abs() > share * d
        self.flats = {"old_r": old_r, "old_d": old_d, "r": r, "d": d, "sure": sure}

    def exchange(self) -> Exchange[list[Exchanged[Any]]]:
        """The results, whose means are written over the tensors."""
        many, compressor = self.bucket.many, self.bucket.compressor
        lent, rooms = take_flat(self.bucket.workspace, many.sizes, many.device)
        # not finite where r is not: all ranks leave that step out
        torch.mul(self.flats["r"], self.flats["sure"], out=lent)
        self.flats["lent"] = lent
        sums = many.once("lent", lambda: TensorList(many.sizes, (), (), many.device))
        sums.point(rooms, None, rooms)
        if self.bucket.means is not None:
            # What rounding the means loses is added to what is left, which is not known before the exchange has ended.
            self.flats["lost"], rooms = take_flat(self.bucket.workspace, many.sizes, many.device)
            self.flats["lost"].zero_()
        many.point(self.xs, None, rooms)
        code = compressor.counted
        assert code is not None
        chosen = compressor.choose_many_(sums, self.bucket.stream, code)
        results, _ = yield from exchange_chosen(self.bucket, code, chosen, self.xs, self.peers)
        return results

    def succeed(
        self, outs: Sequence[Exchanged[Any]], decay: float, keep_error: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The next r and d of each tensor, of any shapes, in storage that stays valid."""
        many, flats = self.bucket.many, self.flats
        r, d, rest = flats["r"], flats["d"], flats["lent"]
        sizes = many.numbers("padded", lambda: padded_sizes(many.sizes), torch.int64)
        flags = torch.stack([torch.as_tensor(out.finite, device=many.device, dtype=torch.bool) for out in outs])
        fine = flags.repeat_interleave(sizes, output_size=len(r))
        sent = flats["sure"] & (rest != r)
        left = torch.where(sent, rest if keep_error else 0.0, r)
        if "lost" in flats:
            left.add_(flats["lost"])
        d.mul_(decay).masked_fill_(sent, 0.0)
        new_r, new_d = torch.where(fine, left, flats["old_r"]), torch.where(fine, d, flats["old_d"])
        return self._keep(new_r, [state.r for state in self.states]), self._keep(
            new_d, [state.d for state in self.states]
        )

    def _gather(self, parts: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """``[N]``: these tensors, all of one dtype and of any shapes, side by side; and the room of each, ``[n]``."""
        flat, rooms = take_flat(self.bucket.workspace, self.bucket.many.sizes, self.bucket.many.device)
        rows = [room[0] for room in rooms]  # one copy of all where both have the same strides
        torch._foreach_copy_(rows, [part.reshape(-1) for part in parts])
        return flat, rows

    def _keep(self, flat: Tensor, olds: Sequence[Tensor]) -> list[Tensor]:
        """The parts of ``flat [N]``, in storage of their own."""
        lents = [peer.lent for peer in self.peers]
        out = [lent.borrow_successor(old) for lent, old in zip(lents, olds, strict=True)]
        sizes = self.bucket.many.sizes
        parts = [part[:n] for part, n in zip(flat.split_with_sizes(padded_sizes(sizes)), sizes, strict=True)]
        torch._foreach_copy_(out, [part.view(old.shape) for part, old in zip(parts, olds, strict=True)])
        for lent, old in zip(lents, olds, strict=True):
            lent.give_back(old)
        return out
