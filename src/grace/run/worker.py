"""A worker's side of a run over any network: the method of each tensor, its state, and what it still owes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.collectives import Exchange
from grace.contract.lent import Lent
from grace.contract.method import Exchanged, Method, plain_rows
from grace.contract.peer import Peer
from grace.contract.together import Layouts
from grace.contract.workspace import Workspace
from grace.errors import ConfigurationError, GraceError, out_of_range
from grace.flags.capturing import capturing
from grace.flags.finite import all_on_host, on_host
from grace.memories.turns import part
from grace.registry.policy import Policy
from grace.run.batches import Batches, plans_wanted
from grace.run.captures import Captures, check_capture, check_rules
from grace.run.debts import Debts
from grace.run.distortion import measure_distortion
from grace.run.findings import Findings
from grace.run.groups import is_uncompressed
from grace.run.inputs import check_tensor
from grace.run.members import carry, catch_up
from grace.run.options import DEFAULTS, Options
from grace.run.parked import INSTALMENTS, Parked, memory_of
from grace.run.saved import WorkerState
from grace.run.scattering import Scattering, scatter_all
from grace.run.unapplied import Unapplied, tensors_of
from grace.run.watch import DebtWatch


class Worker:
    """The exchanges of one worker, step by step. All ranks must call it in the same order.

    Args:
        policy: which method for which tensor.
        rank, world: this worker, and how many there are.
        options: ``seed``, ``nonfinite`` and ``steps_per_epoch`` of them.
        axes: where it stands along each axis of a grid; see :class:`grace.Peer`.

    ``lr`` is the learning rate of the coming step, for memories that follow it; set it before each step.
    ``plans``: whether tensors of one method are exchanged as one batch (``GRACE_PLANS``): the same bits in less time.
    ``measures``: whether tensors of the coming step are compressed a second time, to see what is lost: |x - C(x)| / |x| by
    tensor is then in ``distortions``, and the time that took in ``aside_seconds``.
    ``holds``: whether what exchanges make of the states counts only after :meth:`commit`, so that all since the last one can
    be undone by :meth:`abandon`; this takes the room of the memories once more.
    ``undoes``: whether whoever has the means says by :meth:`settle` what became of them, so that exchanges that nobody applied
    can be undone; this takes the room of the memories once more, too, together with ``holds`` twice more at most.
    """

    def __init__(
        self,
        policy: Policy,
        rank: int,
        world: int,
        options: Options = DEFAULTS,
        *,
        axes: Mapping[str, tuple[int, int]] | None = None,
    ):
        self.policy, self.rank, self.world = policy, rank, world
        self.seed, self.nonfinite, self.steps_per_epoch = options.seed, options.nonfinite, options.steps_per_epoch
        self.axes = dict(axes or {})
        self._check_epochs(policy)
        self.lr: float | None = None
        self.step = 0
        self.workspace = Workspace()
        self._lent = Lent(workspace=self.workspace)  # the same for all tensors and steps
        self._layouts = Layouts()
        self._states: dict[str, tuple[Method[Any], Any]] = {}
        self._owed = Debts()
        self._choices: tuple[Policy, ...] = ()
        self._home = policy  # what the worker comes back to after a trial
        self._homes: dict[str, Method[Any]] = {}  # and the method of each tensor there
        self._parked = Parked()
        self._settling: set[str] = set()  # tensors whose parked debts their next method takes over
        self.plans = plans_wanted()
        self.measures = False
        self.distortions: dict[str, float] = {}
        self.aside_seconds = 0.0
        self._findings = Findings(options.nonfinite)
        self._captures = Captures()
        # from outside: another stream's, perhaps, and freed only when that has waited for a step
        self._given: list[Any] = []
        self._used: list[Any] = []
        self.watch = DebtWatch()
        self.holds = self.undoes = False
        self.on_replay: Callable[[bool], object] = lambda applied: (
            None
        )  # hears of each, and of what is said of its means
        self._before: tuple[dict[str, tuple[Method[Any], Any]], Debts, Unapplied] | None = None
        self._unapplied = Unapplied()
        self._ask: Callable[[], object] = lambda: None
        self.unsure = False  # whether means count as applied of which nobody can tell

    def exchange(
        self, tensors: Mapping[str, Tensor], flags: Tensor | None = None
    ) -> Exchange[dict[str, Exchanged[Any]]]:
        """Averages these tensors, of any shape, over the workers in as few collectives as possible. They are donated; the
        means, of the same shapes, may live in the worker's workspace, so copy them before the next exchange. With them travel
        ``flags``, ``[n]`` uint8, each of which becomes 1 if it is 1 on any worker.

        Raises:
            NonFiniteError: under ``nonfinite="error"``.
            PayloadError: the network brought something illegal. On an accelerator both errors may belong to the step before.
        """
        batches = Batches(self.plans, self.peer(""))
        for batch in self._begin(tensors):
            batches.add(*batch)
        if flags is not None:
            batches.ride(flags)
        return (yield from self._finish(tensors, batches.exchange(self._layouts, self.workspace)))

    def scatter(self, rows: Mapping[str, Tensor]) -> Exchange[dict[str, Exchanged[Any]]]:
        """As :meth:`exchange`, of rows ``[W, c]``, of which each worker gets the mean ``[c]`` of its own: see
        :meth:`grace.Method.scatter_all`.
        """
        if self.measures or self._owed.left:  # these look at the numbers, and change them
            rows = {name: plain_rows(x) for name, x in rows.items()}
        checks = self.nonfinite != "propagate"
        ready = [
            Scattering(method, x, state, self.peer(name), checks or name in self._owed)
            for method, x, state, name in self._begin(rows)
        ]
        return (yield from self._finish(rows, scatter_all(ready, self._layouts, self.workspace, plans=self.plans)))

    def _begin(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Method[Any], Tensor, Any, str]]:
        """Each tensor, with what is owed to it, its method, that one's state, and its name."""
        captured = capturing()
        if captured:
            check_rules(self.policy, self.step)
        else:
            self._read_pending()
        if self.holds and self._before is None:
            if self._choices:
                raise ConfigurationError(
                    "a session that changes between choices parks memories, and a step that may be undone cannot: use "
                    "switch(...) between steps instead of offer(...) and use(...)"
                )
            self._before = dict(self._states), self._owed.copy(), self._unapplied.copy()
            self.workspace.holds = True
        undoes = self.undoes and not captured
        watch = self.watch if all_on_host(tensors.values()) else None
        owed, ready = self._owed, self._ready
        for name, x in tensors.items():
            method, state = ready(name, x)
            if captured:
                check_capture(name, method, x, self.peer(name), name in owed or self.holds or self.measures)
            if undoes and self._unapplied.note(name, self._states[name], owed) == 2:
                part(name, self.workspace)
            if self._before is not None and self._before[0].get(name) is not self._states[name]:
                part(name, self.workspace)
            if owed.left:
                owed.join(name, x)
            if watch is not None and watch.wants(name) and (debt := method.owed(state)) is not None:
                watch.see(name, debt, x)
            if self.measures and not is_uncompressed(method):
                self._measure(method, x, state, name)
            yield method, x, state, name

    def _finish(
        self, tensors: Mapping[str, Tensor], exchange: Exchange[list[Exchanged[Any]]]
    ) -> Exchange[dict[str, Exchanged[Any]]]:
        """Runs it, and keeps the states that come of it."""
        try:
            if all_on_host(tensors.values()):
                outs = yield from exchange
            else:
                self._captures.device = next(x.device for x in tensors.values() if not on_host(x.device))
                outs = yield from self._findings.pending.refusals.watch(exchange)
        except BaseException:
            self.workspace.forget()  # states are as they were
            raise
        results = dict(zip(tensors, outs, strict=True))
        if capturing():
            keep = self._captures.keep_old_state
            results = {name: keep(name, self._states[name][1], out, self.undoes) for name, out in results.items()}
            self.workspace.forget()  # the old state stays in use
        for name, out in results.items():
            self._states[name] = (self._states[name][0], out.state)
        self._findings.act(self.step, results, self._owed)
        return results

    def _measure(self, method: Method[Any], x: Tensor, state: Any, name: str) -> None:
        start = time.perf_counter()
        lost = measure_distortion(method, x, state, self.peer(name))
        self.distortions.update({} if lost is None else {name: lost})
        self.aside_seconds += time.perf_counter() - start

    def peer(self, name: str) -> Peer:
        """Identity of this worker in the exchange of this tensor, in the coming step."""
        return Peer(
            self.rank,
            self.world,
            self._captures.step(self.step) if capturing() else self.step,
            name,
            self.seed,
            self.lr,
            self.steps_per_epoch,
            self._lent,
            self.axes,
        )

    def _check_epochs(self, policy: Policy) -> None:
        """Refuses a policy that counts epochs if ``steps_per_epoch`` is not given."""
        for rule in policy.rules:
            assert isinstance(rule.method, Method)
            if rule.method.needs_epochs and self.steps_per_epoch is None:
                raise ConfigurationError(f"{rule} counts epochs; say how long one is: steps_per_epoch=...")

    def _ready(self, name: str, x: Tensor) -> tuple[Method[Any], Any]:
        """The method of a tensor in this step, and its state. What an earlier method owes is not lost."""
        method = self.policy.method_for(name, x, self.step)
        held = self._states.get(name)
        if held is None or held[0] is not method:
            if held is None or held[0] != method:
                check_tensor(name, x)
                self._unapplied.apply(name)
                if held is not None:
                    self._leave(name, *held)
                parked = self._parked.take(name, method)
                held = (method, method.init(x) if parked is None else parked[0])
            held = self._states[name] = (method, held[1])
        if self._choices and self.policy is self._home:
            self._homes[name] = method
        if name in self._settling:
            self._settling.remove(name)
            self._take_over(name, *held)
        return held

    def owes_nothing(self, like: Mapping[str, Tensor]) -> bool:
        """True if these tensors may be summed up without this worker: their methods, which compress nothing, have taken over
        from others, and nothing is owed to them. ``like``: by name, tensors of their shapes, on the meta device too.
        """
        for name, x in like.items():
            self._ready(name, x)
        return not any(name in self._owed for name in like)

    def _leave(self, name: str, method: Method[Any], state: Any) -> None:
        """A tensor gets another method: between choices this one may come back, else what it owes is owed now."""
        if self._choices:
            self._parked.put(name, method, state)
        else:
            self._owed.add(name, method.owed(state))

    def _take_over(self, name: str, method: Method[Any], state: Any) -> None:
        """Moves the suspended errors of other methods into this one's memory; where it has none, into the next gradients."""
        self._unapplied.apply(name)
        for other, left in self._parked.take_all(name):
            debt = other.owed(left)
            if debt is None:
                continue
            memory = memory_of(method, state)
            if memory is not None and memory.shape == debt.shape:
                memory.add_(debt)
            else:
                self._owed.add(name, debt)
                self._owed.instalments[name] = INSTALMENTS

    @property
    def unapplied(self) -> bool:
        """True if there are means of which :meth:`settle` has not heard yet what became of them."""
        return bool(self._unapplied)

    @property
    def nonfinite_seen(self) -> int:
        """Tensors and steps in which some rank saw an inf or NaN; on an accelerator without those of the last two steps."""
        return self._findings.seen

    def _read_pending(self) -> None:
        """Acts on what an accelerator found in the steps before this one."""
        self._findings.read(self._owed)

    def _wait_for_pending(self) -> None:
        """Waits for what an accelerator has found so far."""
        self._findings.wait(self._owed)

    def advance(self) -> None:
        """The step has ended; or, if it was captured, the capture has: :meth:`replayed` ends each step then."""
        if capturing():
            self._captures.end(self._findings.pending, self.workspace, self._layouts)
            self.workspace, self._layouts = Workspace(), Layouts()
            self.workspace.holds = self.undoes
            self._lent = Lent(workspace=self.workspace)
            return
        self.watch.end_step()
        self.step += 1
        self._captures.tell_step(self.step)
        self._findings.pending.send()
        self._used, self._given = self._given, []

    def replayed(self, applied: bool = True) -> None:
        """A graph that holds the captured step has been submitted: a step has ended.

        Args:
            applied: False: nobody applies its means, so that states are what they were before.

        Raises:
            GraceError: no step was captured, the states have moved since, or a worker that keeps nothing to be undone. What
                :meth:`exchange` raises about steps before.
        """
        if not applied and not self.undoes:
            raise GraceError(
                "replayed(applied=False): this handle keeps nothing that could be undone; legal: a handle of "
                "grace.attach(...) or DistributedOptimizer"
            )
        self._read_pending()
        states = {name: state for name, (_, state) in self._states.items()}
        self._captures.replay(self._findings.pending, self.step, states)
        if not applied:
            self._captures.undo()
        self.on_replay(applied)
        self.step += 1
        self._captures.tell_step(self.step)
        self._findings.pending.send()

    def memory_norm(self) -> float:
        """The norm of what this worker owes the model: the square root of its sum of squares over all tensors."""
        held = [*self._states.values(), *((method, state) for _, method, state in self._parked.all())]
        debts = [owed for method, state in held if (owed := method.owed(state)) is not None]
        squares = [torch.linalg.vector_norm(x, dtype=torch.float64) for x in (*debts, *self._owed.left.values())]
        return float(torch.linalg.vector_norm(torch.stack([x.cpu() for x in squares]))) if squares else 0.0

    # ---- checkpoints ------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, as plain containers of tensors. Each rank has its own."""
        return self.state.save(self.rank, self.world, self._home)

    @property
    def state(self) -> WorkerState:
        """The state that the next step depends on; a view, not a copy. No trial is kept: the tensors are at their last
        :meth:`use` that stays, and the suspended errors of other methods are owed in instalments.
        """
        self._ask()
        self._wait_for_pending()
        if not self._parked:
            return WorkerState(self.step, self.seed, self._states, self._owed.left, self._owed.instalments)
        states, owed = dict(self._states), self._owed.copy()
        others: list[tuple[str, Method[Any], Any]] = []
        for name, method, state in self._parked.all():
            if self._homes.get(name) == method:
                others.append((name, *self._states[name]))
                states[name] = (method, state)
            else:
                others.append((name, method, state))
        for name, method, state in others:
            if (debt := method.owed(state)) is not None:
                owed.add(name, debt)
                owed.instalments[name] = INSTALMENTS
        return WorkerState(self.step, self.seed, states, owed.left, owed.instalments)

    def read_state(self, saved: Any, like: Mapping[str, Tensor]) -> WorkerState:
        """The state that ``saved`` holds; nothing changes. ``like`` has a tensor for every name that may occur.

        Raises:
            StateError: it is damaged, or of another version, rank, policy or number of workers, or of other tensors.
        """
        return WorkerState.read(saved, self.rank, self.world, self.policy, like)

    def adopt(self, state: WorkerState) -> None:
        """Goes on from there."""
        self._given.append(state)
        self.step, self.seed, self._states = state.step, state.seed, state.states
        self._owed = Debts(state.owed, state.instalments)
        self._parked, self._settling = Parked(), set()
        self._findings.forget()
        self._unapplied.clear()

    def load_state_dict(self, saved: Any, like: Mapping[str, Tensor]) -> None:
        """Goes on where ``saved`` stopped; see :meth:`read_state`. If it raises, nothing has changed."""
        self.adopt(self.read_state(saved, like))

    def switch(self, policy: Policy) -> None:
        """Uses another policy from the next exchange on. What memories owe is added to the next gradient."""
        self._check_epochs(policy)
        self.policy, self.watch = policy, DebtWatch()
        self._home, self._choices, self._settling = policy, (), self._parked.names()

    @property
    def home(self) -> Policy:
        """The policy that is used, or that the worker comes back to after a trial."""
        return self._home

    def offer(self, choices: Sequence[Policy]) -> None:
        """From now on :meth:`use` changes between these; the worker goes on as it does until then.

        Raises:
            ConfigurationError: none, or a policy whose rules follow the step: its memories would be parked by themselves.
        """
        if not choices:
            raise ConfigurationError("offer: there is nothing to choose from")
        for policy in choices:
            self._check_epochs(policy)
            if not policy.timeless:
                raise ConfigurationError(f"offer: {policy} follows the step; choices hold at every step")
        self._choices = tuple(choices)

    def use(self, number: int, *, trial: bool = False) -> None:
        """Uses one of the choices from the next exchange on. Memories are parked; unless it is a trial, those that others have
        parked are handed over: see :mod:`grace.run.parked`.

        Raises:
            ConfigurationError: there is no such choice.
        """
        if not 0 <= number < len(self._choices):
            raise out_of_range("use", "number", number, f"0 to {len(self._choices) - 1}, as offered")
        self.policy = self._choices[number]
        if not trial:
            self._home, self.watch = self.policy, DebtWatch()
            self._settling = set(self._states)

    def take_debts(self) -> dict[str, Tensor]:
        """Ends all methods and returns what they owe, by name; they start afresh."""
        self._ask()
        self._wait_for_pending()
        held = ((name, *pair) for name, pair in self._states.items())
        for name, method, state in (*held, *self._parked.all()):
            self._owed.add(name, method.owed(state))
        owed, self._owed, self._states = self._owed.left, Debts(), {}
        self._parked, self._settling = Parked(), set()
        self._unapplied.clear()
        return owed

    # ---- exchanges that are undone ----------------------------------------------------------------------------------
    def keep_unapplied(self, ask: Callable[[], object] = lambda: None) -> None:
        """From now on :meth:`settle` is called before each step, and by ``ask()``, before states are read between steps."""
        self.undoes = self.workspace.holds = True
        self._ask = ask

    def settle(self, dropped: Collection[str] = (), waiting: Collection[str] = ()) -> int:
        """Says before the next exchange what became of the means so far, if the worker ``undoes``. All ranks say the same.

        Args:
            dropped: tensors whose means nobody has applied, nor will: their states are as before.
            waiting: those whose means are still to be applied. All others' were.

        Returns:
            How many exchanges were undone, in part or whole.
        """
        if not self._unapplied:
            return 0
        undone, back = 0, [name for name in dropped if name in self._unapplied]
        if back:
            if self._unapplied.paid(back):
                self._wait_for_pending()
            undone = self._unapplied.drop(back, self._states, self._owed)
            self.watch.forget_step(back)
        self._unapplied.keep(waiting)
        self._release(back)
        return undone

    def _release(self, back: Collection[str] = ()) -> None:
        """Frees what states had before, but not what may still be put back, or was."""
        kept = [x for name in back for x in tensors_of(self._states[name][1])]
        if self._before is not None:
            kept += [x for _, state in self._before[0].values() for x in tensors_of(state)]
        self.workspace.release([*kept, *self._unapplied.tensors()])

    def commit(self) -> None:
        """Make what was exchanged count."""
        self._before, self.workspace.holds = None, self.undoes
        self.workspace.reset()
        if self.undoes:
            self._release()

    def abandon(self) -> None:
        """States are as they were at the last :meth:`commit`."""
        if self._before is not None:
            self._states, self._owed, self._unapplied = self._before
            self._findings.forget()
            self.workspace.forget()
            self.commit()

    # ---- other workers ----------------------------------------------------------------------------------------------
    def regroup(self, rank: int, world: int, axes: Mapping[str, tuple[int, int]] | None = None) -> None:
        """From now on this worker is ``rank`` of ``world`` workers, others than before; see :mod:`grace.run.members`."""
        self._wait_for_pending()
        self.adopt(carry(self.state, world / self.world))
        self.rank, self.world, self.axes = rank, world, dict(axes or {})
        self.workspace.kept.clear()

    def catch_up(
        self, step: int, seed: int, shared: Mapping[str, tuple[str, list[Any]]], like: Mapping[str, Tensor]
    ) -> None:
        """Goes on at ``step`` with those who were not away, and with what they share; see
        :func:`grace.run.members.catch_up`.
        """
        self._wait_for_pending()
        self.adopt(catch_up(self.state, step, seed, shared, self.policy, like))

    def late(self, tensors: Mapping[str, Tensor]) -> None:
        """Gradients of a step that took place without this worker, of its tensors' shapes: they are added to its next ones."""
        for name, x in tensors.items():
            self._owed.add(name, x, torch.promote_types(x.dtype, torch.float32))

    def debts(self) -> dict[str, Tensor]:
        """Residuals owed to the model, by tensor, in units of the mean: its memory, divided by its number of workers."""
        return {name: x / self.world for name, x in self.state.debts().items()}

    def add_debts(self, owed: Mapping[str, Tensor]) -> None:
        """Adds what :meth:`take_debts` gave, each of the shape of its gradient, to the next gradients of these names."""
        self._given.append(owed)
        for name, x in owed.items():
            self._owed.add(name, x)
