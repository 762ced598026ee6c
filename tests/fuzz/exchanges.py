"""Whole exchanges whose answers are damaged on the way to one rank, or on the way from one rank to all.

A damaged answer is an error, or a result whose flag tells the truth: a mean that is flagged finite is finite.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

import grace
from grace.collectives import Collective
from grace.contract.method import Exchanged, Method
from grace.errors import AgreementError, PayloadError
from grace.run.simulate import answers
from tests.fuzz.damage import damage
from tests.fuzz.tally import Tally

WORLD = 3
_DENSE = grace.method("none")
SHAPES = ((20, 15), (64,), (1,), (9, 4))


class Conversation:
    """A method, exchange after exchange from fresh states.

    Args:
        method: whose exchanges are damaged.
        seed: what is drawn follows from it.
    """

    def __init__(self, method: Method[object], seed: int = 0):
        self.method = method
        self.tally = Tally(usual=0.2)  # exchanges are watched as a whole, and are short
        self._dice = np.random.default_rng(seed)
        self._plain = functools.cache(self._is_plain)  # the same shapes come again and again

    def run(self, payloads: int) -> Tally:
        """Exchanges until at least so many answers were damaged."""
        while self.tally.payloads < payloads:
            self._exchange()
        return self.tally

    def _exchange(self) -> None:
        shape = SHAPES[int(self._dice.integers(len(SHAPES)))]
        states = [self.method.init(torch.empty(shape)) for _ in range(WORLD)]
        for step in range(2):
            xs = [torch.from_numpy(self._dice.standard_normal(shape, dtype=np.float32)) for _ in range(WORLD)]
            runs = [
                self.method.exchange(x, state, grace.Peer(rank, WORLD, step))
                for rank, (x, state) in enumerate(zip(xs, states, strict=True))
            ]
            try:
                with self.tally.watch():
                    outs = self._converse(runs)
            except (PayloadError, AgreementError):
                self.tally.refused += 1
                return
            for out in [] if self._plain(shape) else outs:
                assert not grace.flags.finite.ask_host(out.finite) or bool(out.mean.isfinite().all()), (
                    "flagged finite, and is not"
                )
            states = [out.state for out in outs]

    def _is_plain(self, shape: tuple[int, ...]) -> bool:
        """True if the network sums such a gradient as it is, so that its mean speaks for itself: see ``Exchanged.finite``."""
        like, peer = torch.empty(shape, device="meta"), grace.Peer(0, WORLD)
        return self.method.traffic(like, peer) == _DENSE.traffic(like, peer)

    def _converse(self, runs: list[grace.collectives.Exchange[Exchanged[object]]]) -> list[Exchanged[object]]:
        """The exchanges in lock step. An error closes all."""
        done: dict[int, Exchanged[object]] = {}
        inbox: list[Tensor | None] = [None] * WORLD
        try:
            while True:
                ops: list[Collective] = []
                for rank, (run, message) in enumerate(zip(runs, inbox, strict=True)):
                    try:
                        ops.append(next(run) if message is None else run.send(message))
                    except StopIteration as stop:
                        done[rank] = stop.value
                if not ops:
                    return [done[rank] for rank in range(WORLD)]
                # ranks that were told different things may part; in a real job the transport then fails
                if len(ops) < WORLD or len({(type(op), op.buf.shape, op.buf.dtype) for op in ops}) > 1:
                    raise PayloadError("the ranks part")
                inbox = list(answers(ops))
                if self._dice.random() < 0.5:
                    self._spoil(inbox)
        finally:
            for run in runs:
                run.close()

    def _spoil(self, inbox: list[Tensor | None]) -> None:
        """Damages one rank's answer, or everybody's alike; its length stays."""
        ranks = range(WORLD) if self._dice.random() < 0.5 else [int(self._dice.integers(WORLD))]
        seed = int(self._dice.integers(1 << 30))
        for rank in ranks:
            answer = inbox[rank]
            assert answer is not None
            if answer.numel() == 0:
                return
            raw = answer.contiguous().view(-1).view(torch.uint8).numpy().copy()
            spoiled, _ = damage(raw[None], np.random.default_rng(seed))
            size = min(spoiled.shape[1], raw.size)
            raw[:size] = spoiled[0, :size]
            inbox[rank] = torch.from_numpy(raw).view(answer.dtype).view(answer.shape)
        self.tally.payloads += 1
