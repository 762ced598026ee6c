"""A hierarchy from a ``DeviceMesh``: full precision along its inner dimension, a method along its outer one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from grace.communicators.hierarchical import Hierarchical
from grace.contract.method import Method
from grace.errors import ConfigurationError
from grace.registry.policy import Policy
from grace.run.groups import is_uncompressed


def between_machines(method: Policy | Method[Any] | str, mesh: Any, model: DistributedDataParallel) -> Policy:
    """The policy whose methods go between the machines of a mesh only, as ``machine=`` makes them.

    Args:
        method: a method, the string that makes it, or a policy.
        mesh: of two dimensions, machines and the ranks of a machine, over the ranks of the model.
        model: whose gradients are exchanged.

    Raises:
        ConfigurationError: another mesh, or a method with a ``machine=`` of its own.
    """
    ranks = getattr(mesh, "mesh", None)
    if ranks is None or ranks.ndim != 2:
        given = "a mesh of one dimension" if ranks is not None else repr(mesh)
        raise ConfigurationError(
            f"mesh={given}; legal: a DeviceMesh of two dimensions, machines and the ranks of a machine, such as "
            'init_device_mesh("cuda", (4, 8), mesh_dim_names=("machines", "machine"))'
        )
    own, mesh_ranks = dist.get_process_group_ranks(model.process_group), ranks.flatten().tolist()
    if mesh_ranks != own:
        raise ConfigurationError(
            f"the mesh is of the ranks {mesh_ranks}, the model of {own}; legal: the same, those of a machine "
            "one after the other"
        )
    policy, machine = Policy.of(method), int(ranks.shape[1])
    if any(isinstance(rule.method, Hierarchical) for rule in policy.rules):
        raise ConfigurationError("mesh= and machine= both say which ranks are of one machine; give one of them")
    rules = []
    for rule in policy.rules:
        assert isinstance(rule.method, Method)
        whole = is_uncompressed(rule.method)
        rules.append(rule if whole else replace(rule, method=Hierarchical(rule.method, machine)))
    return Policy(rules, strict=policy.strict)
