"""Server memories of a bucket on an accelerator, by few launches: bytes, means and memories as on the CPU, one tensor after
the other.

Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs the package triton")

from grace.communicators.server_debts import ServerDebts
from grace.communicators.two_hops import ServerDebt
from grace.compute import backends
from grace.contract.lent import Lent
from grace.contract.workspace import Workspace
from grace.flags.capturing import pretend_capturing
from grace.flags.finite import cpu_as_accelerator
from grace.registry.policy import Policy
from tests.laws.bucket_runs import SOME, Shapes, assert_same
from tests.laws.test_many import count_launches
from tests.unit.kernels.triton_checks import interpreter, night
from tests.unit.memories.test_weights import outcome

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
# Two ranks do not divide the first, which is not finite in the third step.
MIXED: Shapes = ((7,), (2, 3))
SCATTERED = "efsignsgd:block=32,communicator=scatterreduce,server_memory=true,follow_lr=true"
SERVED = "fp8:block=32,communicator=parameterserver,server_memory=true,memory=none,server=1"
DISTEF = "efsignsgd:block=32,communicator=parameterserver,server_memory=true,memory=distef,follow_lr=true"
CASES = (
    (SCATTERED, torch.float32),
    (SERVED, torch.float32),
    pytest.param("qsgd:bits=4,bucket=8,communicator=scatterreduce,server_memory=true", torch.bfloat16, marks=night),
    pytest.param(DISTEF, torch.float16, marks=night),
)


@pytest.mark.parametrize(("spec", "dtype"), CASES)
def test_a_bucket_has_the_bytes_of_the_cpu(spec: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, sizes = ServerDebts.commit, list[int]()

    def look(self: ServerDebts, finite: Tensor, *args: Any) -> Any:
        sizes.append(len(finite))
        return commit(self, finite, *args)

    monkeypatch.setattr(ServerDebts, "commit", look)
    want = outcome(spec, dtype, "reference", "host", MIXED, 2)
    assert outcome.__wrapped__(spec, dtype, "triton", "together", MIXED, 2) == want
    assert sizes == [len(MIXED)] * (10 if "scatter" in spec else 5), "of five steps; of each rank, or of the server"


@night
@pytest.mark.parametrize("communicator", ["scatterreduce", "parameterserver"])
def test_ranks_need_not_choose_alike(communicator: str) -> None:
    """And states are saved and loaded, and a network fails."""
    policy = Policy([("*", f"efsignsgd:block=32,communicator={communicator},server_memory=true")])
    with backends.using("triton"), cpu_as_accelerator():
        assert_same(policy, 2, MIXED, plans=SOME)


def test_states_that_kernels_do_not_take() -> None:
    """States of some tensors only, of another size, or that move while work is captured."""
    debts, lent = ServerDebts((3, 2), (0, 0), 1, torch.device("cpu")), Lent(workspace=Workspace())
    xs, states = [torch.ones(1, 3), torch.ones(1, 2)], [ServerDebt(torch.ones(n), 0, 1, (n,), 0.0) for n in (3, 2)]
    with pretend_capturing():
        assert not debts.point(xs, states, lent)
    assert debts.point(xs, states, lent)
    assert not debts.point(xs, [states[0], None], lent)
    assert not debts.point(xs, [states[1], states[0]], lent)


@pytest.mark.parametrize("communicator", ["scatterreduce", "parameterserver"])
def test_launches_do_not_grow_with_the_bucket(communicator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more than without a server memory: what is owed, and what follows it."""
    spec = f"efsignsgd:communicator={communicator},server_memory=true"
    counts = [count_launches(spec, ((2, 3),) * T, monkeypatch, world=2) for T in (1, 3)]
    assert counts == [12, 12]


# ---- mutants --------------------------------------------------------------------------------------------------------
def _nothing(*_: Any, **__: Any) -> None:
    """Nothing is done."""


@pytest.mark.parametrize(
    "where",
    [
        "grace.communicators.server_debts.weigh_many",
        "grace.communicators.server_debts.settle_many",
        "torch._foreach_zero_",
    ],
)
def test_mutants_are_caught(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = (SCATTERED, torch.float32, "reference", "host", ((5,), (3,)), 2, 3)
    right = outcome(*run)
    monkeypatch.setattr(where, _nothing)
    assert outcome.__wrapped__(*run[:2], "triton", "together", *run[4:]) != right
