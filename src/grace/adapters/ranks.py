"""What the adapters over ``torch.distributed`` share: what ranks must agree on, and a process group of one's own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from grace import wire as wires
from grace.policy import Policy
from grace.run.stats import Timed


def fingerprint(policy: Policy, parameters: Mapping[str, Tensor], knobs: Mapping[str, object]) -> dict[str, str]:
    """Everything that must not differ between ranks, for :func:`grace.transports.agreement.agree`."""
    wire = {"version of the wire format": str(wires.VERSION)}
    methods = {}
    for index, rule in enumerate(policy.rules):
        methods[f"rule {index + 1} of the policy"] = str(rule)
    shapes = {f"parameter {name}": f"{tuple(p.shape)} {p.dtype}" for name, p in parameters.items()}
    return {**wire, **methods, **{knob: repr(value) for knob, value in knobs.items()}, **shapes}


def group_like(group: Any, ranks: list[int]) -> Any:
    """A new process group over the same ranks, with the same backend and time-out."""
    everyone = len(ranks) == dist.get_world_size()
    backend = dist.get_backend(group)
    try:
        timeout = group._get_backend(torch.device("cuda" if backend == "nccl" else "cpu")).options._timeout
    except (AttributeError, RuntimeError):
        timeout = None
    return dist.new_group(
        ranks, timeout=timeout, backend=backend, use_local_synchronization=not everyone, group_desc="grace"
    )


def now(transport: Timed) -> tuple[float, float, float]:
    """Seconds: of the clock, spent in collectives so far, and processor time of this thread outside of them."""
    return time.perf_counter(), transport.seconds, time.thread_time() - transport.cpu_seconds
