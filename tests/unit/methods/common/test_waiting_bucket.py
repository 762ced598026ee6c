"""The bucket of varsparse, in Triton's interpreter: what states have observed, and what goes one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs the package triton")

from grace.communicators.counted_many import exchange_chosen
from grace.compute import backends
from grace.contract.lent import Lent
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
from grace.contract.workspace import Workspace
from grace.flags.finite import cpu_as_accelerator
from grace.kernels.multi_tensor import narrow_many
from grace.methods.varsparse import VarSparse
from grace.run.simulate import simulate
from tests.unit.kernels.triton_checks import CAUGHT, interpreter, night

__all__ = ["interpreter"]

METHOD = VarSparse(alpha=0.8, zeta=0.7, index="raw")
SIZES = (5, 1, 9)


def run(
    method: VarSparse, steps: int = 2, workspaces: list[Workspace] | None = None, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Means and states of a bucket on two ranks, the numbers of one of which are small. One tensor is observed, in two parts;
    the mean of another is too large for float16 in the second step, in which a third is not finite.
    """
    made, ranks = torch.Generator().manual_seed(1), range(2)
    states: list[list[Any]] = [[method.init(torch.zeros(n, dtype=dtype)) for n in SIZES] for _ in ranks]
    told = list[Tensor]()
    for step in range(steps):
        runs = []
        for rank in ranks:
            xs = [(torch.randn(n, generator=made) * (1.0, 0.0003)[rank]).to(dtype) for n in SIZES]
            first = states[rank][0]
            states[rank][0] = method.observe(method.observe(first, 2.5 * xs[0], 2), -0.5 * xs[0], 2)
            xs[1][0] = 6e4
            xs[2][3] = (0.5, math.inf)[step]
            lent = Lent(workspace=workspaces[rank] if workspaces else None)
            peers = [Peer(rank, 2, step, str(t), lent=lent) for t in range(len(SIZES))]
            runs.append(method.exchange_all(xs, states[rank], peers))
        answers: list[list[Exchanged[Any]]] = simulate(runs)
        for outs in answers:
            told += [out.mean.clone() for out in outs] + [torch.as_tensor(out.finite) for out in outs]
        states = [[out.state for out in outs] for outs in answers]
        told += [part.clone() for each in states for state in each for part in state[:2]]
        assert all(state.seen is None for each in states for state in each)
        for workspace in workspaces or ():
            workspace.reset()
    return told


def check(method: VarSparse = METHOD, dtype: torch.dtype = torch.float32) -> None:
    want = run(method, dtype=dtype)
    with backends.using("triton"), cpu_as_accelerator():
        got = run(method, workspaces=[Workspace(), Workspace()], dtype=dtype)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_bucket_has_the_states_of_single_exchanges(dtype: torch.dtype) -> None:
    check(dtype=dtype)


def test_narrow_gradients_owe_what_rounding_their_means_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()

    def look(bucket: Any, code: Any, chosen: Any, xs: Any, *more: Any) -> Any:
        sizes.append(len(xs))
        return exchange_chosen(bucket, code, chosen, xs, *more)

    monkeypatch.setattr("grace.methods.common.waiting_bucket.exchange_chosen", look)
    check(VarSparse(alpha=0.6, index="raw"), torch.float16)
    assert sizes == [len(SIZES)] * 4
    fine = [bool(flag) for flag in run(METHOD, dtype=torch.float16) if flag.dtype is torch.bool]
    assert fine == [True] * 6 + [True, False, False] * 2


@night
def test_what_rounding_loses_and_is_not_owed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.communicators.many.narrow_many", forget)
    with pytest.raises(CAUGHT):
        check(VarSparse(alpha=0.6, index="raw"), torch.float16)


def forget(flags: Tensor, rooms: Any, many: Any) -> Tensor:
    """Rounds means, and keeps nothing of what that loses."""
    finite = narrow_many(flags, rooms, many)
    for rest in many.rests:
        rest.zero_()
    return finite


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
