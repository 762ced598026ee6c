"""Momentum out of the optimizer and into the memories: ``policy = grace.momentum_in_memory(optimizer, "topk:ratio=0.01")``.

Lin et al., "Deep Gradient Compression", ICLR 2018, arXiv 1712.01887, section 3.2: what is held back should carry its momentum
along, rather than be multiplied by the optimizer's when it comes at last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grace.contract.method import Method
from grace.contract.wrapping import layers
from grace.errors import ConfigurationError, StateError
from grace.memories import ErrorFeedback, Memory, MomentumCorrection
from grace.registry import spell
from grace.registry.policy import Policy
from grace.registry.recipes import METHODS
from grace.run.groups import is_uncompressed
from grace.schedules.delayed import Delayed

BUFFER = "momentum_buffer"  # in the state of torch.optim.SGD


def momentum_in_memory(optimizer: torch.optim.Optimizer, method: Policy | Method[Any] | str) -> Policy:
    """Gives an optimizer's momentum to the memories of a method (``memory=dgc``), and sets the optimizer's to 0.

    With ``none`` the steps are those of SGD with momentum and weight decay, to rounding. Weight decay, which is not exchanged,
    keeps its momentum in the optimizer. Gradients that are clipped after the exchange are clipped with their momentum.

    ``optimizer.state_dict()`` says the momentum and weight decay that the optimizer had, so that it loads into one without
    Grace, and theirs into this one. What the memories hold is in the handle's state.

    Args:
        optimizer: ``torch.optim.SGD`` with a momentum, the same in all groups, without dampening.
        method: as for :func:`grace.attach`. The momentum's memory takes the place of error feedback; where a sparsifier has
            sent a number its velocity is forgotten (factor masking). Uncompressed tensors get a velocity, too:
            ``none:memory=dgc``. A memory ``dgc`` gets the optimizer's momentum in place of its own.

    Returns:
        The policy for ``attach``, ``DistributedOptimizer``, ``switch`` and the trainers' doors, before the first step.

    Raises:
        ConfigurationError: another optimizer, no momentum, several momenta, dampening, or a method without error feedback that
            could take it: one with a memory of its own, or none at all.

    Example:
        >>> weights = torch.nn.Linear(64, 64)
        >>> optimizer = torch.optim.SGD(weights.parameters(), lr=0.1, momentum=0.9)
        >>> policy = momentum_in_memory(optimizer, "topk:ratio=0.01")
        >>> print(spell(policy.rules[-1].method))
        topk:memory=dgc
        >>> optimizer.param_groups[0]["momentum"]
        0.0
    """
    momentum, nesterov = _read(optimizer)
    policy = Policy.of(method)
    rules = [replace(rule, method=_move(rule.method, momentum, nesterov)) for rule in policy.rules]  # type: ignore[arg-type]
    _Moved(optimizer, momentum, nesterov)
    return Policy(rules, strict=policy.strict)


def _read(optimizer: torch.optim.Optimizer) -> tuple[float, bool]:
    """Its momentum, and whether it is Nesterov's."""
    if not isinstance(optimizer, torch.optim.SGD):
        raise ConfigurationError(
            f"momentum_in_memory: {type(optimizer).__name__}; legal: torch.optim.SGD. The averages of Adam and its like are "
            "scaled by what they have averaged, and cannot move"
        )
    kinds = {(float(group["momentum"]), bool(group["nesterov"])) for group in optimizer.param_groups}
    if len(kinds) > 1:
        raise ConfigurationError(
            f"momentum_in_memory: the groups have momenta {sorted(m for m, _ in kinds)}; legal: the same in all"
        )
    ((momentum, nesterov),) = kinds
    if not momentum:
        raise ConfigurationError(
            "momentum_in_memory: the optimizer has momentum 0, or has given it away already; attach the method as it is"
        )
    if any(group["dampening"] for group in optimizer.param_groups):
        raise ConfigurationError("momentum_in_memory: dampening; legal: dampening=0, which a velocity in a memory has")
    return momentum, nesterov


def _move(method: Method[Any], momentum: float, nesterov: bool) -> Method[Any]:
    """The method with a velocity in its memory."""
    if isinstance(method, MomentumCorrection):
        return replace(method, momentum=momentum, nesterov=nesterov)
    if isinstance(method, ErrorFeedback) and method == ErrorFeedback(method.method):
        inner: Method[Any] = method.method
    elif isinstance(method, Memory | Delayed) or not _sends_all(method):
        raise ConfigurationError(
            f"momentum_in_memory: {spell(method)} has no plain error feedback (memory=residual) that could take the momentum; "
            "leave it in the optimizer, or choose such a memory"
        )
    else:
        inner = method
    masking = is_uncompressed(inner) or _is_sparsifier(inner)  # what sends all is never masked
    return MomentumCorrection(inner, momentum=momentum, nesterov=nesterov, masking=masking)


def _sends_all(method: Method[Any]) -> bool:
    return method.facts(torch.empty(64, 64, device="meta", dtype=torch.float32)).contraction == 1


def _is_sparsifier(method: Method[Any]) -> bool:
    """True if it sends some numbers, and leaves the others as they are."""
    names = (METHODS.name_of(type(layer)) for layer in layers(method))
    return any(METHODS.find(name).family == "sparsification" for name in names if name is not None)


class _Group(NamedTuple):
    """Settings that a group of parameters had."""

    momentum: float
    nesterov: bool
    weight_decay: float


class _Moved:
    """An optimizer whose momentum is elsewhere: its groups say 0, its checkpoints say what they had."""

    def __init__(self, optimizer: torch.optim.SGD | torch.optim.Optimizer, momentum: float, nesterov: bool):
        self._momentum, self._nesterov = momentum, nesterov
        self._had: list[_Group] = []
        self._take(optimizer)
        optimizer.register_step_post_hook(self._after_step)
        optimizer.register_state_dict_post_hook(self._on_save)
        optimizer.register_load_state_dict_post_hook(self._on_load)

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        self._had = [_Group(g["momentum"], g["nesterov"], g["weight_decay"]) for g in optimizer.param_groups]
        for group in optimizer.param_groups:
            group.update(momentum=0.0, nesterov=False, weight_decay=0)

    @torch.no_grad()
    def _after_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        """Adds what weight decay and an earlier momentum would have: ``b = m b + decay p;  p = p - lr b``."""
        for group, had in zip(optimizer.param_groups, self._had, strict=True):
            for p in group["params"]:
                buffer = optimizer.state[p].get(BUFFER) if p in optimizer.state else None
                if p.grad is None or not (had.weight_decay or buffer is not None):
                    continue
                decay = self._decay(p, group, had.weight_decay)
                buffer = decay.clone() if buffer is None else buffer.mul_(self._momentum).add_(decay)
                optimizer.state[p][BUFFER] = buffer
                p.sub_((decay + self._momentum * buffer if self._nesterov else buffer) * group["lr"])

    @staticmethod
    def _decay(p: Tensor, group: dict[str, Any], weight_decay: float) -> Tensor:
        """Copy of the parameter as it was before the step."""
        assert p.grad is not None
        step: Tensor = p.grad * group["lr"]
        return (p - step if group["maximize"] else p + step).mul_(weight_decay)

    def _on_save(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        for group, had in zip(state["param_groups"], self._had, strict=True):
            group.update(had._asdict())

    def _on_load(self, optimizer: torch.optim.Optimizer) -> None:
        others = {(float(g["momentum"]), bool(g["nesterov"])) for g in optimizer.param_groups}
        if others != {(self._momentum, self._nesterov)}:
            momenta = sorted(momentum for momentum, _ in others)
            for group in optimizer.param_groups:
                group.update(momentum=0.0, nesterov=False)
            raise StateError(
                f"the optimizer's checkpoint has momenta {momenta}, and the memories have {self._momentum:g}: load it before "
                "momentum_in_memory, and give that the optimizer"
            )
        self._take(optimizer)
