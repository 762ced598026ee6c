"""The method of each axis of a sharded model's ranks."""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from grace.adapters.fsdp import Piece
from grace.auto.settings import Auto
from grace.contract.compressor import Compressor
from grace.contract.method import Method
from grace.errors import ConfigurationError
from grace.registry import spell
from grace.registry.adaptive import Adaptive
from grace.registry.policy import Policy, Rule

Fixed: TypeAlias = Policy | Method[Any] | str
Given: TypeAlias = Fixed | Auto | Adaptive


@dataclass(frozen=True)
class Axes:
    """The methods that :func:`grace.attach` was given for single axes; None: it was given none.

    replicate: the method between replicas. shard: that of the reduce-scatter. weights: of the all-gather of weights.
    """

    replicate: Given | None = None
    shard: Given | None = None
    weights: Compressor | Method[Any] | str | None = None

    def __bool__(self) -> bool:
        return any(part is not None for part in (self.replicate, self.shard, self.weights))

    def choose(self, method: Given | None, replicated: bool) -> tuple[Given, Given | None]:
        """The method of the slowest axis, and that of the shard axis where it is another one.

        Raises:
            ConfigurationError: two methods for one axis, none at all, or one for an axis that is not there.
        """
        if not replicated:
            if self.replicate is not None:
                raise ConfigurationError(
                    "replicate= is for a mesh of two dimensions, replicas and shards (HSDP); this model's mesh has one: use "
                    "shard=, or give the method alone"
                )
            slow, fast, name = self.shard, None, "shard"
        else:
            slow, fast, name = self.replicate, self.shard, "replicate"
        if method is not None and slow is not None:
            raise ConfigurationError(
                f"attach: a method and {name}= are both for the slowest axis of this mesh; give one"
            )
        chosen = method if slow is None else slow
        if chosen is None and not self:
            raise ConfigurationError("attach: which method? For example grace.attach(model, 'topk:ratio=0.01')")
        return "none" if chosen is None else chosen, None if fast in (None, "none") else fast


def resolve(
    policy: Policy, pieces: Collection[Piece], held: Collection[str], scatters: bool, fast: bool = False
) -> Policy:
    """The policy by the shapes of whole parameters, as rules for their names.

    Args:
        policy: as it was given.
        pieces: all parameters.
        held: names of those of which this rank has a part.
        scatters: whether methods reduce-scatter, rather than average shards.
        fast: whether a slower axis comes after this one, where errors are fed back.

    Raises:
        ConfigurationError: a rule that matches no parameter, or a parameter without a rule; a method that cannot scatter, or,
            on a fast axis, has a memory.
    """
    policy.check_names([piece.name for piece in pieces])
    rules = []
    for piece in pieces:
        if piece.name not in held:
            continue
        x = torch.empty(piece.shape, device="meta", dtype=torch.float32)
        policy.method_for(piece.name, x, 0)
        for rule in policy.rules:
            if rule.matches(piece.name, x, rule.from_step):
                assert isinstance(rule.method, Method)
                if scatters:
                    _check_scatter(rule.method, piece)
                if fast:
                    _check_fast(rule.method, piece)
                name = glob.escape(piece.name)
                rules.append(Rule(name, rule.method, from_step=rule.from_step, until_step=rule.until_step))
                if rule.timeless:
                    break
    return Policy(rules)


def names_held(shapes: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The tensors, of any shape, that are not empty: a rank may have no part of a small parameter."""
    return {name: x for name, x in shapes if x.numel()}


def _check_scatter(method: Method[Any], piece: Piece) -> None:
    if not method.has_scatter:
        raise ConfigurationError(
            f"{spell(method)} has an exchange of its own, which has no reduce-scatter: {piece.name!r} is sharded over all "
            "ranks. Use a compressor, such as topk or qsgd, or a mesh of two dimensions, which takes any method between "
            "its replicas"
        )


def _check_fast(method: Method[Any], piece: Piece) -> None:
    rows = torch.empty(1, max(piece.width, 1), dtype=torch.float32, device="cpu")
    if method.owed(method.init(rows)) is not None:
        raise ConfigurationError(
            f"shard={spell(method)} keeps a memory; errors are fed back on the slow axis only, by replicate=, since a memory "
            "of the rows of all ranks is as large as the whole model. Legal: what needs no memory, such as bf16, fp8 or "
            "qsgd:bits=8, or memory=none behind it"
        )
