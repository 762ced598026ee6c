"""True if an optimizer suits a method, which declares what it needs: see :class:`grace.contract.needs.Needs`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace.contract.method import Method
from grace.contract.needs import Needs
from grace.errors import OptimizerWarning, stack_level
from grace.registry import spell
from grace.registry.policy import Policy
from grace.run.groups import is_uncompressed

_ADAPTIVE = {"betas", "eps", "etas"}  # of optimizers whose steps do not grow with the gradient


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an optimizer that matter here. None: it has no such setting.

    momentum: of SGD and its like; Adam's moving averages do not count.
    beta1: of Adam and its like: the weight of the past in the average of gradients.
    lr: of an optimizer that steps by lr times the gradient; the peak, where a schedule tells it. Adam does not.
    """

    momentum: float | None = None
    lr: float | None = None
    beta1: float | None = None


def read_settings(optimizer: torch.optim.Optimizer) -> Settings:
    """The largest of all groups of parameters."""
    momenta, lrs, averages = [], [], []
    for group in optimizer.param_groups:
        momenta += [float(group["momentum"])] if "momentum" in group else []
        if _ADAPTIVE.isdisjoint(group):
            lrs += [float(group[key]) for key in ("lr", "initial_lr") if key in group]
        averages += [float(group["betas"][0])] if group.get("betas") else []
    return Settings(max(momenta, default=None), max(lrs, default=None), max(averages, default=None))


def needs_of(policy: Policy, tensors: Mapping[str, Tensor]) -> list[tuple[Method[Any], Needs]]:
    """The methods that some tensors like these get at some step and that need something, and what each needs."""
    used = (method for name, x in tensors.items() for method in policy.methods_for(name, x))
    return [(method, method.needs) for method in dict.fromkeys(used) if method.needs]


def find_faults(needs: Needs, settings: Settings) -> list[str]:
    """The settings that do not meet the needs, each as a request with the present value: "momentum 0 (it is 0.9)"."""
    faults = []
    if not needs.momentum and settings.momentum:
        faults.append(f"momentum 0 (it is {settings.momentum:g})")
    if not needs.averages and settings.beta1 is not None:
        faults.append(
            f"SGD without momentum (this one averages gradients, with beta1 {settings.beta1:g}, and scales them)"
        )
    if settings.lr is not None and settings.lr > needs.max_lr:
        faults.append(
            f"a learning rate of at most {needs.max_lr:g} (it is {settings.lr:g}); "
            f"{needs.lr_scale:g} times one that suits SGD without compression is a start"
        )
    return faults


def check_optimizer(
    policy: Policy, tensors: Mapping[str, Tensor], settings: Settings | None, give: str = "optimizer=optimizer"
) -> None:
    """Warns of every method in use that would diverge, or nearly so, with such an optimizer. Call it on rank 0.

    Args:
        policy: which method for which tensor.
        tensors: those that are exchanged, by name.
        settings: those of the optimizer, from :func:`read_settings` or by hand; None: unknown, which is a reason to warn, too.
        give: what a user adds to make them known.

    Example:
        >>> settings = read_settings(torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9))
        >>> find_faults(grace.method("dgc").needs, settings)
        ['momentum 0 (it is 0.9)']
    """
    told: set[str] = set()
    for method, needs in sorted(needs_of(policy, tensors), key=lambda pair: is_uncompressed(pair[0])):
        if settings is None:
            text = f"{needs}, because {needs.why}; give {give} and it is checked"
        elif faults := find_faults(needs, settings):
            text = f"{'; '.join(faults)}. The reason: {needs.why}"
        else:
            continue
        if not (is_uncompressed(method) and text in told):  # one warning for a method and the small tensors beside it
            warnings.warn(f"{spell(method)} needs of the optimizer: {text}", OptimizerWarning, stacklevel=stack_level())
        told.add(text)
