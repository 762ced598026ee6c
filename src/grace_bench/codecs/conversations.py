"""The cases of a method with its own exchange: one worker's part of it, replayed.

All workers run once in this process, and the network's answers to worker 0 are kept. A sample repeats that worker's step,
from the same state, with the same answers: what it does before its last collective counts as encoding, what it does with
the last answer as decoding.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from grace.collectives import Collective, Exchange, watch
from grace.contract.lent import Lent
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.contract.workspace import Workspace
from grace.run.simulate import simulate
from grace.verify.running import clone_state
from grace_bench.codecs.buffers import Buffers
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK, Case, do_nothing

COPIES = 4  # tensors of this size per worker that are alive at once, at most


@dataclass(slots=True, eq=False, kw_only=True)
class ReplayedStep(Case):
    """A worker's step, of which only a part is timed."""

    run: Callable[[], object] = do_nothing
    method: Method[Any]
    buffers: Buffers
    shape: tuple[int, int]
    part: Literal["encode", "decode", "all"] = "encode"
    state: Any = None
    answers: list[Tensor] = field(default_factory=list)
    workspace: Workspace = field(default_factory=Workspace)

    def seconds(self, clear: Callable[[], None], now: Callable[[], float] = time.perf_counter) -> float:
        """Runs the whole step once; the seconds of the part."""
        if not self.answers:
            self._record()
        x, state = self._gradient(0), clone_state(self.state)
        answers = [answer.clone() for answer in self.answers]
        exchange = self.method.exchange(x, state, self._peer(0, self.workspace))
        clear()
        before, after = _time(lambda: next(exchange), now), 0.0
        for i, answer in enumerate(answers):
            if i < len(answers) - 1:
                before += _time(lambda answer=answer: exchange.send(answer), now)  # type: ignore[misc]
                continue
            if self.part == "decode":
                clear()
            after = _time(lambda answer=answer: exchange.send(answer), now)  # type: ignore[misc]
        self.workspace.reset()
        return {"encode": before, "decode": after, "all": before + after}[self.part]

    def _record(self) -> None:
        """Two steps of all workers: the first fills the memories, the second is kept."""
        workers = range(self.buffers.workers)
        states = [self.method.init(self._gradient(worker)) for worker in workers]
        for step in range(2):
            self.answers = []
            self.state = clone_state(states[0])
            runs: list[Exchange[Exchanged[Any]]] = [
                self.method.exchange(self._gradient(worker), states[worker], self._peer(worker, Workspace(), step))
                for worker in workers
            ]
            runs[0] = watch(runs[0], hear=self._keep)
            states = [out.state for out in simulate(runs)]

    def _keep(self, op: Collective, answer: Tensor) -> Tensor:
        self.answers.append(answer.clone())
        return answer

    def _gradient(self, worker: int) -> Tensor:
        m, l = self.shape
        x = self.buffers.x.clone() if worker == 0 else self.buffers.gradient(worker)
        return x.view(-1)[: m * l].view(m, l)

    def _peer(self, rank: int, workspace: Workspace, step: int = 1) -> Peer:
        return Peer(rank, self.buffers.workers, step=step, name="weight", lent=Lent(workspace=workspace))


def cases(plain: Method[Any], feedback: Method[Any] | None, buffers: Buffers) -> list[Case]:
    """Encode, encode with error feedback (where ``feedback`` is not None), decode and sum."""
    shape = buffers.matrix()
    out: list[Case] = [ReplayedStep(ENCODE, method=plain, buffers=buffers, shape=shape)]
    if feedback is not None:
        out.append(ReplayedStep(FEEDBACK, method=feedback, buffers=buffers, shape=shape))
    return [*out, ReplayedStep(DECODE, method=plain, buffers=buffers, shape=shape, part="decode")]


def _time(advance: Callable[[], object], now: Callable[[], float]) -> float:
    """Seconds to the exchange's next collective, or its end."""
    start = now()
    with contextlib.suppress(StopIteration):
        advance()
    return now() - start
