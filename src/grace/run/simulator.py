"""N workers in this process: the same policy, methods and fusing as in a real job, without a network."""

from __future__ import annotations

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
        self.world = world
        options = Options(seed, nonfinite, steps_per_epoch)
        self.grid = Grid(grid) if isinstance(grid, Mapping) else grid
        if self.grid is None and (sizes := policy.axes(world)):
            self.grid = Grid(sizes)
        if self.grid is not None and self.grid.world != world:
            raise ConfigurationError(f"{self.grid} is of {self.grid.world} ranks, and world={world}")
        axes = [self.grid.place(rank) if self.grid else {} for rank in range(world)]
        self.workers = [Worker(policy, rank, world, options, axes=axes[rank]) for rank in range(world)]
        self._tracers = [Tracer(rank, world, axes[rank]) for rank in range(world)]

    def step(self, gradients: Mapping[str, Sequence[Tensor]], *, lr: float | None = None) -> dict[str, Tensor]:
        """One step: a tensor per worker for each name -> the mean that every worker applies. Inputs are not changed.
        ``lr`` is the learning rate of this step, for memories that follow it.

        Raises:
            InputError: not one tensor per worker, or tensors that differ in shape or dtype.
        """
        for name, xs in gradients.items():
            if len(xs) != self.world:
                raise InputError(f"{name!r} needs one tensor for each of {self.world} workers, got {len(xs)}")
            kinds = {f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" for x in xs}
            if len(kinds) > 1:
                raise InputError(f"{name!r} differs between workers: {'; '.join(sorted(kinds))}")
        for worker in self.workers:
            worker.lr = lr
        runs = [
            tracer.trace(worker.exchange({name: xs[worker.rank].clone() for name, xs in gradients.items()}))
            for worker, tracer in zip(self.workers, self._tracers, strict=True)
        ]
        outs = simulate(runs, self.grid)
        means = {name: out.mean.clone() for name, out in outs[0].items()}
        for worker in self.workers:
            worker.advance()
            worker.workspace.reset()
        return means

    @property
    def traffic(self) -> list[Traffic]:
        """Per worker: rounds, bytes sent and received since the start, as the collectives moved them."""
        return [tracer.traffic for tracer in self._tracers]

    @property
    def by_axis(self) -> list[dict[str, Traffic]]:
        """Per worker: the same along each axis of the grid; "" is what went between all workers."""
        return [tracer.by_axis for tracer in self._tracers]

    def switch(self, method: Policy | Method[Any] | str) -> None:
        """Uses another method from the next step on; what memories owe is added to the next gradient."""
        policy = Policy.of(method)
        for worker in self.workers:
            worker.switch(policy)

    def state_dict(self) -> dict[str, Any]:
        """The states of all workers."""
        return {"workers": [worker.state_dict() for worker in self.workers]}

    def load_state_dict(self, saved: Mapping[str, Any], like: Mapping[str, Tensor]) -> None:
        """Goes on where ``saved`` stopped; ``like`` has a tensor for every name.

        Raises:
            StateError: it does not fit.
        """
        workers = saved.get("workers") if isinstance(saved, Mapping) else None
        found = len(workers) if isinstance(workers, list) else 0
        if found != self.world:
            raise StateError(f"the state is of {found} simulated workers, but there are {self.world}")
        for worker, one in zip(self.workers, saved["workers"], strict=True):
            worker.load_state_dict(one, like)
