"""What the adapters share: what ranks must agree on, and the clock."""

from __future__ import annotations

import time
from collections.abc import Mapping

from torch import Tensor

from grace import wire as wires
from grace.policy import Policy
from grace.transports.timed import Timed


def fingerprint(policy: Policy, parameters: Mapping[str, Tensor], knobs: Mapping[str, object]) -> dict[str, str]:
    """Everything that must not differ between ranks, for :func:`grace.transports.agreement.agree`."""
    wire = {"version of the wire format": str(wires.VERSION)}
    methods = {}
    for index, rule in enumerate(policy.rules):
        methods[f"rule {index + 1} of the policy"] = str(rule)
    shapes = {f"parameter {name}": f"{tuple(p.shape)} {p.dtype}" for name, p in parameters.items()}
    return {**wire, **methods, **{knob: repr(value) for knob, value in knobs.items()}, **shapes}


def now(transport: Timed) -> tuple[float, float, float]:
    """Seconds: of the clock, spent in collectives so far, and processor time of this thread outside of them."""
    return time.perf_counter(), transport.seconds, time.thread_time() - transport.cpu_seconds
