"""Law 1, agreement: all ranks have the same mean, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from grace.contract.method import Exchanged, Method
from grace.verify.outcome import Held, Profile
from grace.verify.running import run, same_bits
from grace.verify.subject import Subject
from grace.verify.trials import check_each


def agreement(method: Method[Any], xs: Sequence[Tensor], steps: int = 2) -> list[Exchanged[Any]]:
    """``mean`` is bit-identical on all ranks, and of the dtype and shape of the input. Returns what the last step gave."""
    states, outs = [method.init(x) for x in xs], list[Exchanged[Any]]()
    for step in range(steps):
        outs = run(method, xs, states, step=step)
        states = [out.state for out in outs]
        for rank, (x, out) in enumerate(zip(xs, outs, strict=True)):
            assert out.mean.dtype == x.dtype, f"agreement: mean is {out.mean.dtype}, the gradient {x.dtype}"
            assert out.mean.shape == x.shape, f"agreement: mean is {out.mean.shape}, the gradient {x.shape}"
            assert out.finite == outs[0].finite, f"agreement: finite differs between rank 0 and {rank}"
            assert same_bits(out.mean, outs[0].mean), f"agreement: mean of rank {rank} differs from that of rank 0"
    return outs


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    return check_each(agreement, subject, profile)
