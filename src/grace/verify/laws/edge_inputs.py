"""Law 12, edge inputs: finite gradients stay finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.contract.method import Exchanged, Method
from grace.verify.inputs import HUGE, UGLY
from grace.verify.laws.agreeing import agreement
from grace.verify.laws.conserving import conservation
from grace.verify.outcome import Held, Profile
from grace.verify.running import leaves, run
from grace.verify.subject import Subject
from grace.verify.trials import choose_worlds, make_workers, name_input

EDGES = ("one element", "1x1", "0-d", "empty", "empty matrix", "zeros", "zeros on some", "equal", "negative", "denormal",
         "ties", "one hot")  # fmt: skip


def finite_stays_finite(method: Method[Any], xs: Sequence[Tensor]) -> None:
    """Finite gradients have a finite mean, and leave finite memories."""
    _check_finite(run(method, xs))


def _check_finite(outs: Sequence[Exchanged[Any]]) -> None:
    for rank, out in enumerate(outs):
        assert out.finite, f"finite: rank {rank} reads finite gradients as non-finite"
        assert bool(out.mean.isfinite().all()), f"finite: rank {rank} has an inf or NaN in the mean of finite numbers"
        for leaf in leaves(out.state):
            assert not leaf.is_floating_point() or bool(leaf.isfinite().all()), (
                f"finite: the state of rank {rank} is not"
            )


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    worlds = choose_worlds(subject, profile)
    subject.method.facts(torch.empty(0, device="meta", dtype=torch.float32))  # it may claim anything, but must not fail
    for i, name in enumerate(EDGES):
        xs = make_workers(UGLY[name], worlds[i % len(worlds)])
        for method in subject.all if profile.every else [subject.all[i % len(subject.all)]]:
            name_input(name, _check_finite, name_input(name, agreement, method, xs))
        if subject.conserves:
            name_input(name, conservation, subject.core, xs)
    xs = make_workers(HUGE, worlds[-1])
    for method in subject.all:
        name_input("huge", agreement, method, xs)
    finite = bool(run(subject.method, xs)[0].mean.isfinite().all())
    return Held(f"{len(EDGES) + 1} inputs; 1e38 {'stays finite' if finite else 'overflows'}")
