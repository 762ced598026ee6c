"""``hvd.DistributedOptimizer`` with GRACE's ``grace=``, for torch."""

from __future__ import annotations

import contextlib
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

import grace as grace_package
from grace.errors import ConfigurationError
from grace.horovod import shape_as_horovods
from grace_dl import network
from grace_dl.communicator import Communicator
from grace_dl.horovod import common


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    grace: Any = None,
    named_parameters: Any = None,
    compression: Any = None,
    backward_passes_per_step: int = 1,
    op: Any = None,
    **knobs: Any,
) -> Any:
    """An optimizer that steps with the means over the workers.

    Args:
        optimizer: the one to wrap.
        grace: a GRACE communicator, in second place, as GRACE had it, or by name; without one nothing is compressed. Where
            ``named_parameters`` are second, as in Horovod, that is understood.
        named_parameters: ``model.named_parameters()``.
        compression: ``hvd.Compression.none`` or ``.fp16``; not beside ``grace``.
        backward_passes_per_step: how often gradients are added up before they are exchanged.
        op: ``hvd.Average``.
        **knobs: Horovod's others, which Grace has no use for, such as ``num_groups``.

    Raises:
        ConfigurationError: an ``op`` or ``compression`` that does not exist, or parts that cannot work.
        ValueError: ``hvd.init()`` has not been called.
    """
    if grace is not None and not isinstance(grace, Communicator):  # Horovod's order
        grace, named_parameters, compression = (
            None,
            grace,
            compression if named_parameters is None else named_parameters,
        )
    common.transport()
    return make(optimizer, grace, named_parameters, compression, backward_passes_per_step, op)


def make(
    optimizer: torch.optim.Optimizer,
    grc: Communicator | None,
    named_parameters: Iterable[tuple[str, Tensor]] | None,
    compression: Any,
    backward_passes_per_step: int,
    op: Any,
    average: Any = common.Average,
) -> Any:
    """See :func:`DistributedOptimizer`; ``average`` is the name of the mean in the Horovod at hand."""
    if op is not None and op != average:
        raise ConfigurationError(
            f"op={op}: with Grace an optimizer steps with the mean (hvd.Average); for a sum multiply the learning rate by "
            "hvd.size()"
        )
    if grc is not None and compression not in (None, "none"):
        warnings.warn("compression= is ignored where grace= is given, as GRACE ignored it", stacklevel=4)
    named = None if named_parameters is None else list(named_parameters)
    if grc is not None and grc.method is None:
        return shape_as_horovods(_ProtocolOptimizer.around(optimizer, grc, named))
    policy = grace_package.Policy([("*", common.find_method(compression))]) if grc is None else grc.policy
    assert policy is not None
    made = grace_package.DistributedOptimizer(
        optimizer, policy, named, transport=network.open_transport(), backward_passes_per_step=backward_passes_per_step
    )
    if grc is not None:
        made.register_step_pre_hook(_follow(grc, policy))
    return shape_as_horovods(made)


def _follow(grc: Communicator, policy: grace_package.Policy) -> Any:
    """Makes changed knobs hold from the next step on."""
    current = policy

    def hook(optimizer: Any, *ignored: Any) -> None:
        nonlocal current
        wanted = grc.policy
        if wanted is not None and wanted != current:
            current = wanted
            optimizer.handle.switch(wanted)

    return hook


class _ProtocolOptimizer:
    """A base before an optimizer's own class, used if a part of the communicator is the user's: before each step GRACE's
    protocol runs, tensor by tensor, in the order of the parameters.
    """

    _grc: Communicator
    _named: list[tuple[str, Tensor]]
    _done: bool
    _automatic: bool

    @classmethod
    def around(cls, optimizer: Any, grc: Communicator, named: list[tuple[str, Tensor]] | None) -> Any:
        """The optimizer itself, turned into one of these."""
        every = [p for group in optimizer.param_groups for p in group["params"]]
        names = {id(p): name for name, p in named or []}
        pairs = [(names.get(id(p), f"parameter {place}"), p) for place, p in enumerate(every)]
        own = type(optimizer)
        optimizer.__class__ = types.new_class(f"Distributed{own.__name__}", (cls, own))
        optimizer._grc, optimizer._named, optimizer._done, optimizer._automatic = grc, pairs, False, True
        optimizer.register_step_pre_hook(lambda stepped, *ignored: stepped._before_step())
        return optimizer

    def _before_step(self) -> None:
        if self._automatic and not self._done:
            self.synchronize()
        self._done = False

    @torch.no_grad()
    def synchronize(self) -> None:
        """Makes all gradients means; ``step()`` does not do it again."""
        grc = self._grc
        handles = []
        for name, p in self._named:
            if p.requires_grad:
                x = torch.zeros_like(p) if p.grad is None else p.grad
                handles.append((p, grc.send_step(x, name)))
        for p, handle in handles:
            p.grad = grc.receive_step(*handle)
        self._done = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Gradients add up until ``step()``, however many passes there are."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which ``step()`` does not synchronize."""
        self._automatic = False
        try:
            yield
        finally:
            self._automatic = True
