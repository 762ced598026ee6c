"""Profiles, which say how thoroughly to verify, and the outcome of each law."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

Verdict = Literal["holds", "broken", "not promised", "told"]


@dataclass(frozen=True, slots=True)
class Profile:
    """Thoroughness of a verification.

    draws: of random methods. worlds: numbers of workers. every: each edge input with and without a memory, not in turn, and
    every communicator around the compressor, not only the one that compresses several rows at once.
    ugly: more inputs for most laws. trials: of corruption. numbers: of the speed test.
    composed: for the compressor over other communicators; None: this one, with its most workers.
    """

    name: str
    draws: int
    worlds: tuple[int, ...]
    every: bool
    ugly: bool
    trials: int
    numbers: int
    composed: Profile | None = None

    @property
    def beside(self) -> Profile:
        """For the compressor over other communicators. The laws are the same; they only have fewer inputs."""
        return self.composed or replace(self, worlds=self.worlds[-1:])


QUICK = Profile("quick", draws=20, worlds=(2,), every=False, ugly=False, trials=12, numbers=1 << 14)
_FEW = replace(QUICK, worlds=(3,))  # several rows are compressed together, and three do not divide evenly
NORMAL = Profile(
    "normal", draws=80, worlds=(1, 2, 5), every=True, ugly=False, trials=32, numbers=1 << 20, composed=_FEW
)
THOROUGH = Profile("thorough", draws=1000, worlds=(1, 2, 3, 5, 8), every=True, ugly=True, trials=400, numbers=1 << 22)


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one law.

    measured, declared: in words. detail: why it is broken, or not promised. numbers: what was measured.
    """

    law: str
    verdict: Verdict
    measured: str = ""
    declared: str = ""
    detail: str = ""
    numbers: dict[str, float | int | str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Held:
    """The result of a check that did not fail."""

    measured: str = ""
    declared: str = ""
    verdict: Verdict = "holds"
    detail: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)


def no_promise(why: str, measured: str = "", declared: str = "", **numbers: Any) -> Held:
    """The result of a check of something that the method does not promise."""
    return Held(measured, declared, "not promised", why, numbers)
