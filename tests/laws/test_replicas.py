"""Replicas agree to the bit where each rank has other kernels and another number of threads."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.collectives import Exchange
from grace.compute import backends
from grace.contract.method import Exchanged
from grace.contract.peer import Peer
from grace.kernels import split_low_rank
from grace.verify import laws, replicas
from grace.verify.inputs import UGLY, Make, heavy, normal
from tests.laws.cases import CASES, STAY
from tests.laws.mutants import Wrapper

METHODS = set(grace.methods())
LARGE = {name: spec for spec in reversed(CASES) for name in [spec.partition(":")[0]] if name in METHODS}


def ranks(make: Make) -> list[Tensor]:
    """Five: more than there are backends, and no power of two, so that a mean is not exact."""
    return [make(rank) for rank in range(5)]


@pytest.mark.parametrize("spec", CASES)
def test_replicas(spec: str):
    """Cases beside the first of a method, which put the same pieces together around other numbers, meet one input."""
    for make in (normal(13, 7), heavy(36, 30), UGLY["zeros on some"], UGLY["f16"], UGLY["f64"])[
        : 5 if spec in STAY else 1
    ]:
        replicas.replicas(CASES[spec], ranks(make))


@pytest.mark.parametrize("spec", LARGE.values())
def test_replicas_of_large_tensors(spec: str):
    """Large enough for torch to share it among threads."""
    replicas.replicas(CASES[spec], ranks(normal(240, 170))[:3], steps=2)


@pytest.mark.parametrize("spec", [spec for name, spec in LARGE.items() if name != "atomosvd"])
def test_the_mean_does_not_depend_on_the_machine(spec: str):
    """Means are the same on machines that all ranks share. Not promised of atomosvd: LAPACK decomposes a rank's own
    gradient.
    """
    xs, means = ranks(normal(200, 170))[:2], []
    for backend in ("reference", backends.available()[-1]):
        for threads in (1, 3):
            with replicas.Machine(backend, threads).use():
                means.append(laws.run(CASES[spec], xs)[0].mean)
    assert all(laws.same_bits(means[0], mean) for mean in means[1:])


def test_machines_differ():
    assert len(set(replicas.machines())) == len(replicas.machines()) >= 2
    before = torch.get_num_threads()
    with replicas.Machine("reference", 3).use():
        assert (torch.get_num_threads(), backends.active()[0]) == (3, "reference")
    assert torch.get_num_threads() == before


# ---- mutants --------------------------------------------------------------------------------------------------------
def split_as_the_backend_does(x: Tensor | None, p: Tensor, left: Tensor, q: Tensor, out: Tensor) -> None:
    """The native kernel, or else torch's products."""
    if backends.active()[0] != "reference":
        split_low_rank(x, p, left, q, out)
        return
    if x is not None:
        x -= p.mT @ left
    torch.mm(p.mT, q, out=out)


class Centered(Wrapper):
    """Centers what is applied to a mean of zero, by a sum whose order depends on the number of threads."""

    def exchange(self, x: Tensor, state: Any, peer: Peer) -> Exchange[Exchanged[Any]]:
        out = yield from self.method.exchange(x, state, peer)
        return replace(out, mean=out.mean - out.mean.sum() / out.mean.numel())


def test_products_that_depend_on_the_backend_are_caught(monkeypatch: pytest.MonkeyPatch):
    method, xs = grace.method("powersgd"), ranks(normal(40, 30))
    replicas.replicas(method, xs)
    monkeypatch.setattr(importlib.import_module("grace.kernels.low_rank"), "split_low_rank", split_as_the_backend_does)
    with pytest.raises(AssertionError, match="replicas: the mean differs, step 0"):
        replicas.replicas(method, xs)


def test_sums_that_depend_on_the_number_of_threads_are_caught():
    xs, on = ranks(normal(300, 400)), [replicas.Machine("reference", threads) for threads in (1, 2, 3)]
    replicas.replicas(grace.method("none"), xs, on=on)
    with pytest.raises(AssertionError, match="replicas: the mean differs"):
        replicas.replicas(Centered(grace.method("none")), xs, on=on)
