"""A checkpoint of what is owed to a sharded model: sharded as its parameters are, so that any number of workers loads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from grace.collectives import AllGather, AllReduce, Exchange, ReduceScatter
from grace.contract.together import together
from grace.errors import StateError
from grace.registry.policy import Policy
from grace.run.checkpoint import GIVEN, Chooser, check_choice, name_methods, pack, tell_afresh, unpack
from grace.run.saved import WorkerState
from grace.run.session import Session

VERSION = 1


class ShardedCheckpoint:
    """A ``Stateful`` for ``torch.distributed.checkpoint``. All ranks save and load.

    What the workers owe the model is the mean of their memories: as long as that mean is kept, what was applied plus what is
    owed equals what was computed, whoever owes it. It is saved as a DTensor like each parameter. What replicas share of a
    shard, such as the factors of powersgd, goes on where there are as many shards. Momenta and other states of a single worker
    start afresh: the logger "grace" says so on rank 0, and :attr:`afresh` lists the methods.

    Args:
        session: of this rank.
        parameters: by name, those of which this rank has a part; DTensors.
        shards: where the session averages shards over replicas, rather than rows of whole parameters: the ranks that have the
            other shards.
        chooser: what chooses the session's methods.
    """

    def __init__(
        self,
        session: Session,
        parameters: Mapping[str, Any],
        shards: dist.ProcessGroup | None,
        chooser: Chooser = GIVEN,
    ):
        self._session, self._parameters, self._shards, self._chooser = session, parameters, shards, chooser
        self.afresh: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """The state to save, or the form of the one to load. All ranks call it."""
        worker = self._session.worker
        state = worker.state
        debts = state.debts()
        like = self._session.like
        device = next(iter(self._parameters.values())).device
        owed = {
            name: debts[name].float() if name in debts else torch.zeros(x.shape, device=device, dtype=torch.float32)
            for name, x in like.items()
        }
        means = self._session.run(together([self._mean(owed[name]) for name in like]))
        shared, methods = self._gather(state)
        about = {
            "version": VERSION, "step": worker.step, "seed": worker.seed, "workers": self._session.world,
            "shared": shared, "afresh": state.afresh(), "methods": methods, **self._chooser.save(),
        }  # fmt: skip
        return {
            "about": pack(about),
            "owed": {name: self._shard(name, mean) for name, mean in zip(like, means, strict=True)},
        }

    def _gather(self, state: WorkerState) -> tuple[list[bytes], dict[str, str]]:
        """By shard, what its replicas have in common; and of all parameters the methods. The same on all ranks."""
        if self._shards is None:
            return [], self._session.methods()
        told: list[Any] = [None] * self._shards.size()
        dist.all_gather_object(told, (pack(state.shared_parts()), self._session.methods()), group=self._shards)
        return [shared for shared, _ in told], {name: text for _, held in told for name, text in sorted(held.items())}

    def _mean(self, owed: Tensor) -> Exchange[Tensor]:
        """Averages a shard over replicas; rows ``[W, c]`` the mean over ranks of this rank's row."""
        if self._shards is not None:
            return (yield AllReduce(owed.clone(), donate=True))
        return (yield ReduceScatter(owed))

    def _shard(self, name: str, mean: Tensor) -> Any:
        """Cuts this rank's part out of a mean, without padding, as a DTensor like the parameter."""
        from torch.distributed.tensor import DTensor

        p = self._parameters[name]
        local = p.to_local()
        part = mean.reshape(-1)[: local.numel()].view(local.shape)
        part = part.clone(memory_format=torch.contiguous_format)  # of its own: async_save trips over parts of a storage
        return DTensor.from_local(part, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())

    def load_state_dict(self, saved: Any) -> None:
        """Goes on from ``saved``. All ranks call it; either all of them load, or none.

        Raises:
            StateError: it does not fit; nothing has changed then.
        """
        about, debts, problem = dict[str, Any](), dict[str, Tensor](), None
        try:
            about, debts = self._read(saved)
        except StateError as error:
            problem = error
        with self._chooser.going_on(about, False) as policy:
            self._load(about, debts, policy, problem)

    def _load(
        self, about: dict[str, Any], debts: dict[str, Tensor], policy: Policy | None, problem: StateError | None
    ) -> None:
        session, common = self._session, dict[str, object]()
        state: WorkerState | None = None
        try:
            if problem is None:
                state = session.begin_state(about["step"], about["seed"], self._find_shared(about))
                common = {"step": state.step, "seed": state.seed, **name_methods(about, policy)}
        except StateError as error:
            problem = error
        session.compare_loads(problem, common)
        assert state is not None
        if self._shards is None:
            rows = session.run(together([_gather(x, session.like[name].shape[1]) for name, x in debts.items()]))
            debts = dict(zip(debts, rows, strict=True))
        session.adopt(state, debts)
        self.afresh = tell_afresh(about, session.rank)

    def _find_shared(self, about: dict[str, Any]) -> dict[str, tuple[str, list[Any]]]:
        """The state that the replicas of this rank's shard had in common, if there were as many shards."""
        parts = about.get("shared", [])
        if self._shards is None or len(parts) != self._shards.size():
            return {}
        saved = unpack(parts[self._shards.rank()])
        for name, pair in saved.items() if isinstance(saved, dict) else [("all", None)]:
            if not (isinstance(pair, tuple) and [type(part) for part in pair] == [str, list]):
                raise StateError(f"not a checkpoint of a sharded model: the shared state of {name!r} is {pair!r}")
        return dict(saved)

    def _read(self, saved: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Reads a checkpoint: its description of itself, and the error owed to this rank's parts."""
        if not isinstance(saved, Mapping) or not {"about", "owed"} <= saved.keys():
            raise StateError("not a checkpoint of a sharded model: it lacks 'about' or 'owed'")
        about = unpack(saved["about"])
        if not isinstance(about, dict) or about.get("version") != VERSION:
            raise StateError(f"not a checkpoint of a sharded model of version {VERSION}")
        if any(type(about.get(key, [])) is not list for key in ("shared", "afresh")):
            raise StateError("not a checkpoint of a sharded model: what it says of the workers' states is no list")
        if any(type(about.get(key)) is not int or about[key] < 0 for key in ("step", "seed")):
            raise StateError("not a checkpoint of a sharded model: its step or seed is no number")
        check_choice(about)
        owed = saved["owed"]
        if not isinstance(owed, Mapping) or owed.keys() != self._parameters.keys():
            raise StateError("the checkpoint is of other parameters")
        for name, x in owed.items():
            if getattr(x, "shape", None) != self._parameters[name].shape:
                raise StateError(f"the checkpoint's debt to {name!r} does not have the shape of the parameter")
        return about, {name: x.to_local() for name, x in owed.items()}


def _gather(part: Tensor, width: int) -> Exchange[Tensor]:
    """The parts of a parameter that the ranks have -> the rows ``[W, c]`` of all."""
    row = part.new_zeros(width)
    row[: part.numel()] = part.reshape(-1)
    return (yield AllGather(row))
