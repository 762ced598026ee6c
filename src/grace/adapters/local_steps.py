"""Local steps: ``local(model, optimizer, "qsparse:ratio=0.01", every=4)``, and the ranks exchange every fourth step only.

Each rank trains a replica of its own with a plain optimizer; no gradient is exchanged. At the end of a window of H steps

``delta = x_ref - x_local;  x_ref -= mean over ranks of what the method sent of delta;  x_local = x_ref``

so that the replicas are the same bits again. delta is in units of the parameters: the learning rate is in it already.
Basu et al., "Qsparse-local-SGD", NeurIPS 2019, arXiv 1906.02367; with ``warmup_steps``, post-local SGD: Lin et al.,
"Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020, arXiv 1808.07217.

The model is a plain module. DistributedDataParallel would have to be kept from exchanging by ``no_sync()`` around every
backward pass, in the user's loop; without it there is nothing to keep from.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from grace.adapters.ranks import fingerprint, now
from grace.collectives import Broadcast
from grace.errors import ConfigurationError, GraceError, StateError, out_of_range
from grace.method import Method
from grace.policy import Policy
from grace.run.drive import drive
from grace.run.stats import Stats
from grace.run.worker import Worker, checked_tensor
from grace.transports.agreement import agree
from grace.transports.base import Transport
from grace.transports.checked import Checked
from grace.transports.timed import Timed
from grace.transports.torch_distributed import TorchDistributed
from grace.transports.traced import Tracer

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


class LocalSteps:
    """Local steps at work on one model and its optimizer. Made by :func:`local`; all ranks call its methods alike."""

    _held: ClassVar[weakref.WeakSet[torch.optim.Optimizer]] = weakref.WeakSet()

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        method: Policy | Method[Any] | str,
        *,
        every: int,
        warmup_steps: int = 0,
        seed: int = 0,
        check: bool = False,
        steps_per_epoch: int | None = None,
        automatic: bool = True,
        group: dist.ProcessGroup | None = None,
    ):
        if type(every) is not int or every < 1:
            raise out_of_range("local", "every", every, "a whole number >= 1")
        if type(warmup_steps) is not int or warmup_steps < 0:
            raise out_of_range("local", "warmup_steps", warmup_steps, "a whole number >= 0")
        if optimizer in self._held:
            raise ConfigurationError("this optimizer already takes local steps; use handle.detach() first")
        self._model, self._optimizer = model, optimizer
        self._parameters = _parameters(model, optimizer)
        self.every, self.warmup_steps = every, warmup_steps
        policy = Policy.of(method)
        knobs = {"every": every, "warmup_steps": warmup_steps, "seed": seed, "check": check, "automatic": automatic}
        self._network = transport = TorchDistributed.beside(group)
        try:
            agree(fingerprint(policy, self._parameters, {**knobs, "steps_per_epoch": steps_per_epoch}), transport)
        except BaseException:
            transport.close()
            raise
        self.rank, self.world = transport.rank, transport.world
        self._transport = Timed(Checked(transport) if check else transport)
        self._worker = Worker(policy, self.rank, self.world, seed=seed, steps_per_epoch=steps_per_epoch)
        self._worker.lr = 1.0  # delta is in units of the parameters: what a memory owes of it knows no learning rate
        self._tracer = Tracer(self.rank, self.world)
        self._error: BaseException | None = None
        self._steps = self._taken = 0  # since the start; since the ranks last synchronised
        self.stats = Stats(self.world, collectives=self._transport.collectives)
        for p in model.parameters():
            self._start_alike(p, transport)
        self._reference = {
            name: p.detach().clone(memory_format=torch.contiguous_format) for name, p in self._parameters.items()
        }
        self._hook: RemovableHandle | None = None
        if automatic:
            self._hook = optimizer.register_step_post_hook(lambda *_: self.step())
        self._open = True
        self._held.add(optimizer)

    @staticmethod
    @torch.no_grad()
    def _start_alike(p: Tensor, transport: Transport) -> None:
        """Rank 0's numbers for all, as DistributedDataParallel begins; whatever the dtype, as bytes."""
        if p.numel():
            mine = p.detach().contiguous().view(-1).view(torch.uint8)
            p.copy_(transport.run(Broadcast(mine, 0)).view(p.dtype).view(p.shape))

    # ---- during training --------------------------------------------------------------------------------------------
    def step(self) -> None:
        """The optimizer has made a step. Its hook calls this, unless ``automatic=False``; then the training loop does,
        after each step, also one that a gradient scaler has skipped.
        """
        self._check_open()
        self._steps += 1
        self._taken += 1
        self.stats.steps += 1
        self.stats.dense_bytes += sum(p.numel() * p.element_size() for p in self._parameters.values())
        if self._taken >= self.every or self._steps <= self.warmup_steps:
            self.sync()

    def sync(self) -> None:
        """Ends the window now, for instance before an evaluation or at the end of training. Nothing to do between windows.

        Raises:
            TransportError: a collective failed. The model, the memories and x_ref are what they were before.
        """
        self._check_open()
        if self.synchronised:
            return
        try:
            self._synchronise()
        except BaseException as error:
            self._error = error
            self._network.close(error)  # ranks that wait for this one hear of it
            raise
        self._taken = 0

    @torch.no_grad()
    def _synchronise(self) -> None:
        _parameters(self._model, self._optimizer, known=self._parameters)
        stats, worker, start = self.stats, self._worker, now(self._transport)
        deltas = {}
        for name, p in self._parameters.items():
            buffer = worker.workspace.take(tuple(p.shape), p.dtype, p.device)
            deltas[name] = torch.sub(self._reference[name], p, out=buffer)
        outs = drive(self._tracer.trace(worker.exchange(deltas)), self._transport)
        for name, p in self._parameters.items():
            reference, out = self._reference[name], outs[name]
            moved = reference - out.mean
            if out.finite and bool(moved.isfinite().all()):
                reference.copy_(moved)
            else:  # on all ranks alike
                stats.nonfinite += 1
                self._heal(p)
            p.copy_(reference)
        worker.workspace.reset()
        worker.advance()
        stats.traffic = self._tracer.traffic
        end = now(self._transport)
        stats.exchange_seconds += end[1] - start[1]
        stats.codec_seconds += (end[0] - start[0]) - (end[1] - start[1])
        stats.cpu_seconds += end[2] - start[2]

    def _heal(self, p: Tensor) -> None:
        """Zeroes what the optimizer holds for this parameter and is not finite: kept, it would poison each window."""
        for held in self._optimizer.state.get(p, {}).values():
            if isinstance(held, Tensor) and held.is_floating_point() and not bool(held.isfinite().all()):
                held.zero_()

    # ---- for the user -----------------------------------------------------------------------------------------------
    @property
    def synchronised(self) -> bool:
        """Whether all replicas are the same: between windows, not within one."""
        return self._taken == 0

    @property
    def model(self) -> nn.Module:
        """The model, to evaluate or save, while its parameters are the same on all ranks.

        Raises:
            StateError: within a window.
        """
        if not self.synchronised:
            raise StateError(
                f"the replicas differ: this is step {self._taken} of a window of {self.every}; "
                "call handle.sync() on all ranks first"
            )
        return self._model

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on, the optimizer's state apart; also within a window, where it holds this rank's
        replica too. Each rank saves and loads its own.
        """
        local = {} if self.synchronised else {name: p.detach().clone() for name, p in self._parameters.items()}
        return {
            **self._worker.state_dict(),
            "steps": self._steps,
            "taken": self._taken,
            "reference": {name: x.clone() for name, x in self._reference.items()},
            "local": local,
        }

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on where ``saved`` stopped: it writes the model's parameters as well.

        Raises:
            StateError: it does not fit; nothing has changed then.
        """
        if missing := {"steps", "taken", "reference", "local"} - set(saved):
            raise StateError(f"not a state of local steps: it lacks {', '.join(sorted(missing))}")
        steps, taken = int(saved["steps"]), int(saved["taken"])
        if not 0 <= taken < self.every:
            raise StateError(f"the state is {taken} steps into a window; this run's have every={self.every}")
        local = saved["local"] if taken else saved["reference"]
        for what, tensors in (("x_ref", saved["reference"]), ("replica", local)):
            _check_fits(what, tensors, self._parameters)
        self._worker.load_state_dict(saved, self._reference)
        for name, p in self._parameters.items():
            self._reference[name].copy_(saved["reference"][name])
            p.copy_(local[name])
        self._steps, self._taken = steps, taken

    def detach(self) -> None:
        """The optimizer goes on alone. Within a window the replicas stay different: call :meth:`sync` before."""
        if not self._open:
            return
        self._open = False
        self._held.discard(self._optimizer)
        if self._hook is not None:
            self._hook.remove()
        self._network.close()

    def _check_open(self) -> None:
        if not self._open:
            raise GraceError("this handle is detached; call local(...) again")
        if self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        return f"<LocalSteps rank {self.rank} of {self.world}, every {self.every} steps: {self._worker.policy}>"


def local(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    method: Policy | Method[Any] | str,
    *,
    every: int,
    warmup_steps: int = 0,
    seed: int = 0,
    check: bool = False,
    steps_per_epoch: int | None = None,
    automatic: bool = True,
    group: dist.ProcessGroup | None = None,
) -> LocalSteps:
    """From now on each rank makes ``every`` steps of its own, then the ranks exchange what has changed. All call it alike.

    It starts with rank 0's parameters on all ranks. Buffers, such as the running averages of BatchNorm, and the state of
    the optimizer stay local; each rank keeps its own. All ranks must make the same number of steps.

    Args:
        model: a plain module, not wrapped.
        optimizer: what trains it; ``optimizer.step()`` ends a local step, and at the end of a window exchanges.
        method: as for :func:`grace.attach`; it is given the differences of the parameters, one tensor for each.
        every: H, local steps in a window; 1 exchanges after each.
        warmup_steps: steps at the start that are exchanged one by one (post-local SGD).
        seed: of all random streams.
        check: compare all collectives between ranks before they start; slow, for debugging.
        steps_per_epoch: synchronisations in an epoch, for schedules that count epochs.
        automatic: whether the optimizer's hook counts steps. If not, call ``handle.step()`` after each: with a gradient
            scaler, which may skip a step on one rank alone.
        group: the ranks; by default all.

    Returns:
        A handle: ``stats``, ``synchronised``, ``sync()``, ``model``, ``state_dict()``, ``load_state_dict(s)``,
        ``step()``, ``detach()``.

    Raises:
        ConfigurationError: a wrapped model, an optimizer of other parameters, a knob out of range.
        InputError: a complex or otherwise unsuitable parameter, by name.
        FingerprintMismatch: ranks that differ in method, knobs or model, on every rank, within a minute.
    """
    return LocalSteps(
        model,
        optimizer,
        method,
        every=every,
        warmup_steps=warmup_steps,
        seed=seed,
        check=check,
        steps_per_epoch=steps_per_epoch,
        automatic=automatic,
        group=group,
    )


def _parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer, known: Mapping[str, Tensor] | None = None
) -> dict[str, nn.Parameter]:
    """What the optimizer trains, by the model's names; no others than ``known``, where that is given.

    Raises:
        ConfigurationError: a wrapped model, an optimizer of parameters that are not the model's, or not known.
    """
    for module in model.modules():
        if wrapper := {base.__name__ for base in type(module).__mro__} & set(_WRAPPERS):
            raise ConfigurationError(
                f"local steps take a plain module, got {wrapper.pop()}, which exchanges or splits parameters itself; "
                "pass the module before it is wrapped, and train that"
            )
    trained = {p for one in optimizer.param_groups for p in one["params"] if p.requires_grad}
    named = {name: p for name, p in model.named_parameters() if p in trained}
    if len(named) != len(trained):
        raise ConfigurationError(
            f"the optimizer trains {len(trained) - len(named)} parameters that are not the model's; "
            "make one optimizer for one model"
        )
    if not named:
        raise ConfigurationError("the optimizer trains no parameter; make it with model.parameters()")
    if known is not None and (new := named.keys() - known.keys()):
        raise ConfigurationError(
            f"the optimizer trains {', '.join(map(repr, sorted(new)))}, which it did not when local steps began; "
            "synchronise, detach, change it, and begin again"
        )
    for name, p in named.items():
        checked_tensor(name, p)
    return named


def _check_fits(what: str, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    """Refuses saved tensors that are not like the parameters.

    Raises:
        StateError: which does not fit.
    """
    if strange := tensors.keys() ^ parameters.keys():
        raise StateError(f"the {what} that was saved has other parameters: {', '.join(sorted(strange))}")
    for name, x in tensors.items():
        p = parameters[name]
        if x.shape != p.shape or x.dtype != p.dtype:
            raise StateError(
                f"the {what} of {name!r} should be {p.dtype} {tuple(p.shape)}, got {x.dtype} {tuple(x.shape)}"
            )
