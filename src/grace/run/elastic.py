"""Steps of workers that may die, join, leave, or be late: a step counts on all of them, or on none."""

from __future__ import annotations

import functools
import json
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace.collectives import AllReduce, Broadcast, Exchange
from grace.contract.together import together
from grace.errors import AbsentError, FingerprintMismatch, InputError, NonFiniteError
from grace.run.checkpoint import pack, unpack
from grace.run.session import Session
from grace.transports.agreement import SECONDS
from grace.transports.base import Transport, find_axes


@dataclass(frozen=True, slots=True)
class Regrouped:
    """Workers that go on, and what is lost.

    step: the steps that count so far. rank, world: of this worker from now on. source: the rank of the worker whose model all
    have now. survivors: ranks of those who took part in that step. others: ranks of those who join, or come back behind it.
    applied: whether this worker has found out only now that its last step counts.
    lost: how many took part in it and are not here. share: how much of the debt they had, about: their part of it, if they
    owed as much as survivors do. owed: the norm of what survivors owe, in units of the mean, on average.
    """

    step: int
    rank: int
    world: int
    source: int
    survivors: tuple[int, ...]
    others: tuple[int, ...]
    applied: bool
    lost: int
    share: float
    owed: float

    def __str__(self) -> str:
        text = f"step {self.step}: {len(self.survivors)} workers go on, {len(self.others)} join"
        if not self.lost:
            return f"{text}; nothing is lost"
        about = f"about {self.share:.0%} of what was owed, a norm of {self.owed * self.lost:.3g}"
        return f"{text}; {self.lost} are lost, with what they owed: {about}"


class Elastic:
    """Steps of a session that survive their workers.

    Args:
        session: of this worker; of one that joins, over a transport of its own (:class:`grace.transports.alone.Alone`).
        seconds: how long the slowest may take in :meth:`regroup`: so long do others wait for one that dies meanwhile.

    A step is an exchange and then a vote, in which all hear that all have the means. A worker that fails in either is told by
    an error, and calls :meth:`regroup` with those who are left, over a transport between them. There they find out whether
    the step counts: it does if any of them has heard that all had the means, and then all have what they need to go on from
    it. Otherwise all undo it, and make it again. States take the room of the memories once more.

    ``wants``: whether this worker knows of a reason to regroup, such as a new worker that waits. ``wanted``: whether anyone
    has said so in the last vote; all know it after the same step.

    Example, with one worker:
        >>> from grace.transports.alone import Alone
        >>> elastic = Elastic(Session({"w": torch.empty(64, 64)}, "topk:ratio=0.1", Alone()))
        >>> means = elastic.step({"w": torch.ones(64, 64)})
        >>> print(elastic.regroup(Alone()))
        step 1: 1 workers go on, 0 join; nothing is lost
    """

    def __init__(self, session: Session, *, seconds: float = SECONDS):
        self.session, self.seconds = session, seconds
        session.worker.holds = True
        self.wants = self.wanted = False
        self._ready = False
        # Who has made the steps so far, as a number, and how many they were: halves of a split differ. It changes with the
        # first step after a change, so that a change that only some have heard of can be made again.
        self._line: list[int] = [0, session.world]
        self._next: list[Any] = []

    def step(
        self, tensors: Mapping[str, Tensor], *, lr: float | None = None, part: bool | None = None
    ) -> dict[str, Tensor]:
        """Makes a step: this worker's tensors -> the means, which are valid until the next call.

        Args:
            tensors: by name, donated; all that the session exchanges, or some.
            lr: the learning rate that means are applied with.
            part: whether this worker takes part. Either all say so, in one more round, or none does: then all take part. The
                mean is over those who do. The tensors of a worker that does not are not sent; they are added to what it owes.

        Raises:
            NonFiniteError: with ``nonfinite="error"``, on all ranks; the step does not count, and memories are as before.
            InputError: no worker takes part.
            What :meth:`grace.run.session.Session.exchange` raises: then :meth:`regroup`.
        """
        session, worker, kept = self.session, self.session.worker, None
        with session.turn():
            if part is not None:
                count = int(
                    session.run(_sum(torch.tensor([float(part)], dtype=torch.float32, device="cpu")), counted=True)
                )
                if not count:
                    raise InputError("no worker takes part in this step; at least one must")
                if part:
                    tensors = {name: x.mul_(session.world / count) for name, x in tensors.items()}
                else:
                    kept = {name: x.clone() for name, x in tensors.items()}
                    tensors = {name: x.zero_() for name, x in tensors.items()}
            means = self.exchange(tensors, lr=lr)
            if kept is not None:
                worker.late(session.grouped(kept))
            self.vote()
            return means

    def exchange(self, tensors: Mapping[str, Tensor], *, lr: float | None = None) -> dict[str, Tensor]:
        """As :meth:`step`, without the vote: for whoever finds out otherwise whether all have the means, and says so by
        :meth:`commit`. An exchange that was not committed is undone by the next one.
        """
        self.session.worker.abandon()
        self._ready = False
        try:
            means = self.session.exchange(tensors, lr=lr)
        except NonFiniteError:
            self.session.worker.abandon()
            raise
        self._ready = True
        return means

    def vote(self) -> None:
        """All that a step exchanges has been exchanged, on this worker: all hear that it has been on all, and the step counts.

        Raises:
            What :meth:`grace.run.session.Session.exchange` raises: then :meth:`regroup`.
        """
        with self.session.turn():
            self._ready = True
            self.wanted = bool(self.session.run(_most(self.wants), counted=True))
            self.commit()

    def commit(self) -> None:
        """The exchange counts: all have its means."""
        self._ready = False
        self._line, self._next = self._line_after(), []
        self.session.worker.commit()
        self.session.advance()
        self.session.count_step()

    def _line_after(self) -> list[int]:
        if not self._next:
            return self._line
        return [zlib.crc32(json.dumps([self._line, self._next]).encode()), self._next[1]]

    # ---- other workers ----------------------------------------------------------------------------------------------
    def regroup(self, transport: Transport, model: Sequence[Tensor] | Callable[[int], None] = ()) -> Regrouped:
        """Goes on among the workers of this transport, all of which call it: after an error, or between two steps.

        Those who took part in the last step that counts go on with their memories. Others, who join or have missed a step,
        owe nothing from now on: what they owed is lost.

        Args:
            transport: between those who go on.
            model: parameters, of any shapes, and what else is the same on all workers. Where a worker has not applied the last
                step, all get the numbers of one that has. Or a function that sees to this, which all call with the rank of
                that one.

        Raises:
            FingerprintMismatch: they differ in what they exchange, on all of them.
            TransportError: one of them has died since: call it again, with those who are left.
        """
        session, worker = self.session, self.session.worker
        copy = model if callable(model) else functools.partial(session.broadcast_, model)
        report: dict[str, Any] = {"step": worker.step, "rank": worker.rank, "line": self._line}
        report["after"] = self._line_after() if self._ready else None
        report["owed"] = worker.memory_norm() / worker.world
        try:
            session.reconnect(transport, self.seconds)
        except FingerprintMismatch as error:
            if isinstance(error.__cause__, AbsentError):  # it has died, and differs in nothing
                raise error.__cause__ from None
            raise
        try:  # nothing changes here before all have heard all: if it fails, they call again
            told = [json.loads(text) for text in session.all_gather_text(json.dumps(report), self.seconds)]
            top, going = _find_survivors(told)
            me, source = session.rank, next(rank for rank in going if told[rank]["step"] == top)
            others = tuple(rank for rank in range(session.world) if rank not in going)
            if others or any(told[rank]["step"] < top for rank in going):
                copy(source)
            state = unpack(session.run(_spread(worker, source, me))) if others else {}
        except BaseException as error:
            session.close(error)
            raise
        applied = me in going and worker.step < top
        if applied:
            self.commit()
        worker.abandon()
        self._ready = False
        if me in others:
            worker.take_debts()
        worker.regroup(me, session.world, find_axes(session.network))
        if me in others:
            worker.catch_up(state["step"], state["seed"], state["shared"], session.group_tensors())
        self._line, self._next = told[source]["line"], [sorted(told[rank]["rank"] for rank in going), session.world]
        before = self._line[1]
        lost = max(0, before - len(going))
        owed = sum(told[rank]["owed"] for rank in going) / len(going)
        return Regrouped(top, me, session.world, source, tuple(going), others, applied, lost, lost / before, owed)

    def hand_over(self, leaving: Collection[int]) -> None:
        """Before these ranks leave: the others take over what they owe, in equal shares. All ranks call it, between two steps.

        Raises:
            InputError: ranks that there are not, or none would stay.
        """
        session, worker = self.session, self.session.worker
        staying = session.world - len(set(leaving))
        if not all(rank in range(session.world) for rank in leaving) or not staying:
            raise InputError(f"leaving={sorted(leaving)}: legal: some of the ranks 0 to {session.world - 1}, not all")
        owed = worker.state.debts() if session.rank in leaving else {}
        shares = {}
        for name, like in session.group_tensors().items():
            wide = torch.promote_types(like.dtype, torch.float32)
            shares[name] = (
                owed[name].clone() if name in owed else torch.zeros(like.shape, dtype=wide, device=like.device)
            )
        totals = session.run(together([_sum(x) for x in shares.values()]), counted=True)
        if session.rank in leaving:
            worker.take_debts()
        else:
            worker.late({name: x / staying for name, x in zip(shares, totals, strict=True) if bool(x.any())})


def _find_survivors(told: list[dict[str, Any]]) -> tuple[int, list[int]]:
    """The last step that counts, and the ranks of those who took part in it, or have all that they need to go on from it."""
    top = max(report["step"] for report in told)
    (line, _), *_ = Counter(tuple(report["line"]) for report in told if report["step"] == top).most_common()
    last, before = (top, list(line)), top - 1
    return top, [
        rank
        for rank, report in enumerate(told)
        if (report["step"], report["line"]) == last or (report["step"] == before and report["after"] == list(line))
    ]


def _sum(x: Tensor) -> Exchange[Tensor]:
    return (yield AllReduce(x, "sum"))


def _most(flag: bool) -> Exchange[Tensor]:
    return (yield AllReduce(torch.tensor([flag], dtype=torch.uint8, device="cpu"), "max"))


def _spread(worker: Any, source: int, me: int) -> Exchange[bytes]:
    """Broadcasts the state that is the same on all workers, from one of those who have it."""
    message = b""
    if me == source:
        state = worker.state
        message = pack({"step": state.step, "seed": state.seed, "shared": state.shared_parts()})
    size = yield Broadcast(torch.tensor([len(message)], dtype=torch.int64, device="cpu"), source)
    room = (
        torch.frombuffer(bytearray(message), dtype=torch.uint8)
        if message
        else torch.empty(int(size), dtype=torch.uint8, device="cpu")
    )
    return bytes((yield Broadcast(room, source)).numpy().tobytes())
