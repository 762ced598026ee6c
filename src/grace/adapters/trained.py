"""Which parameters an optimizer trains, by the names of a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from grace.errors import ConfigurationError, StateError

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


def trained_parameters(
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


def check_fits(what: str, tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Refuses saved tensors that are not like those of this run.

    Raises:
        StateError: which does not fit.
    """
    if not isinstance(tensors, Mapping):
        raise StateError(f"the {what} that was saved should be tensors by name, got {type(tensors).__name__}")
    if strange := tensors.keys() ^ like.keys():
        raise StateError(f"the {what} that was saved has other parameters: {', '.join(sorted(map(str, strange)))}")
    for name, x in tensors.items():
        p = like[name]
        if not isinstance(x, Tensor) or x.shape != p.shape or x.dtype != p.dtype:
            got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)
            raise StateError(f"the {what} of {name!r} should be {p.dtype} {tuple(p.shape)}, got {got}")
