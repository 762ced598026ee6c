"""A checkpoint for ``torch.distributed.checkpoint`` that loads on any number of workers.

What the workers owe the model is the mean of their memories: as long as that mean is kept, what was applied plus what is owed
remains what was computed, whoever owes it. So each worker of the new run owes the old mean.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from grace.collectives import AllReduce, Exchange
from grace.errors import ConfigurationError, StateError
from grace.run.exchanger import Exchanger
from grace.run.together import together

Memories: TypeAlias = Literal["mean", "all"]
VERSION = 1  # of the checkpoint
_ABOUT = {"version": int, "memories": str, "workers": int, "step": int, "seed": int, "shared": dict}


class Checkpoint:
    """A ``Stateful``: safe in ``torch.distributed.checkpoint.save``, where all ranks take part, and in ``load``.

    Args:
        exchanger: of this rank.
        memories: "mean" saves the mean of the workers' memories, once for all; it loads on any number of workers, and
            under any method. "all" saves each worker's state: as many workers go on with the same bits, others with the
            mean.
        workers: for "all" only, how many saved it, if not as many as there are now.

    With "mean", momenta and other states that are a worker's own start afresh.
    """

    def __init__(self, exchanger: Exchanger, memories: Memories = "mean", workers: int | None = None):
        if memories not in ("mean", "all"):
            raise ConfigurationError(f"memories={memories!r} is unknown; legal: 'mean', 'all'")
        if workers is not None and (memories == "mean" or not (type(workers) is int and workers >= 1)):
            raise ConfigurationError(f"workers={workers!r}: legal: a whole number >= 1, with memories='all'")
        self._exchanger, self._memories = exchanger, memories
        self._workers = exchanger.world if workers is None else workers

    # ---- saving -----------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """What is saved, or the form of what is loaded. All ranks call it."""
        exchanger = self._exchanger
        state = exchanger.worker.state
        about = {
            "version": VERSION, "memories": self._memories, "workers": exchanger.world, "step": state.step,
            "seed": state.seed, "shared": state.shared(),
        }  # fmt: skip
        out: dict[str, Any] = {"about": _pack(about)}
        if self._memories == "mean":
            out["owed"] = self._mean(state.debts())
        else:  # keys that no other rank has: those of equal name would count as copies of one
            mine = _pack(exchanger.state_dict())
            out.update({f"worker.{rank}": mine for rank in self._share()})
        return out

    def _share(self) -> list[int]:
        """Whose states this rank reads: its own, or of another number of workers every world-th."""
        return list(range(self._exchanger.rank, self._workers, self._exchanger.world))

    def _mean(self, debts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By parameter: the mean over ranks of what is owed to each group. Zeros where nothing is."""
        exchanger = self._exchanger
        means = dict(zip(debts, exchanger.run(together([_average(x) for x in debts.values()])), strict=True))
        out = {}
        for group in exchanger.groups:
            like = group.like(exchanger.like)
            mean = means.get(group.name)
            if mean is None:
                device = "cpu" if like.is_meta else like.device
                mean = torch.zeros(like.shape, dtype=torch.promote_types(like.dtype, torch.float32), device=device)
            out.update({name: part.clone() for name, part in group.split(mean).items()})
        return out

    # ---- loading ----------------------------------------------------------------------------------------------------
    def load_state_dict(self, saved: Any) -> None:
        """Goes on from there. All ranks call it; either all of them load, or none.

        Raises:
            StateError: it does not fit; nothing has changed then.
        """
        exchanger = self._exchanger
        problem, state, mine = None, None, None
        debts: dict[str, Tensor] = {}
        exact = self._memories == "all" and self._workers == exchanger.world
        try:
            about = self._about(saved)
            if exact:
                mine = self._states(saved)[exchanger.rank]
            else:
                debts = self._debts(saved)
                state = exchanger.begin_state(about["step"], about["seed"], about["shared"])
        except StateError as error:
            problem = error
        if exact and problem is None:
            exchanger.load_state_dict(mine)
            return
        exchanger.compare_loads(problem, {} if state is None else {"step": state.step, "seed": state.seed})
        assert state is not None
        if self._memories == "all":  # until here each rank has what it has read
            debts = self._mean({name: x * exchanger.world for name, x in debts.items()})
        exchanger.adopt(state, debts)

    def _about(self, saved: Any) -> dict[str, Any]:
        if not isinstance(saved, Mapping) or "about" not in saved:
            raise StateError("not a checkpoint of Grace: it lacks 'about'")
        about = _unpack(saved["about"])
        for key, kind in _ABOUT.items():
            if not isinstance(about, dict) or type(about.get(key)) is not kind:
                raise StateError(f"not a checkpoint of Grace: its {key} should be {kind.__name__}")
        if about["version"] != VERSION or about["memories"] != self._memories:
            raise StateError(
                f"the checkpoint is of version {about['version']} with memories={about['memories']!r}, this is version "
                f"{VERSION} with memories={self._memories!r}"
            )
        if self._memories == "all" and about["workers"] != self._workers:
            raise StateError(
                f"{about['workers']} workers saved this checkpoint, not {self._workers}; "
                f"load it with handle.checkpoint(memories='all', workers={about['workers']})"
            )
        if about["step"] < 0:
            raise StateError(f"not a checkpoint of Grace: its step is {about['step']}")
        for name, pair in about["shared"].items():
            if not (isinstance(pair, tuple) and [type(part) for part in pair] == [str, list]):
                raise StateError(f"not a checkpoint of Grace: the shared state of {name!r} is {pair!r}")
        return dict(about)

    def _debts(self, saved: Mapping[str, Any]) -> dict[str, Tensor]:
        """What this rank is to owe, by parameter; with "all" its share of it, by group."""
        exchanger = self._exchanger
        if self._memories == "mean":
            owed = saved.get("owed")
            if not isinstance(owed, Mapping) or owed.keys() != exchanger.like.keys():
                raise StateError("the checkpoint is of other parameters")
            for name, x in owed.items():
                if not isinstance(x, Tensor) or x.shape != exchanger.like[name].shape or not x.is_floating_point():
                    raise StateError(f"the checkpoint's debt to {name!r} does not have the shape of the parameter")
            return dict(owed)
        total: dict[str, Tensor] = {}
        for rank, one in self._states(saved).items():
            state = exchanger.read_state(one, rank, self._workers)
            for name, x in state.debts().items():
                total[name] = total[name] + x / self._workers if name in total else x / self._workers
        for group in exchanger.groups:  # the same on all ranks, also on those that have none to read
            like = group.like(exchanger.like)
            zeros = torch.zeros(like.shape, dtype=torch.promote_types(like.dtype, torch.float32))
            total.setdefault(group.name, zeros if like.is_meta else zeros.to(like.device))
        return {group.name: total[group.name] for group in exchanger.groups}

    def _states(self, saved: Mapping[str, Any]) -> dict[int, Any]:
        if missing := [rank for rank in self._share() if f"worker.{rank}" not in saved]:
            raise StateError(f"the checkpoint lacks the states of workers {missing}")
        return {rank: _unpack(saved[f"worker.{rank}"]) for rank in self._share()}


def _average(x: Tensor) -> Exchange[Tensor]:
    wide = x.to(torch.promote_types(x.dtype, torch.float32), copy=True)
    return (yield AllReduce(wide, donate=True))


def _pack(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpack(data: Any) -> Any:
    """Plain containers of tensors; nothing that a damaged or foreign file could run."""
    try:
        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:  # unpickling raises whatever it meets
        raise StateError(f"not a checkpoint of Grace: {type(error).__name__}: {error}") from error
