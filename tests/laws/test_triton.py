"""Whole exchanges over Triton kernels, in Triton's interpreter: the bits of the CPU, so that a rank on a GPU agrees with one
on a CPU; and the laws themselves.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")

import grace
from grace.compute import backends
from grace.contract.loan import Loan
from grace.contract.method import Method
from grace.verify import laws
from grace.verify.inputs import UGLY, normal
from grace.verify.outcome import Profile
from grace.verify.report import CHECKS
from grace.verify.running import leaves, make_peer, run, same_bits
from grace.verify.subject import subject
from tests.laws.cases import CASES
from tests.unit.kernels.triton_checks import interpreter, night
from tests.unit.kernels.triton_mutants import memory_left_out, words_as_numbers

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
# of each kind of kernel one
SHARE = (
    "efsignsgd", "qsgd:bits=4", "natural", "u8bit", "fp8", "eden:block=16", "topk:ratio=0.2", "threshold:v=0.5",
    "randomk:ratio=0.3",
)  # fmt: skip
LAWS = tuple(law for law in CHECKS if law != "speed")
# Which laws of which methods `make test` checks; the others wait for the night.
ALWAYS = {
    ("efsignsgd", "nothing lost"), ("natural", "nothing lost"), ("natural", "non-finite agreed"), ("qsgd", "conservation"),
    ("threshold", "agreement"), ("randomk", "conservation"),
}  # fmt: skip
SMALL = Profile("small", draws=6, worlds=(2,), every=False, ugly=False, trials=3, numbers=1 << 10)


def steps(method: Method[Any], xs: list[Tensor], count: int = 2) -> list[Tensor]:
    """The means and states of all workers after each step."""
    states, out = None, []
    for step in range(count):
        done = run(method, xs, states, step=step)
        states = [out.state for out in done]
        out += [out.mean.clone() for out in done] + [leaf.clone() for leaf in leaves(tuple(states))]
    return out


def agree(method: Method[Any], xs: list[Tensor]) -> None:
    with backends.using("reference"):
        want = steps(method, xs)
    with backends.using("triton"):
        got = steps(method, xs)
    assert len(want) == len(got)
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        assert same_bits(a, b), k


@pytest.mark.parametrize("spec", SHARE)
def test_means_and_memories_have_the_bits_of_the_cpu(spec: str) -> None:
    agree(grace.method(spec), [normal(6, 7)(rank) for rank in range(2)])


@pytest.mark.parametrize("spec", ["efsignsgd", "qsgd:bits=4,memory=residual,communicator=scatterreduce"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_gradients_are_read_as_they_are(spec: str, dtype: torch.dtype) -> None:
    agree(grace.method(spec), [normal(6, 7)(rank).to(dtype) for rank in range(2)])


def test_no_float32_copy_is_made_of_a_narrow_gradient() -> None:
    x = normal(6, 7)(0).bfloat16()
    peer = make_peer(0, 1).lending(memory=torch.zeros(6, 7), rest=torch.empty(6, 7), keep_rest=True)
    with backends.using("triton"):
        assert Loan(x, peer, as_is=True).numbers.data_ptr() == x.data_ptr()
        assert Loan(x, peer, as_is=True).make_room().dtype is torch.float32
        assert Loan(x, make_peer(0, 1), as_is=True).numbers.dtype is torch.float32
    with backends.using("reference"):
        assert Loan(x, peer, as_is=True).numbers.dtype is torch.float32


@night
@pytest.mark.parametrize("spec", CASES)
def test_means_and_memories_of_every_case(spec: str) -> None:
    world = 3 if getattr(CASES[spec], "server", 0) < 3 else 5
    for make in UGLY.values():
        agree(CASES[spec], [make(rank) for rank in range(world)])


@night
@pytest.mark.parametrize("spec", CASES)
def test_laws_of_every_case(spec: str) -> None:
    method = CASES[spec]
    with backends.using("triton"):
        for name in ("normal", "ties", "tiny and huge", "bf16"):
            xs = [UGLY[name](rank) for rank in range(3)]
            laws.agreement(method, xs)
            if not laws.is_memory(method) and laws.conserves(method):
                laws.conservation(method, xs)


EACH = {spec.partition(":")[0]: method for spec, method in reversed(CASES.items())}  # one case of each method


def share_laws() -> list[Any]:
    """Each law for each of these, as parameters: all at night, some always."""
    assert set(EACH) >= {name for name, _ in ALWAYS}
    pairs = itertools.product(EACH, LAWS)
    return [pair if pair in ALWAYS else pytest.param(*pair, marks=night) for pair in pairs]


@pytest.mark.parametrize(("name", "law"), share_laws())
def test_laws_hold(name: str, law: str) -> None:
    """All that `grace verify` checks but the speed."""
    with backends.using("triton"):
        assert CHECKS[law](subject(EACH[name]), SMALL).verdict != "broken"


def test_a_law_that_a_kernel_breaks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.kernels.triton.tiles.load_sum", memory_left_out)
    with pytest.raises(AssertionError):
        test_laws_hold("natural", "nothing lost")


def test_words_that_are_taken_for_numbers_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.kernels.triton.load_number", words_as_numbers)
    with pytest.raises(AssertionError):
        test_narrow_gradients_are_read_as_they_are("efsignsgd", torch.bfloat16)


@pytest.mark.parametrize(
    ("module", "spec"), [("triton.tiles", "qsgd:bits=4"), ("selection.triton.candidates", "topk:ratio=0.2")]
)
def test_a_memory_that_is_left_out_is_caught(module: str, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.{module}.load_sum", memory_left_out)
    with pytest.raises(AssertionError):
        agree(grace.method(f"{spec},memory=residual"), [normal(6, 7)(rank) for rank in range(2)])
