"""The inputs and workers that the laws are tried with, for a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from grace.contract.method import Method
from grace.verify.inputs import UGLY, Make, heavy, normal
from grace.verify.outcome import Held, Profile
from grace.verify.subject import Subject

T = TypeVar("T")
SHAPE = (48, 32)  # of most inputs: large enough to be compressed, and quick
ROWS = (1, 2, 5)  # that are compressed together


def make_workers(make: Make, world: int) -> list[Tensor]:
    """The tensors of all workers."""
    return [make(rank) for rank in range(world)]


def choose_worlds(subject: Subject, profile: Profile) -> list[int]:
    """The numbers of workers that this method can be tried with, ascending."""
    return sorted({subject.fit_world(world) for world in profile.worlds})


def make_sets(subject: Subject, profile: Profile) -> Iterator[list[Tensor]]:
    """The inputs of most laws: Gaussian and heavy-tailed gradients in each world; thorough: ugly ones too."""
    for world in choose_worlds(subject, profile):
        yield make_workers(normal(*SHAPE), world)
        yield make_workers(heavy(31), world)
        if profile.ugly:
            for make in UGLY.values():
                yield make_workers(make, world)


def make_some(subject: Subject) -> list[Tensor]:
    """Gaussian gradients of the fewest workers, but at least two."""
    return make_workers(normal(*SHAPE), subject.fit_world(2))


def make_spread() -> dict[str, Tensor]:
    """The inputs that bounds are measured on."""
    sparse, constant = (
        torch.zeros(SHAPE, dtype=torch.float32, device="cpu"),
        torch.full(SHAPE, -0.7, dtype=torch.float32, device="cpu"),
    )
    sparse.view(-1)[::100] = normal(16)(7)[: len(sparse.view(-1)[::100])]
    one_hot = torch.zeros(SHAPE, dtype=torch.float32, device="cpu")
    one_hot[11, 3] = -3.0
    return {
        "Gaussian": normal(*SHAPE)(0), "heavy-tailed": heavy(*SHAPE)(0), "1 % dense": sparse, "constant": constant,
        "one-hot": one_hot, "one number": torch.tensor([-1.5], dtype=torch.float32, device="cpu"),
    }  # fmt: skip


def check_each(law: Callable[[Method[Any], list[Tensor]], object], subject: Subject, profile: Profile) -> Held:
    """Checks a law on the method, and on the method under error feedback."""
    count = 0
    for method in subject.all:
        for xs in make_sets(subject, profile):
            law(method, xs)
            count += 1
    return Held(f"{count} runs, {list_numbers(choose_worlds(subject, profile))} workers")


def name_input(name: str, law: Callable[..., T], *arguments: Any) -> T:
    """The result of the law; if it is broken, the error names the input."""
    try:
        return law(*arguments)
    except Exception as error:
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        raise AssertionError(f"{name}: {kind}{error}") from error


def list_numbers(numbers: Sequence[int]) -> str:
    """``2, 3, 5``"""
    return ", ".join(map(str, numbers))
