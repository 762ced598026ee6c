"""Trained parameters that no ``fully_shard`` has, of a model that it was applied to: each rank would train its own."""

from __future__ import annotations

import warnings
from collections.abc import Collection

from torch import Tensor, nn

from grace.adapters.fsdp import groups_of, plain_name
from grace.adapters.trained import is_split
from grace.adapters.unexchanged import list_names
from grace.errors import ConfigurationError, UnexchangedWarning, stack_level

REMEDY = (
    "Call fully_shard on a new module before it becomes a part of the model, make the optimizer after that, and attach again. "
    "What is left out on purpose, name to both: fully_shard(..., ignored_params=), grace.attach(..., ignored_params=)"
)


def check_sharded(model: nn.Module, ignored: Collection[Tensor]) -> list[str]:
    """Looks for parameters that nobody shards.

    Args:
        model: some of its modules are under ``fully_shard``.
        ignored: parameters, of any shapes, that are left out on purpose.

    Returns:
        The names of those that nobody shards, as ``named_parameters`` gives them.

    Raises:
        ConfigurationError: some are of modules that are under no ``fully_shard``; names them.

    Warns:
        UnexchangedWarning: some are of modules that are, and came later, or were ignored there and not in ``ignored``.
    """
    wrapped = {name for name, module in model.named_modules() if hasattr(module, "_get_fsdp_state")}
    infos = [
        p._module_info
        for name in wrapped
        for inside in groups_of(model.get_submodule(name))
        for p in inside.fsdp_params
    ]
    managed = {(id(info.module), info.param_name) for info in infos}
    for info in infos:
        managed |= {(id(m), name) for m, name in zip(info.shared_modules, info.shared_param_names, strict=True)}
    apart = {id(p) for p in ignored}
    purpose: list[str] = []
    outside: list[str] = []
    later: list[str] = []
    for place, module in model.named_modules():
        for own, p in module.named_parameters(recurse=False):
            if (id(module), own) in managed or is_split(p):
                continue
            name = f"{place}.{own}" if place else own
            if id(p) in apart:
                purpose.append(name)
            elif p.requires_grad:
                parts = place.split(".")
                under = any(".".join(parts[:n]) in wrapped for n in range(len(parts) + 1))
                (later if under else outside).append(name)
    if outside:
        raise ConfigurationError(
            f"no fully_shard has {list_names(map(plain_name, outside))}: each rank would train its own. Call "
            "fully_shard(model) on the root, too, before the optimizer is made. What is left out on purpose, name: "
            "grace.attach(..., ignored_params=[...])"
        )
    if later:
        warnings.warn(
            f"no fully_shard has {list_names(map(plain_name, later))}, which came after it or were among its ignored_params: "
            f"each rank trains its own. {REMEDY}",
            UnexchangedWarning,
            stacklevel=stack_level(),
        )
    return [*purpose, *later]
