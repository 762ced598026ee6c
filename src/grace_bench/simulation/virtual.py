"""Learners and their syncer in virtual time: a queue of events, a network with latency and bandwidth, deaths, stalls, returns.

The learners and the syncer are the ones of :mod:`grace.decoupled`; only clock, network and processes are made up.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from grace.decoupled.learner import Learner
from grace.decoupled.messages import FromLearner, FromSyncer, Refusal
from grace.decoupled.plan import Plan
from grace.decoupled.syncer import Syncer

_MESSAGE, _STEP = 0, 1  # at one time, what has arrived is read before the next step begins
_RETRY = 1.0  # seconds between two tries to reach a syncer
_SMALL = 64  # bytes of a message without tensors

Train = Callable[["Process"], None]


class World:
    """Virtual time, and who lives in it.

    Args:
        syncer: from the beginning.
        latency: seconds, one way. rate: bytes a second of one connection, each way; inf: all that there are.
    """

    def __init__(self, syncer: Syncer, latency: float = 0.0, rate: float = math.inf):
        self.now, self.syncer, self.latency, self.rate = 0.0, syncer, latency, rate
        self.up = True  # whether the syncer lives
        self.processes: dict[str, Process] = {}
        self._events: list[tuple[float, int, int, Callable[[], None]]] = []
        self._order, self._links = itertools.count(), itertools.count(1)
        self._connected: dict[int, Process] = {}
        self._free: dict[tuple[int, bool], float] = {}  # when the last message over a connection has arrived
        self._alarm: float | None = None

    def at(self, time: float, action: Callable[[], None], priority: int = _MESSAGE) -> None:
        """Does something at a time, not before what was asked for that time already."""
        heapq.heappush(self._events, (max(time, self.now), priority, next(self._order), action))

    def run(self, until: float) -> None:
        """Lets time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    # ---- the network ------------------------------------------------------------------------------------------------
    def connect(self, process: Process) -> None:
        """A connection from a process to the syncer, if that lives; else it tries again later."""
        if not self.up:
            self.at(self.now + _RETRY, process.still(process.connect))
            return
        process.link = next(self._links)
        self._connected[process.link] = process
        self.to_syncer(process, [process.learner.hello()])

    def cut(self, link: int) -> None:
        """A connection breaks: what is on its way is lost, and both ends notice."""
        process = self._connected.pop(link, None)
        if process is not None and process.link == link:
            process.link = None
            process.inbox.clear()
            process.learner.disconnected()
        if self.up:
            self.at(self.now + self.latency, partial(self._leave, link))

    def to_syncer(self, process: Process, messages: list[FromLearner]) -> None:
        """Sends, over the process's connection."""
        link = process.link
        if link is None:
            return
        for message in messages:
            self.at(self._arrival(link, True, message), partial(self._reach_syncer, link, message))

    def _arrival(self, link: int, up: bool, message: Any) -> float:
        tensors = getattr(message, "wires", None) or getattr(message, "tensors", None) or ()
        size = _SMALL + sum(map(len, tensors))
        begins = max(self.now, self._free.get((link, up), 0.0) - self.latency)
        self._free[link, up] = begins + size / self.rate + self.latency
        return self._free[link, up]

    def _reach_syncer(self, link: int, message: FromLearner) -> None:
        if self.up and link in self._connected:
            self._dispatch(self.syncer.receive(link, message, self.now))

    def _leave(self, link: int) -> None:
        if self.up:
            self._dispatch(self.syncer.left(link, self.now))

    def _dispatch(self, sent: list[tuple[int, FromSyncer]]) -> None:
        for link, message in sent:
            if link in self._connected:
                self.at(self._arrival(link, False, message), partial(self._reach_process, link, message))
        due = self.syncer.due(self.now)
        if due is not None and (self._alarm is None or due < self._alarm or self._alarm <= self.now):
            self._alarm = due
            self.at(due, self._ring)

    def _ring(self) -> None:
        if self.up:
            self._dispatch(self.syncer.tick(self.now))

    def _reach_process(self, link: int, message: FromSyncer) -> None:
        process = self._connected.get(link)
        if process is not None and process.link == link:
            process.inbox.append(message)
            if not process.busy:
                process.read()

    # ---- the syncer dies, and comes back ----------------------------------------------------------------------------
    def kill_syncer(self) -> None:
        """The syncer dies: all connections break."""
        self.up, self._alarm = False, None
        for link in list(self._connected):
            process = self._connected[link]
            self.cut(link)
            self.connect(process)

    def restart_syncer(self, syncer: Syncer) -> None:
        """Another one takes its place."""
        self.syncer, self.up = syncer, True


class Process:
    """A learner's process: it makes one step after the other, whatever happens.

    Args:
        world: where it lives.
        name: the learner's.
        make: makes its parameters, as each process does when it starts.
        train: makes a step of the inner optimizer, in place.
        seconds: of a step.
        plan, tokens: the learner's.
        keep_every: steps from one checkpoint to the next; 0: none.
        patience: seconds to wait for the merged parameters before the first step.
    """

    def __init__(
        self, world: World, name: str, make: Callable[[], dict[str, Tensor]], train: Train, *, seconds: float, plan: Plan,
        tokens: int = 1, keep_every: int = 0, patience: float = 0.0,
    ):  # fmt: skip
        self.world, self.name, self.seconds, self._train, self._make = world, name, seconds, train, make
        self._plan, self._tokens, self._keep_every, self._patience = plan, tokens, keep_every, patience
        self.generation = 0  # of the process
        self.alive = self.busy = False
        self.link: int | None = None
        self.inbox: list[FromSyncer] = []
        self.steps = 0  # of all generations
        self.trained = 0.0  # seconds
        self.kept: Any = None  # the checkpoint
        self.stalled = 0.0  # until when
        self.refused: Exception | None = None
        world.processes[name] = self
        self.start()

    def start(self) -> None:
        """The process begins, from its checkpoint if there is one."""
        self.generation += 1
        self.parameters = self._make()
        self.learner = self.new_learner()
        if self.kept is not None:
            self.learner.load_state_dict(self.kept)
        self.alive, self.busy = True, False
        self._going = False
        self.connect()
        self.world.at(self.world.now + self._patience, self.still(self._go), _STEP)

    def new_learner(self) -> Learner:
        """The protocol of this process."""
        return Learner(self.name, self.parameters, self._plan, tokens_per_step=self._tokens, start=self.generation)

    def connect(self) -> None:
        """Looks for the syncer."""
        self.world.connect(self)

    def kill(self) -> None:
        """The process dies at once."""
        self.alive = self.busy = False
        self.generation += 1
        if self.link is not None:
            self.world.cut(self.link)

    def stall(self, seconds: float) -> None:
        """The process stands still after its step; its connection stays."""
        self.stalled = max(self.stalled, self.world.now + seconds)

    def break_link(self) -> None:
        """The connection breaks, and the process looks for the syncer again."""
        if self.link is not None:
            self.world.cut(self.link)
            self.connect()

    def read(self) -> None:
        """Takes what has come."""
        while self.alive and self.inbox:
            message = self.inbox.pop(0)
            if isinstance(message, Refusal):
                self.learner.disconnected()
                self.refused = RuntimeError(message.reason)
                return
            self.world.to_syncer(self, self.learner.receive(message, self.seconds))
        if self.learner.synchronized:
            self._go()

    def _go(self) -> None:
        if not self._going:
            self._going = True
            self._schedule()

    def _schedule(self) -> None:
        self.world.at(self.world.now, self.still(self._begin), _STEP)

    def still(self, action: Callable[[], None]) -> Callable[[], None]:
        """The action, unless the process has died before."""
        generation = self.generation
        return lambda: action() if generation == self.generation else None

    def _begin(self) -> None:
        self.busy = True  # nothing is read
        if self.world.now < self.stalled:
            self.world.at(self.stalled, self.still(self._wake), _STEP)
        else:
            self.world.at(self.world.now + self.seconds, self.still(self._end))

    def _wake(self) -> None:
        self.busy = False
        self.read()
        self._begin()

    def _end(self) -> None:
        self._train(self)
        self.steps += 1
        self.trained += self.seconds
        self.busy = False
        self.world.to_syncer(self, self.learner.step(self.seconds))
        self.read()
        if self._keep_every and self.learner.stats.steps % self._keep_every == 0:
            self.kept = self.learner.state_dict()
        self._schedule()
