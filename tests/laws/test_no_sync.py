"""On an accelerator an exchange asks the host nothing, and has the bits that it has on the CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import grace
from grace.compute import backends
from grace.contract.compressor import Compressor
from grace.contract.method import Exchanged, Method
from grace.flags.finite import ask_host
from grace.memories.base import Memory
from grace.verify import laws
from grace.verify.inputs import normal
from grace.verify.no_sync import _name, host_is_not_asked
from tests.laws.cases import CASES, by_night

# Methods that ask although the sizes of what they send follow from the tensor's, and why.
ASKS = {
    "acpsgd": "which factor the next step sends depends on whether this one was finite",
    "gradiveq": "whether the next step still collects depends on whether this one was finite",
    "blockrandomk": "whether the short block at the end is among those that were drawn shapes what is sent of it",
    "ef21": "whether the first, dense step has to be made again; asked once in a run",
}
STEPS = [[normal(13, 7, seed=t)(rank) for rank in range(3)] for t in range(4)]
SPOILED = [list(xs) for xs in STEPS]
SPOILED[1][2] = STEPS[1][2].index_fill(0, torch.tensor(4), math.inf)
SPOILED[3][0] = STEPS[3][0].index_fill(1, torch.tensor(0), math.nan)


def asks(method: Method[Any]) -> bool:
    """True if a method may ask: its sizes depend on the data, or it is on the list."""
    core = method
    while isinstance(core, Memory):
        if isinstance(core, grace.EF21):
            return True
        core = core.method
    return laws.varies(core) or type(core).__name__.lower() in ASKS


QUIET = {spec: method for spec, method in CASES.items() if not asks(method)}


def test_most_methods_are_quiet():
    names = {spec.partition(":")[0] for spec in QUIET}
    loud = set(grace.methods()) - names
    varying = {name for name in loud if laws.varies(grace.method(name))}
    assert loud - varying <= set(ASKS), "the list of methods that ask has grown"


@pytest.mark.parametrize("spec", by_night("asks at some size", of=QUIET))
def test_the_host_is_not_asked(spec: str):
    host_is_not_asked(QUIET[spec], SPOILED)


def _large(rows: int, columns: int) -> list[list[Tensor]]:
    """Two steps of two workers, the second of which is not finite."""
    steps = [[normal(rows, columns, seed=t)(rank) for rank in range(2)] for t in range(2)]
    return [steps[0], [steps[1][0], steps[1][1].index_fill(0, torch.tensor(4), math.inf)]]


LARGE = {5_000: _large(100, 50), 72_000: _large(300, 240)}
EACH = {spec.partition(":")[0]: spec for spec in reversed(CASES)}.values()
FIRST = {spec.partition(":")[0]: spec for spec in reversed(QUIET)}.values()  # one case of each method


@pytest.mark.parametrize("n", LARGE)
@pytest.mark.parametrize(
    "spec",
    [spec if spec in FIRST else pytest.param(spec, marks=pytest.mark.night("asks at some size")) for spec in QUIET],
)
def test_the_host_is_not_asked_at_larger_sizes(spec: str, n: int):
    """Kernels choose another way from 4,096 numbers on, and again where blocks end."""
    host_is_not_asked(QUIET[spec], LARGE[n])


@pytest.mark.parametrize(
    "spec", ["topk:memory=dgc,clip=1", "topk:memory=distef,follow_lr=true", "none:memory=momentum"]
)
def test_memories_do_not_ask(spec: str):
    host_is_not_asked(grace.method(spec), SPOILED)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_gradients_do_not_ask(dtype: torch.dtype):
    steps = [[x.to(dtype) for x in xs] for xs in SPOILED]
    for spec in (
        "topk:ratio=0.2",
        "qsgd:communicator=scatterreduce",
        "powersgd:rank=2,min_rate=0.1",
        "fp16:memory=none",
    ):
        host_is_not_asked(grace.method(spec), steps)


# ---- sums at places -------------------------------------------------------------------------------------------------
class AtomicSums(TorchDispatchMode):
    """Fails where numbers are added at places by what is atomic on CUDA: there, subnormal numbers become zeros."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = _name(func)
        adds = name.strip("_") in ("scatter_add", "index_add") or (name.startswith("index_put") and True in args[3:4])
        assert not (adds and args[0].dtype is torch.float32), f"{name} is atomic"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("spec", [spec for spec in EACH if not spec.startswith("sketch")])  # where keys share cells
def test_subnormal_numbers_are_added_as_they_are(spec: str):
    assert_no_atomic_sums(CASES[spec])


def assert_no_atomic_sums(method: Method[Any]) -> None:
    with backends.using("reference"), AtomicSums():
        laws.run(method, STEPS[0], [method.init(x) for x in STEPS[0]])


# ---- mutants --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Asking(Compressor):
    """Looks at a number."""

    inner: Compressor

    def compress_(self, rows, rng, keep_rest):
        assert float(rows[0, 0]) == float(rows[0, 0])
        return self.inner.compress_(rows, rng, keep_rest)

    def decompress_add_(self, wire, out, scale, rng):
        self.inner.decompress_add_(wire, out, scale, rng)

    def facts(self, n):
        return self.inner.facts(n)


@dataclass(frozen=True)
class Listing(Asking):
    """Reads a list of numbers, which is no operation of torch's, where there are many."""

    def compress_(self, rows, rng, keep_rest):
        if rows.numel() > 4096:
            rows[0].tolist()
        return self.inner.compress_(rows, rng, keep_rest)


@dataclass(frozen=True)
class Copying(Asking):
    """Makes a tensor out of numbers of the host."""

    def compress_(self, rows, rng, keep_rest):
        return self.inner.compress_(rows * torch.tensor([1.0]), rng, keep_rest)


@dataclass(frozen=True)
class Putting(Asking):
    """Puts a number at one place, for which a tensor is made on the host."""

    def compress_(self, rows, rng, keep_rest):
        rows.clone()[0, 0] = 0.0
        return self.inner.compress_(rows, rng, keep_rest)


@dataclass(frozen=True)
class PuttingMany(Asking):
    """Likewise at places of a list."""

    def compress_(self, rows, rng, keep_rest):
        rows.clone()[0, torch.arange(2)] = 0.0
        return self.inner.compress_(rows, rng, keep_rest)


@dataclass(frozen=True)
class Adding(Asking):
    """Adds by an operation that is atomic on CUDA."""

    def compress_(self, rows, rng, keep_rest):
        rows.clone().index_add_(1, torch.arange(2), rows[:, :2])
        return self.inner.compress_(rows, rng, keep_rest)


@dataclass(frozen=True)
class Forgetful(grace.ErrorFeedback):
    """Keeps the rest of a step that was not finite, where the host does not know."""

    def exchange(self, x, state, peer):
        old = state.memory.clone()
        out = yield from grace.ErrorFeedback.exchange(self, x, state, peer)
        if isinstance(out.finite, bool):
            return out
        return Exchanged(
            out.mean, None, out.state._replace(memory=torch.where(out.finite, out.state.memory, old + 1)), True
        )


class Peeking(grace.ErrorFeedback):
    """Asks whether the step was finite."""

    def exchange(self, x, state, peer):
        out = yield from grace.ErrorFeedback.exchange(self, x, state, peer)
        ask_host(out.finite)
        return out


def at_all_sizes(method: Method[Any]) -> None:
    for steps in (SPOILED, *LARGE.values()):
        host_is_not_asked(method, steps)


@pytest.mark.parametrize(
    ("mutant", "why"),
    [
        (grace.Allgather(Listing(grace.QSGD())), "the host is asked by tolist"),
        (grace.Allgather(Copying(grace.QSGD())), "tensor copies numbers of the host"),
        (grace.Allgather(Putting(grace.QSGD())), "a number for one place"),
        (grace.Allgather(PuttingMany(grace.QSGD())), "a number for one place"),
        (grace.Allgather(Asking(grace.QSGD())), "the host is asked by _local_scalar_dense"),
        (Peeking(grace.Allgather(grace.QSGD())), "the host is asked by _local_scalar_dense"),
        (Forgetful(grace.Allgather(grace.QSGD())), "step 1, rank 0: finite is True"),
        (grace.method("threshold:v=0.5"), "the host is asked by nonzero"),
    ],
)
def test_mutants_are_caught(mutant: Method[Any], why: str):
    """Among them "asks at some size"."""
    with pytest.raises(AssertionError, match=why):
        at_all_sizes(mutant)


def test_atomic_sums_are_caught():
    with pytest.raises(AssertionError, match=r"index_add_? is atomic"):
        assert_no_atomic_sums(grace.Allgather(Adding(grace.QSGD())))
