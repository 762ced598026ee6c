"""Runs the laws on a method, and collects what they find."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

import grace
from grace.contract.knobs import as_call
from grace.errors import ConfigurationError
from grace.verify import measure
from grace.verify.causes import is_cause, put_causes_first
from grace.verify.laws import (
    agreeing,
    bias,
    bytes_moved,
    conserving,
    corrupting,
    donating,
    edge_inputs,
    error_bounds,
    failing,
    fusing,
    keeping_rest,
    losing_nothing,
    nonfinite,
    randomness,
    recovery,
    rows,
    saving,
    wires,
)
from grace.verify.laws.error_bounds import spell_claims
from grace.verify.outcome import NORMAL, Finding, Held, Profile
from grace.verify.subject import Subject, compose, subject
from grace.verify.trials import SHAPE

Check = Callable[[Subject, Profile], Held]
CHECKS: dict[str, Check] = {
    "agreement": agreeing.check,
    "rows": rows.check,
    "conservation": conserving.check,
    "nothing lost": losing_nothing.check,
    "unbiased": bias.check,
    "error bound": error_bounds.check,
    "traffic": bytes_moved.check,
    "payload": wires.check,
    "exact recovery": recovery.check,
    "fused equals alone": fusing.check,
    "answers in place": donating.check,
    "rest is free": keeping_rest.check,
    "randomness": randomness.check,
    "state survives": saving.check,
    "non-finite agreed": nonfinite.check,
    "failure": failing.check,
    "corruption": corrupting.check,
    "edge inputs": edge_inputs.check,
    "speed": measure.check,
}
OF_A_COMPRESSOR = ("rows", "payload", "error bound", "exact recovery", "speed")  # whatever it is composed with


@dataclass(frozen=True, slots=True)
class Report:
    """All findings on one method.

    wrapped: what was put around a bare compressor. composed: over which other communicators the laws were tried, too.
    """

    method: str
    recipe: str
    wrapped: str
    composed: tuple[str, ...]
    profile: str
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        """True if no law is broken."""
        return not self.broken

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the broken laws, the likely causes first."""
        return put_causes_first([finding.law for finding in self.findings if finding.verdict == "broken"])

    @property
    def causes(self) -> tuple[str, ...]:
        """The broken laws that rest on no other broken one: what to mend first."""
        return tuple(law for law in self.broken if is_cause(law, self.broken))

    def spell_broken(self) -> str:
        """The broken laws in words, what to mend first before what is likely broken for that reason."""
        rest = ", ".join(self.broken[len(self.causes) :])
        return ", ".join(self.causes) + (f"; likely for that reason also {rest}" if rest else "")

    def document(self) -> dict[str, Any]:
        """The report as plain containers."""
        return {"holds": self.holds, "broken": list(self.broken), "causes": list(self.causes), **asdict(self)}


def verify(
    method: object, profile: Profile = NORMAL, on_law: Callable[[int, int, str], None] = lambda done, all_, law: None
) -> Report:
    """Runs every law on a method, and on the same compressor over other communicators that take it.

    Args:
        method: a method, the string that makes it, a compressor, a class of either that needs no arguments, or a
            function that returns one. A compressor is put into the first communicator that takes it.
        profile: QUICK, NORMAL or THOROUGH.
        on_law: called before each law: how many are done, how many there are, and its name.

    Raises:
        ConfigurationError: there is no such method, or Python runs with -O, which removes assertions.

    Example:
        >>> from grace.verify import QUICK, verify
        >>> verify("topk:ratio=0.1", QUICK).broken
        ()
    """
    if not __debug__:
        raise ConfigurationError("the laws are assertions, which python -O removes; run python without it")
    examined = subject(method)
    others = compose(examined, profile.beside)
    start = time.perf_counter()
    findings = []
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        for done, (name, check) in enumerate(CHECKS.items()):
            on_law(done, len(CHECKS), name)
            findings.append(_look(name, check, examined, others, profile))
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])
    on_law(len(CHECKS), len(CHECKS), "")
    seconds = time.perf_counter() - start
    text = grace.spell(examined.method)
    recipe, composed = as_call(examined.method), tuple(others)
    return Report(text, recipe, examined.wrapped, composed, profile.name, tuple(findings), seconds)


def _look(name: str, check: Check, subject: Subject, others: Mapping[str, Subject], profile: Profile) -> Finding:
    """The finding on the method, or the first composition that breaks the law."""
    finding = _finding(name, check, subject, profile)
    if name in OF_A_COMPRESSOR:
        return finding
    for title, other in others.items():
        if finding.verdict == "broken":
            break
        if (beside := _finding(name, check, other, profile.beside)).verdict == "broken":
            finding = replace(beside, detail=f"over {title}: {beside.detail}")
    return finding


def _finding(name: str, check: Callable[[Subject, Profile], Held], subject: Subject, profile: Profile) -> Finding:
    try:
        told = check(subject, profile)
    except AssertionError as error:
        return Finding(name, "broken", declared=_declare(name, subject), detail=str(error) or _where(error))
    except Exception as error:  # a method that fails where it should not has broken the law
        return Finding(name, "broken", detail=f"{type(error).__name__}: {error} ({_where(error)})")
    return Finding(name, told.verdict, told.measured, told.declared, told.detail, told.numbers)


def _where(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename.rpartition('/')[2]}:{frame.lineno}, {frame.line}"


def _declare(name: str, subject: Subject) -> str:
    """The promise that a broken law contradicts, in words."""
    facts = subject.core.facts(torch.empty(SHAPE, device="meta", dtype=torch.float32))
    if name == "error bound":
        return spell_claims(facts)
    return {"unbiased": "unbiased" if facts.unbiased else "biased"}.get(name, "")
