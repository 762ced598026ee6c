"""Settings that all ranks must have in common."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grace import wire
from grace.registry import spell
from grace.registry.policy import Policy
from grace.version import __version__


def fingerprint(policy: Policy, tensors: Mapping[str, Tensor], knobs: Mapping[str, object]) -> dict[str, str]:
    """Everything that must not differ between ranks, each under its name, for :func:`grace.transports.agreement.agree`.

    Versions count too: the bits of a mean depend on how torch adds up and on how Grace lays out its wires.
    """
    versions = {
        "version of Grace": __version__,
        "version of torch": str(torch.__version__),
        "version of the wire format": str(wire.VERSION),
    }
    rules = {f"rule {index + 1} of the policy": str(rule) for index, rule in enumerate(policy.rules)}
    if policy.method is not None:  # the words of whoever gave one method for all tensors
        rules = {"method": spell(policy.method)}
    shapes = {f"parameter {name}": f"{tuple(x.shape)} {x.dtype}" for name, x in tensors.items()}
    places = {f"place of parameter {name}": str(place) for place, name in enumerate(tensors)}
    return {**versions, **rules, **{knob: repr(value) for knob, value in knobs.items()}, **shapes, **places}
