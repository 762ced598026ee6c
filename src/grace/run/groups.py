"""Groups of parameters that are exchanged as one tensor: each parameter (layer-wise), each bucket, or the whole model.

The groups are fixed at the start, so that states have lasting names, whatever a toolkit does with its buckets.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grace.contract.method import Method
from grace.contract.workspace import Workspace
from grace.errors import CompositionError, ConfigurationError, InputError
from grace.memories import Memory
from grace.registry import method as make_method
from grace.registry import spell
from grace.registry.policy import Policy
from grace.run.options import DEFAULTS, Options
from grace.schedules import Delayed, Scheduled

NONE = make_method("none")


def is_uncompressed(method: Method[Any]) -> bool:
    """True if this is ``none``, with or without a memory around it.

    Example:
        >>> is_uncompressed(make_method("none:memory=dgc,momentum=0.8"))
        True
    """
    while isinstance(method, Memory | Delayed | Scheduled):
        method = method.at(0, 1) if isinstance(method, Scheduled) else method.method
    return method == NONE


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that are exchanged as one flat tensor; one alone keeps its shape."""

    name: str
    members: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> list[int]:
        """Elements of each member."""
        return [math.prod(shape) for shape in self.shapes]

    def like(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """A tensor like the group's."""
        first = parameters[self.members[0]]
        return first.detach() if len(self.members) == 1 else first.new_empty(sum(self.sizes))

    def join(self, parts: Mapping[str, Tensor], workspace: Workspace) -> Tensor:
        """The group's tensor, ``[n]``, joined from its members' parts: the part itself, if there is only one."""
        if len(self.members) == 1:
            return parts[self.members[0]]
        like = parts[self.members[0]]
        flat = workspace.take(sum(self.sizes), like.dtype, like.device)
        return torch.cat([parts[name].reshape(-1) for name in self.members], out=flat)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """The group's tensor, ``[n]``, split into its members' parts."""
        if len(self.members) == 1:
            return {self.members[0]: flat}
        parts = torch.split(flat, self.sizes)
        return {name: part.view(shape) for name, part, shape in zip(self.members, parts, self.shapes, strict=True)}


def form_groups(
    parameters: Mapping[str, Tensor],
    policy: Policy,
    options: Options = DEFAULTS,
) -> tuple[list[Group], Policy]:
    """The groups of these parameters, in their order, and the policy for them.

    The policy given is for parameters. A group holds parameters of one method, dtype and device; what goes
    uncompressed stays alone. The policy returned is for groups.

    Raises:
        ConfigurationError: rules that follow the step where groups must stay as they are.
        CompositionError: a method that needs a matrix, in groups that are flat.
    """
    granularity = options.granularity
    if granularity == "parameter":
        return [Group(name, (name,), (tuple(p.shape),)) for name, p in parameters.items()], policy
    if not policy.timeless:
        raise ConfigurationError(
            f"granularity={granularity!r} cannot follow rules with steps; use granularity='parameter'"
        )
    open_: dict[tuple[Any, ...], list[str]] = {}
    filled: dict[tuple[Any, ...], int] = {}
    members: list[tuple[list[str], Method[Any]]] = []
    for name, p in reversed(list(parameters.items())):  # roughly the order in which gradients become ready
        method = policy.method_for(name, p, 0)
        if is_uncompressed(method):
            members.append(([name], method))
            continue
        if method.needs_shape:
            raise CompositionError(f"{spell(method)} needs the shape of {name!r}; use granularity='parameter'")
        key = (method, p.dtype, p.device)
        if key not in open_ or (granularity == "bucket" and filled[key] >= options.bucket_bytes):
            open_[key], filled[key] = [], 0
            members.append((open_[key], method))
        open_[key].append(name)
        filled[key] += p.numel() * p.element_size()
    groups, rules = [], []
    for index, (names, method) in enumerate(members):
        label = names[0] if is_uncompressed(method) else f"{granularity}.{index}"
        groups.append(Group(label, tuple(names), tuple(tuple(parameters[name].shape) for name in names)))
        rules.append((glob.escape(label), method))
    return groups, Policy(rules)


def whole_groups(names: Collection[str], group_of: Mapping[str, Group]) -> list[Group]:
    """The groups of these names, in the order of their first members.

    Raises:
        InputError: a group of which only some members are among them.
    """
    groups = {group_of[name].name: group_of[name] for name in names}
    for group in groups.values():
        if absent := [name for name in group.members if name not in names]:
            raise InputError(
                f"{', '.join(map(repr, absent))} did not come, but is compressed as one tensor with the others of "
                f"{group.name!r}: {', '.join(map(repr, group.members))}. Give all of them, or use granularity='parameter'"
            )
    return list(groups.values())


def regroup(owed: Mapping[str, Tensor], old: Sequence[Group], new: Sequence[Group]) -> dict[str, Tensor]:
    """The errors owed to old groups, ``[n]`` each, for the new ones: memories outlive a change of the groups."""
    parts: dict[str, Tensor] = {}
    for group in old:
        if group.name in owed:
            parts.update(group.split(owed[group.name]))
    out = {}
    for group in new:
        members = [parts.get(name) for name in group.members]
        if all(part is None for part in members):
            continue
        like = next(part for part in members if part is not None)
        flat = [
            like.new_zeros(size) if part is None else part.reshape(-1)
            for part, size in zip(members, group.sizes, strict=True)
        ]
        out[group.name] = torch.cat(flat) if len(flat) > 1 else flat[0].view(group.shapes[0])
    return out
