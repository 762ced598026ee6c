"""Base class of the optimizers that exchange by themselves.

``step()`` drives a generator of collectives over a session's transport. The same generator, :meth:`exchanging`, is what
:func:`grace.run.simulate.simulate` runs for many optimizers in one process.

A step counts on all ranks or on none. Gradients that are inf or NaN on some rank make a mean that is not finite on every rank;
then parameters, averages and memories stay as they were.
"""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import ParamsT

from grace.adapters.buckets import fill_buckets
from grace.adapters.outer.warmup import averaging, check_dense
from grace.adapters.taken import refuse_shared, release, take
from grace.adapters.trained import is_split, name_trained, refuse_ddp, refuse_in_backward, refuse_split
from grace.collectives import Exchange
from grace.contract.method import Method
from grace.errors import ConfigurationError, GraceError, NonFiniteError, out_of_range
from grace.optim.parts import local, nonfinite
from grace.optim.saved import SavedOptimizer
from grace.registry.policy import Policy
from grace.run.options import Options
from grace.run.session import Session
from grace.run.stats import Stats
from grace.transports.base import Transport, closed_on_error
from grace.transports.choose import transport_between

_WITHOUT_DDP = "Give it model.module's parameters, of a model that is not wrapped: the optimizer exchanges by itself"
_TAKEN = (
    "is trained by a grace.optim.{}, which exchanges by itself: ranks would end with different parameters. Use one of the "
    "two, or call optimizer.close() first"
)


class CompressedOptimizer(SavedOptimizer, abc.ABC):
    """An optimizer that exchanges what its algorithm needs, compressed. All ranks make one and call its methods alike.

    Args:
        params: parameters, or groups of them, with names or without: ``model.named_parameters()``.
        defaults: of the groups' hyperparameters.
        method: for what is compressed; names are those of the parameters. None: see :meth:`_method`.
        group: the ranks that exchange; by default all. DTensors need it: the ranks that have the same shard.
        transport: between the ranks, in place of such a group: an object, or a name as for :func:`grace.transport`.
        options: ``nonfinite`` says what a step in which some rank saw an inf or NaN does: nothing ("propagate", "skip"), or
            nothing and NonFiniteError on all ranks ("error").
        knobs: what else the ranks must have in common.

    Raises:
        ConfigurationError: parameters that something else exchanges, or a group that does not suit them.
        InputError: a complex or otherwise unsuitable parameter, by name.
        FingerprintMismatch: ranks that differ in optimizer, method, hyperparameters or parameters, on every rank.

    ``stats`` counts bytes, steps and non-finite tensors; ``steps`` are those that counted.
    """

    _step_supports_amp_scaling = True  # a GradScaler calls step() on all ranks then, whatever it has found on one
    needs_whole: ClassVar[bool] = False  # whether a shard of a parameter is not enough

    def __init__(
        self,
        params: ParamsT,
        defaults: dict[str, Any],
        method: Policy | Method[Any] | str | None,
        *,
        group: dist.ProcessGroup | None,
        transport: str | Transport | None,
        options: Options,
        knobs: Mapping[str, object],
    ):
        super().__init__(params, defaults)
        for entry in self.param_groups:
            self._check_group(entry)
        named = name_trained(self)
        if self.needs_whole:
            refuse_split(named)
        refuse_ddp(named, _WITHOUT_DDP)
        refuse_in_backward(named)
        refuse_shared(named)
        self._names = {p: name for name, p in named.items()}
        self._shard_groups = _find_shard_groups(named.values())
        like = {name: _like(local(p)) for name, p in named.items()}
        over = _connect(named, group, transport)
        common = {
            "optimizer": type(self).__name__,
            "param_groups": [_hyperparameters(entry) for entry in self.param_groups],
            **knobs,
        }
        self._raises = options.nonfinite == "error"
        with closed_on_error(over):
            method = self._method(named) if method is None else method
        session = Session(like, method, over, replace(options, nonfinite="propagate"), knobs=common)
        session.worker.holds = True
        with session.telling():
            session.broadcast_(local(p) for p in named.values())
            self._buckets = fill_buckets(like, options.bucket_bytes)
            self.steps = 0
            for p in named.values():
                self.state[p].update(self._begin(p))
        self._session = session
        take(self, named.values(), _TAKEN.format(type(self).__name__))

    # ---- for optimizers ---------------------------------------------------------------------------------------------
    @abc.abstractmethod
    def _update(self, gradients: Mapping[str, Tensor | None]) -> Exchange[list[str]]:
        """Makes one step: exchanges, and if all that was received is finite, applies it.

        Args:
            gradients: of this rank, by name, of the parameters' shapes, in float32 or float64; None where there is none.

        Returns:
            The names of tensors that were not finite on some rank. Then nothing of the optimizer has changed.
        """

    def _method(self, named: Mapping[str, Tensor]) -> Policy:
        """The policy for these parameters, where no method was given."""
        raise NotImplementedError

    def _check_group(self, entry: Mapping[str, Any]) -> None:
        """Checks the hyperparameters of a group.

        Raises:
            ConfigurationError: one is out of range.
        """
        name = type(self).__name__
        if not 0 <= float(entry["lr"]) < math.inf:
            raise out_of_range(name, "lr", entry["lr"], "0 <= lr < inf")
        if not 0 <= float(entry.get("weight_decay", 0.0)) < math.inf:
            raise out_of_range(name, "weight_decay", entry["weight_decay"], "0 <= weight_decay < inf")
        for beta in entry.get("betas", ()):
            if not 0 <= beta < 1:
                raise out_of_range(name, "betas", entry["betas"], "two numbers, 0 <= beta < 1")
        if not 0 <= entry.get("eps", 0.0) < math.inf:
            raise out_of_range(name, "eps", entry["eps"], "0 <= eps < inf")

    def _replicated(self) -> Iterator[Tensor]:
        """Tensors that are the same on all ranks before a step."""
        return (local(p) for p in self._names)

    @abc.abstractmethod
    def _begin(self, p: Tensor) -> dict[str, Tensor]:
        """The state of a parameter before the first step, the same on all ranks: see :func:`zeros`."""

    def _lend(self, gradients: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """Copies of all gradients for an exchange, zeros where there is none."""
        given = {}
        for name, gradient in gradients.items():
            room = self.session.scratch_like(self.session.like[name])
            given[name] = room.zero_() if gradient is None else room.copy_(gradient)
        return given

    def _find_nonfinite(self, means: Mapping[str, Tensor]) -> list[str]:
        """Names of those means that have an inf or NaN, on all ranks alike; also where only another shard has one, which
        other ranks exchange.
        """
        bad = nonfinite(means)
        for group in self._shard_groups:
            flag = torch.tensor([len(bad)], dtype=torch.int64, device=local(next(iter(self._names))).device)
            dist.all_reduce(flag, dist.ReduceOp.MAX, group)
            if int(flag) and not bad:
                bad = ["a shard of another rank"]
        return bad

    def _average(self, gradients: Mapping[str, Tensor | None]) -> Exchange[dict[str, Tensor]]:
        """The means of all gradients that some rank has, uncompressed."""
        means: dict[str, Tensor] = {}
        for number, names in enumerate(self._buckets):
            part = yield from averaging(self.session, {name: gradients[name] for name in names}, number)
            shaped = ((name, mean) for name, mean in part.items() if mean is not None)
            means.update({name: mean.view(self.session.like[name].shape) for name, mean in shaped})
        self.session.replicas.note(means)
        return means

    # ---- a step -----------------------------------------------------------------------------------------------------
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step; all ranks call it.

        Args:
            closure: evaluates the model and computes its gradients, once; its loss, of this rank, is returned.

        Raises:
            NonFiniteError: with ``nonfinite="error"``, on all ranks; the next step may go on.
            ConfigurationError, InputError: parameters that were added or unfrozen, a sparse gradient, by name.
            TransportError: a collective failed; nothing of the optimizer has changed, and the session has ended.
        """
        loss = None
        if closure is not None:
            with self.session.telling(), torch.enable_grad():
                loss = closure()
        self.session.run(self._stepping(), counted=True)
        self.session.logs.report(self.steps)
        return loss

    def exchanging(self) -> Exchange[None]:
        """A step as a generator of collectives, for optimizers of several workers in one process: made with the transports
        of :func:`grace.transports.simulated.simulated`, run by :func:`grace.run.simulate.simulate`.
        """
        return self.session.count(self._stepping())

    @torch.no_grad()
    def _stepping(self) -> Exchange[None]:
        session, worker = self.session, self.session.worker
        gradients = self._gradients()
        session.replicas.note_parameters(self._replicated())
        seen = session.stats.nonfinite
        try:
            bad = yield from self._update(gradients)
        except BaseException:
            worker.abandon()
            raise
        if bad:
            worker.abandon()
            session.stats.nonfinite = seen + len(bad)
            if self._raises:
                where = ", ".join(map(repr, bad))
                raise NonFiniteError(f"step {self.steps}: an inf or NaN in the gradients of {where}", bad)
            return
        worker.commit()
        self.steps += 1
        if session.replicas.end_step(worker.step):
            yield from session.replicas.compare()
        worker.advance()
        session.count_step()

    def _gradients(self) -> dict[str, Tensor | None]:
        """Reads the gradients of this rank, without a GradScaler's scale."""
        self._check_parameters()
        scale, out = getattr(self, "grad_scale", None), dict[str, Tensor | None]()
        for p, name in self._names.items():
            if p.grad is None:
                out[name] = None
                continue
            gradient = local(p.grad)
            check_dense(name, gradient)
            gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
            out[name] = gradient if scale is None else gradient / scale.to(gradient.device)
        return out

    def _check_parameters(self) -> None:
        for number, entry in enumerate(self.param_groups):
            for place, p in enumerate(entry["params"]):
                if p.requires_grad and p not in self._names:
                    names = entry.get("param_names")
                    name = names[place] if names else f"group{number}.{place}"
                    raise ConfigurationError(
                        f"{name!r} of shape {tuple(p.shape)} was frozen when this optimizer was made, and nobody exchanges "
                        "it: freeze it again, or call optimizer.close() and make a new optimizer"
                    )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuses, once the optimizer is made: the ranks have agreed on what they exchange.

        Raises:
            ConfigurationError: names the parameters.
        """
        if self._session is not None:
            given = param_group.get("params", ())
            entries = [given] if isinstance(given, Tensor) else list(given)
            names = [repr(x[0]) if isinstance(x, tuple) else f"one of shape {tuple(x.shape)}" for x in entries]
            raise ConfigurationError(
                f"parameters cannot be added to a {type(self).__name__} that is at work: {', '.join(names)}. Call "
                "optimizer.close() on all ranks, and make a new optimizer of all parameters"
            )
        super().add_param_group(param_group)

    # ---- for the user -----------------------------------------------------------------------------------------------
    @property
    def stats(self) -> Stats:
        """Bytes, steps, times and non-finite tensors since the start."""
        return self.session.stats

    @property
    def synchronized(self) -> bool:
        """True if all replicas are the same, as between steps they are but for windows of local ones."""
        return True

    def sync(self) -> None:
        """Makes all replicas the same, on all ranks, for instance at the end of training. Does nothing if they are."""

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """A context in which the parameters are those that all ranks have in common, to evaluate or save them."""
        yield

    def close(self) -> None:
        """Leaves the job: no further step can be made, and another optimizer may take the parameters."""
        release(self)
        self.session.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses: a copy would exchange with nobody.

        Raises:
            GraceError: always.
        """
        raise GraceError(
            f"a {type(self).__name__} is neither copied nor pickled: save and load optimizer.state_dict() on each rank"
        )


def _like(x: Tensor) -> Tensor:
    """A tensor of this shape and device, at least float32, that takes no room."""
    return torch.empty((), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device).expand(x.shape)


def _hyperparameters(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in ("params", "param_names")}


def _find_shard_groups(parameters: Iterable[Tensor]) -> list[dist.ProcessGroup]:
    """The groups of ranks that hold shards of these parameters, each once."""
    meshes = dict.fromkeys(p.device_mesh for p in parameters if is_split(p))
    return [group for mesh in meshes for group in mesh.get_all_groups()]


def _connect(
    named: Mapping[str, Tensor], group: dist.ProcessGroup | None, transport: str | Transport | None
) -> Transport:
    """The transport between those who exchange; sees to it that they have the same parts of DTensors.

    Raises:
        ConfigurationError: they have not, or not so much can be seen.
    """
    split = next((name for name, p in named.items() if is_split(p)), None)
    if split is not None:
        if group is None:
            raise ConfigurationError(
                f"{split!r} is a DTensor: say with group= which ranks have the same shard, such as "
                'mesh["replicate"].get_group(), and shard with fully_shard(model, mesh=mesh["shard"])'
            )
        ranks, me = set(dist.get_process_group_ranks(group)), dist.get_rank()
        for name, p in named.items():
            if is_split(p) and (others := ranks.intersection(p.device_mesh.mesh.flatten().tolist()) - {me}):
                raise ConfigurationError(
                    f"{name!r} is a DTensor over ranks {sorted(others | {me})} of group=: they hold other shards, or average "
                    'among themselves already. Shard with fully_shard(model, mesh=mesh["shard"]), a mesh of one dimension, '
                    'and give group=mesh["replicate"].get_group()'
                )
    return transport_between(group, transport)
