"""N workers in this process: the same policy, methods and fusing as in a real job, without a network."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from grace.collectives import Traffic
from grace.contract.knobs import Count, check_value
from grace.contract.method import Method
from grace.errors import ConfigurationError, InputError, StateError
from grace.grid import Grid
from grace.registry.policy import Policy
from grace.run.options import NonFinite, Options
from grace.run.simulate import simulate
from grace.run.worker import Worker
from grace.transports.traced import Tracer


class Simulator:
    """Exchanges gradients between simulated workers, step by step.

    Args:
        method: a method, the string that makes it, or a :class:`grace.Policy`. As in ``attach``, a bare method leaves
            small and 1-D tensors uncompressed; ``grace.Policy([("*", method)])`` compresses all.
        world: number of workers, >= 1.
        seed, nonfinite, steps_per_epoch: see :class:`grace.run.options.Options`.
        grid: how the workers lie, for methods that go along an axis: sizes by name, ``{"machines": 2, "machine": 4}``. By
            default as the methods want it.

    Workers may come and go: :meth:`join`, :meth:`leave`, :meth:`lose`; and a step may take place without some of them
    (``present``). What is computed is then applied, owed, or lost with a worker: nothing else happens to it.

    Example:
        >>> sim = Simulator("topk:ratio=0.1", world=2)
        >>> means = sim.step({"fc.weight": [torch.ones(64, 64), torch.ones(64, 64)]})
        >>> sim.traffic[0].rounds
        1
    """

    def __init__(
        self,
        method: Policy | Method[Any] | str,
        world: int,
        *,
        seed: int = Options.seed,
        nonfinite: NonFinite = Options.nonfinite,
        steps_per_epoch: int | None = Options.steps_per_epoch,
        grid: Grid | Mapping[str, int] | None = None,
    ):
        check_value("Simulator", "world", world, Count)
        policy = Policy.of(method)
        self._policy, self._options = policy, Options(seed, nonfinite, steps_per_epoch)
        self._given = Grid(grid) if isinstance(grid, Mapping) else grid
        self.grid = self._lay_out(world)
        self.workers: list[Worker] = []
        self._tracers: list[Tracer] = []
        self._members: list[Worker] = []  # of the last step
        self._times: dict[int, int] = {}  # by id of a worker: the step after the last in which it took part
        self.step_count = 0
        for rank in range(world):
            self._add(rank, world)
        self._members = list(self.workers)

    @property
    def world(self) -> int:
        """Number of workers."""
        return len(self.workers)

    def _lay_out(self, world: int) -> Grid | None:
        grid = self._given
        if grid is None and (sizes := self._policy.axes(world)):
            grid = Grid(sizes)
        if grid is not None and grid.world != world:
            raise ConfigurationError(f"{grid} is of {grid.world} ranks, and world={world}")
        return grid

    def _add(self, rank: int, world: int) -> None:
        axes = self.grid.place(rank) if self.grid else {}
        self.workers.append(Worker(self._policy, rank, world, self._options, axes=axes))
        self._tracers.append(Tracer(rank, world, axes))

    def step(
        self,
        gradients: Mapping[str, Sequence[Tensor]],
        *,
        lr: float | None = None,
        present: Sequence[int] | None = None,
    ) -> dict[str, Tensor]:
        """Makes a step: a tensor per worker for each name -> the mean that every worker applies. Inputs are not changed.

        Args:
            gradients: by name.
            lr: the learning rate of this step, for memories that follow it.
            present: which workers take part, by their places in ``workers``, in ascending order: then ``gradients`` has a
                tensor for each of them, and the mean is theirs. Others keep what they owe. By default all take part.

        Raises:
            InputError: not one tensor per worker, tensors that differ in shape or dtype, or workers that there are not.
        """
        here = list(range(self.world)) if present is None else list(present)
        if not here or here != sorted({i for i in here if i in range(self.world)}):
            raise InputError(f"present={here}: legal: some of the workers 0 to {self.world - 1}, in ascending order")
        for name, xs in gradients.items():
            if len(xs) != len(here):
                raise InputError(f"{name!r} needs one tensor for each of {len(here)} workers, got {len(xs)}")
            kinds = {f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" for x in xs}
            if len(kinds) > 1:
                raise InputError(f"{name!r} differs between workers: {'; '.join(sorted(kinds))}")
        self._gather(here, {name: xs[0] for name, xs in gradients.items()})
        runs = []
        for place, i in enumerate(here):
            worker = self.workers[i]
            worker.lr = lr
            local = {name: xs[place].clone() for name, xs in gradients.items()}
            runs.append(self._tracers[i].trace(worker.exchange(local)))
        outs = simulate(runs, self.grid)
        means = {name: out.mean.clone() for name, out in outs[0].items()}
        self.step_count += 1
        for worker in self._members:
            worker.advance()
            worker.workspace.reset()
            self._times[id(worker)] = self.step_count
        return means

    # ---- other workers ----------------------------------------------------------------------------------------------
    def _gather(self, here: Sequence[int], like: Mapping[str, Tensor]) -> None:
        """Makes these workers those of the coming step."""
        members = [self.workers[i] for i in here]
        if len(members) == len(self._members) and all(map(operator.is_, members, self._members)):
            return
        self.grid = self._lay_out(len(here))
        for rank, i in enumerate(here):
            axes = self.grid.place(rank) if self.grid else {}
            self.workers[i].regroup(rank, len(here), axes)
            self._tracers[i].place(rank, len(here), axes)
        self._members = members
        source = max(members, key=lambda worker: self._times.get(id(worker), 0))
        latest = self._times.get(id(source), 0)
        shared = source.state.shared_parts()
        for worker in members:
            if self._times.get(id(worker), 0) < latest:
                worker.catch_up(self.step_count, source.seed, shared, like)
            worker.step = self.step_count

    def join(self) -> int:
        """A new worker, which owes nothing: its place, the last. It takes part from the next step on."""
        self._add(0, 1)
        return self.world - 1

    def lose(self, worker: int) -> dict[str, Tensor]:
        """Loses a worker, and what it owed with it: that, by name, in units of the mean. Later ones move up a place.

        Raises:
            InputError: there is no such worker, or it is the last one.
        """
        if worker not in range(self.world) or self.world == 1:
            raise InputError(f"worker {worker} cannot go; legal: one of 0 to {self.world - 1}, if there are others")
        gone = self.workers.pop(worker)
        del self._tracers[worker]
        self._times.pop(id(gone), None)
        self._members = []  # those of the next step are others
        return gone.debts()

    def leave(self, worker: int) -> None:
        """Lets a worker go, which hands what it owes to the others, in equal shares.

        Raises:
            What :meth:`lose` raises.
        """
        handed = self.lose(worker)
        for survivor in self.workers:
            survivor.late({name: x * (survivor.world / self.world) for name, x in handed.items()})

    def late(self, worker: int, gradients: Mapping[str, Tensor]) -> None:
        """Gradients of a step that took place without this worker, of its tensors' shapes, by name: it adds them to its next
        ones. They count as much as if it had taken part.
        """
        self.workers[worker].late(gradients)

    def debts(self) -> dict[str, Tensor]:
        """The error that all workers together owe the model, by name, in units of the mean: the sum of the gradients
        computed, less the means applied, and less what lost workers owed.
        """
        total: dict[str, Tensor] = {}
        for worker in self.workers:
            for name, x in worker.debts().items():
                total[name] = total[name] + x if name in total else x
        return total

    @property
    def traffic(self) -> list[Traffic]:
        """Per worker: rounds, bytes sent and received since the start, as the collectives moved them."""
        return [tracer.traffic for tracer in self._tracers]

    def traffic_of(self, worker: int) -> Traffic:
        """The same of one worker, by its place."""
        return self._tracers[worker].traffic

    @property
    def by_axis(self) -> list[dict[str, Traffic]]:
        """Per worker: the same along each axis of the grid; "" is what went between all workers."""
        return [tracer.by_axis for tracer in self._tracers]

    def switch(self, method: Policy | Method[Any] | str) -> None:
        """Uses another method from the next step on; what memories owe is added to the next gradient."""
        self._policy = Policy.of(method)
        for worker in self.workers:
            worker.switch(self._policy)

    def state_dict(self) -> dict[str, Any]:
        """The states of all workers, after a step in which all took part."""
        return {"workers": [worker.state_dict() for worker in self.workers]}

    def load_state_dict(self, saved: Mapping[str, Any], like: Mapping[str, Tensor]) -> None:
        """Goes on where ``saved`` stopped; ``like`` has a tensor for every name.

        Raises:
            StateError: it does not fit.
        """
        workers = saved.get("workers") if isinstance(saved, Mapping) else None
        count = len(workers) if isinstance(workers, list) else 0
        if count != self.world:
            raise StateError(f"the state is of {count} simulated workers, but there are {self.world}")
        for worker, state in zip(self.workers, saved["workers"], strict=True):
            worker.load_state_dict(state, like)
        self.step_count = max(worker.step for worker in self.workers)
        self._times = {id(worker): worker.step for worker in self.workers}
