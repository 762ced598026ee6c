"""Support for ``auto`` on sharded models, and the cases in which it cannot choose for one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from grace.adapters.axes import Fixed, Given
from grace.adapters.choosing import read_choice
from grace.adapters.fsdp import ParameterGroup, Piece
from grace.auto.settings import Auto, wanted
from grace.auto.site import Site
from grace.errors import ConfigurationError
from grace.predict.ways import ToOwners
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy
from grace.run.options import Options
from grace.transports.base import Transport


def read_sharded_choice(
    given: Given, fast: Given | None
) -> tuple[Auto | Adaptive | None, Fixed, Fixed | None, dict[str, object]]:
    """As :func:`grace.adapters.choosing.read_choice`, of the method of the slowest axis, and with that of the other one.

    Raises:
        ConfigurationError: a choice on the fast axis.
    """
    if isinstance(fast, Adaptive):
        raise ConfigurationError(
            "shard=adaptive beside replicate=: bits follow what is lost on one axis, the slow one; name a method, such as "
            "shard='qsgd:bits=8'"
        )
    if isinstance(fast, Auto) or wanted(fast) is not None:
        raise ConfigurationError(
            "shard='auto' beside replicate=: auto chooses for the slowest axis of the mesh, by what whole steps show. Let it: "
            "replicate='auto', with shard='bf16' or none; on a mesh of one dimension shard='auto' is legal"
        )
    auto, fixed, knobs = read_choice(given)
    return auto, fixed, fast, knobs


def site_of_rows(groups: Sequence[ParameterGroup], resolve: Callable[[Policy], Policy], options: Options) -> Site:
    """The site where each rank gets the mean of its rows. A group of parameters is a bucket, its gradients unsharded until it
    is exchanged: none waits for another.
    """
    dtypes = {group.dtype for group in groups}
    way = ToOwners(options.nonfinite == "propagate", dtypes.pop() if len(dtypes) == 1 else torch.float32)
    return Site(
        {piece.name: piece.shape for group in groups for piece in group.pieces}, way, holds=False, resolve=resolve,
        names=_names(groups), device=groups[0].device,
    )  # fmt: skip


def site_between_replicas(
    groups: Sequence[ParameterGroup], resolve: Callable[[Policy], Policy], beside: Transport
) -> Site:
    """The site where shards are averaged between replicas. ``beside``: the ranks that have the other shards, which average
    them at the same time, over the same machines' links.
    """
    pieces = [piece for group in groups for piece in group.pieces]
    return Site(
        {piece.name: piece.shape for piece in pieces}, holds=False, resolve=resolve, names=_names(groups),
        device=groups[0].device, parts={piece.name: _part(piece) for piece in pieces}, beside=beside,
    )  # fmt: skip


def _names(groups: Sequence[ParameterGroup]) -> tuple[tuple[str, ...], ...]:
    """Readiness of each bucket, as a backward pass comes to them."""
    return tuple(tuple(piece.name for piece in group.pieces) for group in reversed(groups))


def _part(piece: Piece) -> tuple[int, ...]:
    """The shape of a shard of this parameter, the largest of all ranks."""
    others = math.prod(piece.shape[1:])
    return (piece.width // others, *piece.shape[1:]) if others and piece.width % others == 0 else (piece.width,)
