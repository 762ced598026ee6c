"""The bucket of varsparse, in Triton's interpreter: what states have observed, and what goes one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs the package triton")

from grace.compute import backends
from grace.contract.lent import Lent
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
from grace.contract.workspace import Workspace
from grace.flags.finite import cpu_as_accelerator
from grace.methods.varsparse import VarSparse
from grace.run.simulate import simulate
from tests.unit.kernels.triton_checks import CAUGHT, interpreter, night

__all__ = ["interpreter"]

METHOD = VarSparse(alpha=0.8, zeta=0.7, index="raw")
SIZES = (5, 1, 9)


def run(method: VarSparse, steps: int = 2, workspace: Workspace | None = None) -> list[Tensor]:
    """Means and states of a bucket of which one tensor is observed, in two parts, and another is not finite in one step."""
    made = torch.Generator().manual_seed(1)
    states: list[Any] = [method.init(torch.zeros(n)) for n in SIZES]
    told = list[Tensor]()
    for step in range(steps):
        xs = [torch.randn(n, generator=made) for n in SIZES]
        states[0] = method.observe(method.observe(states[0], 2.5 * xs[0], 2), -0.5 * xs[0], 2)
        xs[2][3] = (0.5, math.inf)[step]
        peers = [Peer(0, 1, step, str(t), lent=Lent(workspace=workspace)) for t in range(len(SIZES))]
        outs: list[Exchanged[Any]] = simulate([method.exchange_all(xs, states, peers)])[0]
        told += [out.mean.clone() for out in outs] + [torch.as_tensor(out.finite) for out in outs]
        states = [out.state for out in outs]
        told += [part.clone() for state in states for part in state[:2]]
        assert all(state.seen is None for state in states)
        if workspace is not None:
            workspace.reset()
    return told


def check(method: VarSparse = METHOD) -> None:
    want = run(method)
    with backends.using("triton"), cpu_as_accelerator():
        got = run(method, workspace=Workspace())
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def test_a_bucket_has_the_states_of_single_exchanges() -> None:
    check()


@night
def test_what_is_cut_off_may_be_dropped() -> None:
    check(VarSparse(alpha=0.8, keep_error=False, index="rice"))


@night
def test_a_bucket_that_forgets_what_was_not_finite_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.Tensor, "repeat_interleave", lambda flags, sizes, output_size: torch.ones(output_size) > 0
    )
    with pytest.raises(CAUGHT):
        check()
