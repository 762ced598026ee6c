"""A torch optimizer that steps with the means over ranks: ``grace.DistributedOptimizer(optimizer, "topk:ratio=0.01")``.

In the shape of Horovod's: Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow",
arXiv 1802.05799.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch import Tensor

from grace.adapters.optimizer_handle import OptimizerHandle
from grace.adapters.unused import UnusedGradient
from grace.auto.settings import Auto
from grace.contract.method import Method
from grace.errors import ConfigurationError, GraceError, out_of_range
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.options import Granularity, NonFinite, OnDifference, Options
from grace.transports.base import Transport
from grace.transports.choose import transport_for_handle

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object
Some = TypeVar("Some", bound=torch.optim.Optimizer)
KEY = "grace"  # in an optimizer's state_dict; a plain optimizer ignores it


class Distributed(_Base):
    """A base that is put before an optimizer's own class. ``step`` waits for the means in a hook, not in a method of this
    class: a scheduler made earlier calls the ``step`` that it found then.
    """

    handle: OptimizerHandle

    def synchronize(self) -> None:
        """Waits until all gradients are means; see :func:`DistributedOptimizer`."""
        self.handle.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which ``step()`` does not synchronize: ``synchronize()`` has been called before."""
        self.handle.automatic = False
        try:
            yield
        finally:
            self.handle.automatic = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From the next step on each gradient is accumulated so often before it is exchanged. All ranks call it, between
        steps, as Horovod's optimizer has it.

        Args:
            passes: >= 1.

        Raises:
            ConfigurationError: out of range.
            FingerprintMismatch: the ranks say different numbers, on all of them. They go on as before then.
            GraceError: gradients have come, and have not been exchanged.
        """
        _check_passes(passes)
        self.handle.set_passes(passes)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The optimizer's own.

        Raises:
            GraceError: gradients have come, and have not been exchanged.
        """
        self.handle.before_zero_grad()
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own, and this rank's memories under the key "grace", which a plain optimizer ignores."""
        return {**super().state_dict(), KEY: self.handle.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The optimizer's own; if it has memories, all ranks load, each its own.

        Raises:
            StateError: on all ranks, if the memories do not fit, or do not belong together.
        """
        super().load_state_dict({key: value for key, value in state_dict.items() if key != KEY})
        if KEY in state_dict:
            self.handle.load_or_begin(state_dict[KEY])

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuses: a copy would exchange with nobody.

        Raises:
            GraceError: always.
        """
        raise GraceError(
            "a distributed optimizer is neither copied nor pickled: save and load optimizer.state_dict(), or detach() its "
            "handle before"
        )


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Some,
    method: Policy | Method[Any] | Auto | Adaptive | str,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    *,
    transport: Transport | str = "auto",
    granularity: Granularity = Options.granularity,
    bucket_mb: float = Options.bucket_bytes / 2**20,
    backward_passes_per_step: int = 1,
    seed: int = Options.seed,
    nonfinite: NonFinite = Options.nonfinite,
    check: bool = Options.check,
    check_replicas_every: int = Options.check_replicas_every,
    on_difference: OnDifference = Options.on_difference,
    checksum: bool = Options.checksum,
    local_world_size: int | None = Options.local_world_size,
    scaler: torch.amp.GradScaler | None = None,
    steps_per_epoch: int | None = Options.steps_per_epoch,
    unused: UnusedGradient = "none",
) -> Some:
    """Makes this optimizer step with the means over ranks of what a compression method sends. All ranks call it alike.

    It returns the same object, now of a class derived from its own. Gradients are exchanged in buckets while the backward
    pass goes on; ``step()`` waits for them. A parameter without a gradient counts as zeros, and gets the mean as its gradient,
    so that all ranks step with the same gradients. One that has none on any rank keeps none, so that no weight decay or
    momentum moves it. Memories that follow the learning rate read that of the first group of parameters.

    The optimizer gains:

    - ``synchronize()``: waits until all gradients are means. Call it before gradients are clipped or unscaled: until
      then they raise an error when they are read. ``step()`` does not exchange again after it.
    - ``skip_synchronize()``: a context in which ``step()`` does not synchronize, as in scripts for Horovod.
    - ``set_backward_passes_per_step(passes)``: another number of them, from the next step on.
    - ``handle``: ``stats``, ``switch(method)``, ``state_dict()``, ``load_state_dict(s)``, ``checkpoint()``, ``lr``,
      ``error``, ``detach()``.
    - in ``state_dict()``, the key "grace": this rank's memories.

    ``step(closure)`` exchanges after each evaluation of the closure, and averages the loss that it returns.

    Args:
        optimizer: of dense parameters that each rank has in full; not of a DistributedDataParallel model.
        method: as for :func:`grace.attach`; ``"auto"``, too.
        named_parameters: ``model.named_parameters()``; without it policies cannot choose by name.
        transport: between the ranks, or its name; see :func:`grace.transport`.
        granularity: what is compressed as one tensor: each "parameter", each "bucket", or the "model".
        bucket_mb: how much is exchanged at once, in MiB; > 0.
        backward_passes_per_step: how often each gradient is accumulated before it is exchanged, >= 1. Their sum is exchanged:
            divide the loss for a mean. ``step()`` before the last pass exchanges what there is.
        seed: of all random streams.
        nonfinite: as for :func:`grace.attach`; NonFiniteError comes from ``synchronize()`` or ``step()``.
        check: compare all collectives between ranks before they start; slow, for debugging.
        check_replicas_every: steps from one comparison of the replicas to the next, >= 0; 0: none.
        on_difference: what replicas that differ lead to: ReplicasDifferError on all ranks ("error"), or copies of those that
            most ranks have, with a warning ("broadcast").
        checksum: whether payloads carry four bytes that are checked on receipt: for machines that flip bits.
        local_world_size: how many workers a machine has, >= 1: those of ``machine=local``, and the most that share memory; 1:
            none do. By default what GRACE_LOCAL_WORLD_SIZE says, or else the launcher.
        steps_per_epoch: steps in an epoch, for schedules that count epochs.
        scaler: the ``torch.amp.GradScaler`` that multiplies the loss. Memories are then kept in units without its scale.
        unused: the gradient of a parameter that no rank has used in a step: None ("none"), as under DistributedDataParallel;
            or what the method makes of zeros ("zeros"), as in Horovod, which weight decay and momentum then add to.

    Returns:
        The optimizer.

    Raises:
        ConfigurationError: parameters without a name, a name for two, an optimizer that is distributed already, a knob out
            of range, or a method that cannot work.
        InputError: a complex or otherwise unsuitable parameter, by name.
        FingerprintMismatch: ranks that differ in method, knobs or parameters, on every rank, within a minute.

    Example:
        >>> model = torch.nn.Linear(64, 32)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = grace.DistributedOptimizer(optimizer, "topk:ratio=0.01", model.named_parameters())  # doctest: +SKIP
    """
    if isinstance(optimizer, Distributed):
        raise ConfigurationError(
            "this optimizer is distributed already; use optimizer.handle.switch(...), or handle.detach() first"
        )
    if not (isinstance(bucket_mb, int | float) and bucket_mb > 0):
        raise out_of_range("DistributedOptimizer", "bucket_mb", bucket_mb, "a number > 0, in MiB")
    _check_passes(backward_passes_per_step)
    options = Options(
        seed,
        nonfinite,
        steps_per_epoch,
        check,
        granularity,
        int(bucket_mb * 2**20),
        check_replicas_every,
        on_difference,
        checksum,
        local_world_size,
    )
    handle = OptimizerHandle(
        optimizer, method, named_parameters, transport_for_handle(transport), options,
        backward_passes_per_step=backward_passes_per_step, scaler=scaler, unused=unused,
    )  # fmt: skip
    own = type(optimizer)
    optimizer.__class__ = type(f"Distributed{own.__name__}", (Distributed, own), {"__module__": own.__module__})
    optimizer.handle = handle  # type: ignore[attr-defined]
    return optimizer


def _check_passes(passes: object) -> None:
    if type(passes) is not int or passes < 1:
        raise out_of_range("DistributedOptimizer", "backward_passes_per_step", passes, "a whole number >= 1")
