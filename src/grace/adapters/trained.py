"""Which parameters an optimizer trains, by the names of a model, and what it holds for them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from grace.errors import ConfigurationError

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


def find_trained(
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
    return named


def zero_nonfinite_state(optimizer: torch.optim.Optimizer, p: Tensor) -> None:
    """Zeroes what the optimizer holds for this parameter and is not finite: kept, it would spoil every later step."""
    for held in optimizer.state.get(p, {}).values():
        if isinstance(held, Tensor) and held.is_floating_point() and not bool(held.isfinite().all()):
            held.zero_()
