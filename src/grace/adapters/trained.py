"""Parameters that an optimizer trains, by the names of a model, and what it holds for them."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grace.adapters.taken import refuse_shared
from grace.adapters.wrappers import find_exchanging
from grace.errors import ConfigurationError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_WITHOUT_DDP = (
    "Write grace.attach(model, ...) and keep the plain optimizer, or leave out DistributedDataParallel: "
    "grace.DistributedOptimizer(optimizer, ..., model.module.named_parameters()) without it"
)


def find_trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, known: Mapping[str, Tensor] | None = None
) -> dict[str, nn.Parameter]:
    """The parameters that the optimizer trains, of any shapes, by the model's names; only those in ``known``, if it is given.

    Raises:
        ConfigurationError: a wrapped model, an optimizer of parameters that are not the model's, or not known.
    """
    for module in model.modules():
        if (wrapper := find_exchanging(module)) not in (None, "FSDPModule"):
            raise ConfigurationError(
                f"an outer loop takes a plain module, or one under fully_shard, got {wrapper}, which exchanges or splits "
                "parameters itself; pass the module before it is wrapped, and train that"
            )
    _check_kind(optimizer)
    trained = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    named = {name: p for name, p in model.named_parameters() if p in trained}
    if len(named) != len(trained):
        raise ConfigurationError(
            f"the optimizer trains {len(trained) - len(named)} parameters that are not the model's; "
            "make one optimizer for one model"
        )
    if not named:
        raise ConfigurationError("the optimizer trains no parameter; make it with model.parameters()")
    if known is None:
        refuse_shared(named)
    if known is not None and (new := named.keys() - known.keys()):
        raise ConfigurationError(
            f"the optimizer trains {', '.join(map(repr, sorted(new)))}, which it did not when the loop began; "
            "synchronize, detach, change it, and begin again"
        )
    return named


def _check_kind(optimizer: object) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigurationError(f"optimizer={optimizer!r:.60}; legal: a torch.optim.Optimizer")


def name_trained(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None = None
) -> dict[str, Tensor]:
    """The parameters that the optimizer trains, of any shapes, by the names given, in their order.

    Args:
        optimizer: only its parameters that require a gradient count.
        named_parameters: such as ``model.named_parameters()``, or more than the optimizer trains; by default the names
            that the optimizer was made with, or ``group0.0``, ``group0.1`` and so on.

    Raises:
        ConfigurationError: parameters without a name, a name for two, or nothing to train.
    """
    _check_kind(optimizer)
    trained = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    named: dict[str, Tensor] = {}
    for item in _name_by_place(optimizer) if named_parameters is None else named_parameters:
        if not (
            isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], Tensor)
        ):
            raise ConfigurationError(
                f"named_parameters has {item!r:.60}; legal: pairs of a name and a tensor: model.named_parameters()"
            )
        name, p = item
        if named.setdefault(name, p) is not p:
            raise ConfigurationError(
                f"named_parameters has two parameters with the name {name!r}; of several models, put one's name in front: "
                "[(f'encoder.{name}', p) for name, p in encoder.named_parameters()]"
            )
    names = {p: name for name, p in reversed(list(named.items()))}  # the first of two names for one parameter
    if nameless := [f"{tuple(p.shape)}" for p in trained if p not in names]:
        raise ConfigurationError(
            f"the optimizer trains {len(nameless)} parameters that named_parameters does not have, of shapes "
            f"{', '.join(sorted(nameless)[:5])}; give model.named_parameters() of all models that it trains"
        )
    if not trained:
        raise ConfigurationError("the optimizer trains no parameter; make it with model.parameters()")
    return {name: p for p, name in reversed(names.items()) if p in trained}


def refuse_split(named: Mapping[str, Tensor]) -> None:
    """Refuses DTensors among these parameters, of any shapes.

    Raises:
        ConfigurationError: there is one; names it.
    """
    for name, p in named.items():
        if is_split(p):
            raise ConfigurationError(
                f"{name!r} is a DTensor, whose gradients its own wrapper exchanges; legal: parameters of which each "
                "rank has the whole"
            )


def _name_by_place(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or [f"group{number}.{place}" for place in range(len(group["params"]))]
        yield from zip(names, group["params"], strict=True)


def refuse_ddp(named: Mapping[str, Tensor], remedy: str = _WITHOUT_DDP) -> None:
    """Refuses parameters that a ``DistributedDataParallel`` model exchanges, too: two exchanges would race on one gradient.

    Args:
        named: the parameters, of any shape, by name.
        remedy: what to do, in words.

    Raises:
        ConfigurationError: such a model is alive; names a parameter of it.
    """
    for last in (False, True):
        shared = next(iter(find_in_ddp(named)), None)
        if shared is None:
            return
        if not last:
            gc.collect()  # a model that was dropped may wait for this
    raise ConfigurationError(
        f"{shared!r} belongs to a DistributedDataParallel model, which exchanges its gradient, too: ranks would end with "
        f"different parameters. {remedy}"
    )


def find_in_ddp(named: Mapping[str, Tensor]) -> list[str]:
    """The names of those parameters, of any shapes, that some live ``DistributedDataParallel`` model exchanges. torch keeps no
    list of such models.

    Objects refer to their class. All objects that there are must not be listed: among them are tuples that other threads are
    just making, and Python raises a SystemError where such a tuple is referred to when it is finished.
    """
    names = {p: name for name, p in named.items()}
    classes, exchanged = [DistributedDataParallel], []
    for kind in classes:
        classes += kind.__subclasses__()
    for thing in gc.get_referrers(*classes):
        if not issubclass(type(thing), DistributedDataParallel) or not hasattr(thing, "parameters_to_ignore"):
            continue
        for name, p in thing.module.named_parameters():
            if p in names and name not in thing.parameters_to_ignore:
                exchanged.append(names[p])
    return exchanged


@torch.no_grad()
def part_of(p: Tensor) -> Tensor:
    """The part of a parameter that this rank has, of its own shape: all of it, or the local tensor of a DTensor. It shares
    its memory.
    """
    return p.to_local() if is_split(p) else p


def is_split(p: Tensor) -> TypeGuard[DTensor]:
    """Tells a DTensor, which its own wrapper takes care of, from other parameters, of any shape."""
    return type(p).__name__ == "DTensor" or type(p.data).__name__ == "DTensor"


def refuse_in_backward(named: Mapping[str, Tensor]) -> None:
    """Refuses parameters, of any shapes, that torch's ``_apply_optimizer_in_backward`` has given optimizers of their own:
    these step as soon as a gradient has come, before it is exchanged.

    Raises:
        ConfigurationError: there are some; names one.
    """
    for name, p in named.items():
        if getattr(p, "_in_backward_optimizers", None):
            kind = type(p._in_backward_optimizers[0]).__name__  # type: ignore[attr-defined]
            raise ConfigurationError(
                f"_apply_optimizer_in_backward has given {name!r} a {kind} that steps within backward(), before gradients are "
                "means. Leave it out: make one optimizer of all parameters, and call its step() after backward()"
            )


@torch.no_grad()
def list_replicated(parameters: Iterable[Tensor], optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Tensors that are the same on all ranks once gradients are means: parameters of any shape, their gradients (zeros like
    the parameter for one that is absent), and the optimizer's state of them.
    """
    replicated: list[Tensor] = []
    for p in parameters:
        held = optimizer.state.get(p, {})
        states = [x for _, x in sorted(held.items()) if isinstance(x, Tensor)]
        replicated += [p, torch.zeros_like(p) if p.grad is None else p.grad]
        replicated += [x for x in states if x.is_floating_point() and x.device == p.device]
    return replicated


def zero_nonfinite_state(optimizer: torch.optim.Optimizer, p: Tensor) -> None:
    """Zeroes the non-finite numbers held for this parameter, of any shape: they would spoil later steps."""
    for held in optimizer.state.get(p, {}).values():
        if isinstance(held, Tensor) and held.is_floating_point():
            part = part_of(held)
            if not bool(part.isfinite().all()):
                part.zero_()
