"""A law that no mutant breaks is not a law: each catches a method that is broken in just its way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.communicators import Allgather, Allreduce, ParameterServer
from grace.methods import PowerSGD
from grace.verify import laws
from grace.verify.inputs import heavy, normal
from tests.laws import mutants
from tests.laws.cases import DRAWS
from tests.unit.verify import own

XS = [normal(9, 8)(rank) for rank in range(3)]
HALF = [x.half() for x in XS]
STEPS = [[normal(9, 8, seed=t)(rank) for rank in range(3)] for t in range(4)]
SPARSE = [torch.eye(72)[5].view(9, 8) * (rank + 1) for rank in range(3)]
TOPK, NONE = mutants.SOUND["topk"], mutants.SOUND["none"]
QSGD = {"bits": 3, "bucket": 32}

Law = Callable[[Any], None]


def agreement(method: Any) -> None:
    laws.agreement(method, XS)
    laws.agreement(method, HALF)


def conservation(method: Any) -> None:
    laws.conservation(method, XS)


def scatter(method: Any) -> None:
    laws.scatter_conserves(method, [x[:3] for x in XS])
    laws.scatter_conserves(method, [x[:3] for x in XS], bad=math.nan)


def nothing_lost(method: Any) -> None:
    laws.nothing_lost(method if isinstance(method, grace.ErrorFeedback) else grace.ErrorFeedback(method), STEPS)


def unbiased(method: Any) -> None:
    laws.unbiased(method, [heavy(40)(0), heavy(40)(1)], DRAWS)


def bounds(method: Any) -> None:
    for x in (normal(64)(0), heavy(64)(0), torch.full((50,), 0.3)):
        laws.bounds(method, x, DRAWS // 2)


def traffic(method: Any) -> None:
    laws.traffic(method, XS)


def payload(method: Any) -> None:
    laws.payload(mutants.compressor_of(method), normal(3, 50)(0))


def rows(method: Any) -> None:
    laws.rows_stand_alone(
        mutants.compressor_of(method), normal(5, 50)(0) * torch.tensor([[1.0], [30], [0.1], [2], [9]])
    )


def summable(method: Any) -> None:
    laws.summable(mutants.compressor_of(method), normal(3, 50)(0))


def exact(method: Any) -> None:
    laws.exact_recovery(method, SPARSE)


def fused(method: Any) -> None:
    laws.fused_equals_alone([method, NONE, method], [XS, [normal(5)(r) for r in range(3)], XS])


def donation(method: Any) -> None:
    laws.answers_may_alias(method, XS)


def free_rest(method: Any) -> None:
    laws.rest_is_free(method, XS)


def randomness(method: Any) -> None:
    laws.own_randomness(method, [normal(12, 8)(rank) for rank in range(2)])


def independence(method: Any) -> None:
    laws.independence(method, normal(200)(0))


def state(method: Any) -> None:
    laws.state_survives(method, STEPS, stop=2)


def nonfinite(method: Any) -> None:
    for bad in (math.inf, math.nan):
        laws.nonfinite_is_agreed(method, STEPS, bad, rank=1, at=7)


def failure(method: Any) -> None:
    laws.failure_leaves_memory(method, XS)


def corruption(method: Any) -> None:
    laws.corruption_is_refused(method, XS)


def finiteness(method: Any) -> None:
    laws.finite_stays_finite(method, [torch.zeros(9, 8)] * 3)


BROKEN: list[tuple[Law, Any, str]] = [
    (agreement, mutants.OwnMean(TOPK), "agreement: mean of rank 1 differs"),
    (agreement, mutants.AlwaysFloat32(TOPK), "agreement: mean is torch.float32, the gradient torch.float16"),
    (agreement, mutants.Flattened(TOPK), "agreement: mean is torch.Size"),
    (conservation, mutants.SumInsteadOfMean(TOPK), "conservation: average of x - rest is off"),
    (conservation, mutants.RestIsZero(TOPK), "conservation: average of x - rest is off"),
    (conservation, mutants.NoSecondDebt(grace.TopK(ratio=0.2)), "conservation: average of x - rest is off"),
    (nothing_lost, mutants.NeverUpdated(TOPK), "nothing lost: means and memories are off"),
    (nothing_lost, mutants.Doubled(TOPK), "nothing lost: means and memories are off"),
    (nothing_lost, mutants.SumInsteadOfMean(TOPK), "nothing lost: means and memories are off"),
    (unbiased, Allgather(mutants.Nearest(**QSGD)), "unbiased:"),
    (unbiased, Allreduce(mutants.Unscaled(ratio=0.3)), "unbiased:"),
    (bounds, Allgather(mutants.Boastful(ratio=0.1)), "contraction:"),
    (bounds, Allgather(mutants.Smooth(bits=2, bucket=64, norm="l2")), "variance:"),
    (bounds, Allgather(mutants.Settled(**QSGD)), "deterministic:"),
    (traffic, mutants.OneRoundLess(TOPK), "traffic: rank 0 declares"),
    (scatter, mutants.ScattersForFree(TOPK), "scatter: rank 0 declares"),
    (traffic, mutants.ServerLikeAll(ParameterServer(grace.TopK())), "traffic: rank 1 declares"),
    (traffic, mutants.Unsure(TOPK), "traffic: None"),
    (traffic, Allgather(mutants.Slim()), "traffic: rank 0 declares"),
    (payload, Allgather(mutants.Slim()), "payload: 4 bytes declared, 5 encoded"),
    (rows, Allgather(own.MixesRows()), "rows: decoded with the others, the wire of row 1 of 5"),
    (
        rows,
        Allgather(mutants.FirstScale(**QSGD)),
        "rows: row [0-9] of 5 (minus its rest|breaks a bound|is biased)",
    ),
    (summable, Allreduce(mutants.Squares()), "summable: the sum of wires decodes"),
    (exact, Allgather(mutants.SmallestK(ratio=0.02)), "exact recovery: off by"),
    (fused, mutants.Neighborly(NONE), "fused:"),
    (donation, mutants.Sensitive(NONE), "donation: rank"),
    (free_rest, mutants.RestCosts(TOPK), "keep_rest changes the mean"),
    (randomness, Allgather(mutants.GlobalTorch(**QSGD)), "torch's generator"),
    (randomness, Allgather(mutants.GlobalNumpy(**QSGD)), "numpy's generator"),
    (randomness, Allgather(mutants.GlobalPython(**QSGD)), "python's generator"),
    (randomness, Allgather(mutants.Seedless(**QSGD)), "no seed changes it"),
    (randomness, Allgather(mutants.Settled(**QSGD)), "depends on the seed, but is declared deterministic"),
    (independence, Allgather(mutants.InStep(**QSGD)), "independence: randomness is declared private"),
    (independence, Allgather(mutants.OneRotation()), "independence: randomness is declared private"),
    (state, mutants.Hidden(TOPK), "state: step 2 after loading differs"),
    (nonfinite, mutants.Poisoned(TOPK), "non-finite: the state of rank 0 changed"),
    (nonfinite, mutants.Emptied(TOPK), "non-finite: the state of rank 0 changed"),
    (nonfinite, mutants.Silent(TOPK), "non-finite: rank 0 has a finite mean"),
    (nonfinite, mutants.OnlyMine(TOPK), "non-finite: rank 0 has a finite mean"),
    (failure, mutants.Hasty(TOPK), "failure in round 0: the state of rank 0 changed"),
    (failure, mutants.EarlyQ(rank=2, min_rate=0.1), "failure in round 1: the state of rank 0 changed"),
    (
        failure,
        mutants.InPlace(TOPK),
        "after its last round: the state of rank 0 changed",
    ),
    (failure, mutants.Stubborn(TOPK), "failure: rank 0 swallowed the error"),
    (scatter, mutants.NextRow(TOPK), "scatter: row 0 of x - rest is off"),
    (scatter, mutants.KeepsItsOwnRow(TOPK), "scatter: row 0 of x - rest is off"),
    (scatter, mutants.OnlyItsOwnRow(TOPK), "scatter: rank 0 says finite=True of nan"),
    (corruption, Allgather(own.TrustsItsIndex()), "corruption: after round 0 of gathered bytes was flipped"),
    (finiteness, Allgather(own.DividesByZero()), "finite: rank 0 has an inf or NaN"),
]
EVERY = {law for law, _, _ in BROKEN}


@pytest.mark.parametrize(("law", "mutant", "message"), BROKEN, ids=[f"{law.__name__}-{m}" for law, m, _ in BROKEN])
def test_the_law_catches_the_mutant(law: Law, mutant: Any, message: str):
    with pytest.raises(AssertionError, match=message):
        law(mutant)


def test_every_law_has_a_mutant():
    written = {
        name
        for name, value in vars(laws).items()
        if name[0] != "_"
        and callable(value)
        and (getattr(value, "__doc__", None) or "")
        and value.__module__ == laws.__name__
    }
    helpers = {"run", "copied", "same_bits", "leaves", "snapshot", "assert_untouched", "average", "is_memory"}
    helpers |= {"remembers", "tolerance", "varies", "in_place", "drawn", "conserves"}
    used = {name for law in EVERY for name in law.__code__.co_names}
    assert written - helpers <= used, f"laws without a mutant: {written - helpers - used}"


SOUND_UNDER = {  # what else a mutant obeys: it breaks one law, not all
    "OwnMean": [traffic, failure],
    "SumInsteadOfMean": [agreement, traffic, failure, nonfinite, state],
    "RestIsZero": [agreement, traffic, failure, nonfinite],
    "NeverUpdated": [agreement, traffic, failure, nonfinite, state],
    "OneRoundLess": [agreement, conservation, failure, nonfinite, state],
    "Poisoned": [agreement, nothing_lost, traffic, failure, state],
    "Emptied": [agreement, nothing_lost, traffic, failure, state],
    "InPlace": [agreement, traffic],
    "Stubborn": [agreement, conservation, traffic, nonfinite, state],
    "EarlyQ": [agreement, nonfinite, traffic, state],
    "Hidden": [agreement, traffic],
}


@pytest.mark.parametrize("name", SOUND_UNDER)
def test_mutants_obey_the_other_laws(name: str):
    mutant = next(m for _, m, _ in BROKEN if type(m).__name__ == name)
    for law in SOUND_UNDER[name]:
        law(mutant)


@pytest.mark.parametrize("name", mutants.SOUND)
def test_sound_methods_pass_where_mutants_fail(name: str):
    method = mutants.SOUND[name]
    for law in (agreement, conservation, nothing_lost, unbiased, bounds, traffic, fused, donation, free_rest):
        law(method)
    for law in (randomness, state, nonfinite, failure, scatter):
        law(method)


def test_rows_of_sound_methods_stand_alone():
    rows(Allgather(own.KeepsRowsApart()))
    for name in ("topk", "none", "qsgd"):
        rows(mutants.SOUND[name])


def test_the_laws_pass_for_a_sound_powersgd():
    method = PowerSGD(rank=2, min_rate=0.1)
    for law in (agreement, conservation, nothing_lost, traffic, fused, donation, free_rest, state, nonfinite, failure):
        law(method)


def of(xs: list[Tensor]) -> list[Tensor]:
    return [x.clone() for x in xs]


def test_laws_do_not_change_their_inputs():
    before = of(XS)
    for law in (agreement, conservation, nothing_lost, traffic, failure):
        law(TOPK)
    assert all(torch.equal(a, b) for a, b in zip(XS, before, strict=True))
