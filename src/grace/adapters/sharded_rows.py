"""Rows of gradients, of which each rank gets the sum of its own: what goes as torch would send it, and what is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.adapters.fsdp import ParameterGroup
from grace.collectives import ReduceScatter, Traffic, cost
from grace.contract.method import Method
from grace.run.groups import NONE
from grace.run.plan import ExchangePlan, plan_groups
from grace.run.scattering import Scattering, traffic_of
from grace.run.session import Session


def is_plain(session: Session, group: ParameterGroup) -> bool:
    """True if a group's gradients are to be summed up as they are, to the bit as torch does it."""
    if session.options.nonfinite != "propagate":
        return False
    policy, like, step = session.policy, session.like, session.worker.step
    names = [piece.name for piece in group.pieces if piece.name in like]
    return all(policy.method_for(name, like[name], step) == NONE for name in names)


def plan_rows(session: Session, groups: Sequence[ParameterGroup]) -> ExchangePlan:
    """The plan of a reduce-scatter of these groups, of the session's rows, in the coming step."""
    peer = session.peer()
    plain = {piece.name: group.dtype for group in groups if is_plain(session, group) for piece in group.pieces}

    def move(name: str, method: Method[Any], rows: Tensor) -> Traffic | None:
        if name in plain:
            return cost(ReduceScatter(rows.to(plain[name])), peer.rank, peer.world)
        return traffic_of(Scattering(method, rows, None, peer, session.options.nonfinite != "propagate"))

    return plan_groups(session.groups, session.like, session.worker.policy, peer, move)


def whole_rows(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rows ``[W, c]`` of any dtype, as they are exchanged."""
    return {name: x.to(torch.float32, memory_format=torch.contiguous_format) for name, x in parts.items()}


def half_of_dense(session: Session) -> int:
    """Bytes: a reduce-scatter of the gradients as they are moves half of what an all-reduce moves."""
    return sum(4 * x.numel() for x in session.like.values()) // 2
