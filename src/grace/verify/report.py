"""Runs the laws on a method, and collects what they find."""

from __future__ import annotations

import math
import random
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

import grace
from grace.errors import ConfigurationError
from grace.knobs import as_call
from grace.method import Method
from grace.verify import laws, measure
from grace.verify.inputs import HUGE, UGLY, Make, heavy, normal
from grace.verify.subject import Subject, subject

T = TypeVar("T")
Verdict = Literal["holds", "broken", "not promised", "told"]
BIASED = 1e-4  # a p-value below it is a bias
_SUSPICIOUS = 1e-3  # one below it is measured again, with more draws
EDGES = ("one element", "1x1", "0-d", "empty", "empty matrix", "zeros", "zeros on some", "equal", "negative", "denormal",
         "ties", "one hot")  # fmt: skip
SHAPE = (48, 32)  # of most inputs: large enough to be compressed, and quick


@dataclass(frozen=True, slots=True)
class Profile:
    """How much is done.

    draws: of random methods. worlds: numbers of workers. every: each edge input with and without a memory, not in turn.
    ugly: more inputs for most laws. trials: of corruption. numbers: of the speed test.
    """

    name: str
    draws: int
    worlds: tuple[int, ...]
    every: bool
    ugly: bool
    trials: int
    numbers: int


QUICK = Profile("quick", draws=20, worlds=(2,), every=False, ugly=False, trials=12, numbers=1 << 14)
NORMAL = Profile("normal", draws=80, worlds=(1, 3), every=True, ugly=False, trials=32, numbers=1 << 20)
THOROUGH = Profile("thorough", draws=1000, worlds=(1, 2, 3, 5, 8), every=True, ugly=True, trials=400, numbers=1 << 22)


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one law.

    measured, declared: in words. detail: why it is broken, or not promised. numbers: what was measured.
    """

    law: str
    verdict: Verdict
    measured: str = ""
    declared: str = ""
    detail: str = ""
    numbers: dict[str, float | int | str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """All findings on one method."""

    method: str
    recipe: str
    wrapped: str
    profile: str
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether no law is broken."""
        return not self.broken

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the laws that are."""
        return tuple(finding.law for finding in self.findings if finding.verdict == "broken")

    def document(self) -> dict[str, Any]:
        """The report as plain containers."""
        return {"holds": self.holds, "broken": list(self.broken), **asdict(self)}


@dataclass(frozen=True, slots=True)
class _Told:
    """What a check that did not fail returns."""

    measured: str = ""
    declared: str = ""
    verdict: Verdict = "holds"
    detail: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)


def _not_promised(why: str, measured: str = "", declared: str = "", **numbers: Any) -> _Told:
    return _Told(measured, declared, "not promised", why, numbers)


def verify(
    method: object, profile: Profile = NORMAL, on_law: Callable[[int, int, str], None] = lambda done, all_, law: None
) -> Report:
    """Runs every law on a method.

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
    one = subject(method)
    start = time.perf_counter()
    findings = []
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        for done, (name, check) in enumerate(CHECKS.items()):
            on_law(done, len(CHECKS), name)
            findings.append(_finding(name, check, one, profile))
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])
    on_law(len(CHECKS), len(CHECKS), "")
    seconds = time.perf_counter() - start
    text = grace.spell(one.method)
    return Report(text, as_call(one.method), one.wrapped, profile.name, tuple(findings), seconds)


def _finding(name: str, check: Callable[[Subject, Profile], _Told], one: Subject, profile: Profile) -> Finding:
    try:
        told = check(one, profile)
    except AssertionError as error:
        return Finding(name, "broken", declared=_declared(name, one), detail=str(error) or _where(error))
    except Exception as error:  # a method that fails where it should not has broken the law
        return Finding(name, "broken", detail=f"{type(error).__name__}: {error} ({_where(error)})")
    return Finding(name, told.verdict, told.measured, told.declared, told.detail, told.numbers)


def _where(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename.rpartition('/')[2]}:{frame.lineno}, {frame.line}"


# ---- inputs ---------------------------------------------------------------------------------------------------------
def _workers(make: Make, world: int) -> list[Tensor]:
    return [make(rank) for rank in range(world)]


def _worlds(one: Subject, profile: Profile) -> list[int]:
    return sorted({max(world, one.least_world) for world in profile.worlds})


def _sets(one: Subject, profile: Profile) -> Iterator[list[Tensor]]:
    """What most laws are tried on: Gaussian and heavy-tailed gradients in each world; thorough: ugly ones too."""
    for world in _worlds(one, profile):
        yield _workers(normal(*SHAPE), world)
        yield _workers(heavy(31), world)
        if profile.ugly:
            for make in UGLY.values():
                yield _workers(make, world)


def _some(one: Subject) -> list[Tensor]:
    return _workers(normal(*SHAPE), max(2, one.least_world))


def _spread() -> dict[str, Tensor]:
    """What bounds are measured on."""
    sparse, constant = torch.zeros(SHAPE), torch.full(SHAPE, -0.7)
    sparse.view(-1)[::100] = normal(16)(7)[: len(sparse.view(-1)[::100])]
    one_hot = torch.zeros(SHAPE)
    one_hot[11, 3] = -3.0
    return {
        "Gaussian": normal(*SHAPE)(0), "heavy-tailed": heavy(*SHAPE)(0), "1 % dense": sparse, "constant": constant,
        "one-hot": one_hot, "one number": torch.tensor([-1.5]),
    }  # fmt: skip


def _each(law: Callable[[Method[Any], list[Tensor]], object], one: Subject, profile: Profile) -> _Told:
    """A law on the method, and on what it is under error feedback."""
    count = 0
    for method in one.all:
        for xs in _sets(one, profile):
            law(method, xs)
            count += 1
    return _Told(f"{count} runs, {_listed(_worlds(one, profile))} workers")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


# ---- checks: one for each line of the report ------------------------------------------------------------------------
def _agreement(one: Subject, profile: Profile) -> _Told:
    return _each(laws.agreement, one, profile)


def _conservation(one: Subject, profile: Profile) -> _Told:
    if not one.conserves:
        assert one.remembered is None, "conservation: what does not conserve must refuse a memory"
        return _not_promised("a vote, a sum that the network rounds, or a memory of its own; it refuses another")
    worlds = _worlds(one, profile)
    for xs in _sets(one, profile):
        laws.conservation(one.core, xs)
    return _Told(f"to a rounding, {_listed(worlds)} workers")


def _nothing_lost(one: Subject, profile: Profile) -> _Told:
    if one.remembered is None:
        return _not_promised("it refuses a memory")
    for xs in _sets(one, profile):
        laws.nothing_lost(one.remembered, [[x * (1 - 0.5 * t) for x in xs] for t in range(4)])
    return _Told(f"to a rounding, 4 steps, {_listed(_worlds(one, profile))} workers")


def _unbiased(one: Subject, profile: Profile) -> _Told:
    if one.least_world > 1:
        return _not_promised("measured with one worker, and this needs more")
    found = []
    said = one.core.facts(torch.empty(SHAPE, device="meta")).unbiased
    for x in (normal(*SHAPE)(0), -normal(*SHAPE)(1).abs()):
        draws = 2 if one.core.facts(x).deterministic else profile.draws
        outs = laws.drawn(one.core, [x], draws)
        p = measure.bias_p_value(outs, x)
        if said and p < _SUSPICIOUS and draws > 2:  # rarely by chance: ask again
            p = measure.bias_p_value(laws.drawn(one.core, [x], 4 * draws, seed=10_001), x)
        found.append(p)
    p = min(1.0, len(found) * min(found))
    words = f"{'biased' if p < BIASED else 'no bias found'}, p {_small(p)}"
    declared = "unbiased" if said else "biased"
    if said and p < BIASED:
        raise AssertionError(f"unbiased: it is declared, but E C(x) differs from x, p {_small(p)}")
    if not said:
        return _not_promised("", words, declared, p_value=p)
    return _Told(words, declared, numbers={"p_value": p})


def _small(p: float) -> str:
    return "< 1e-12" if p < 1e-12 else f"= {p:.2g}"


def _bounds(one: Subject, profile: Profile) -> dict[str, tuple[float, grace.Facts]]:
    """The error |C(x) - x|^2 / |x|^2 for each input, beside what is declared for it."""
    return {
        name: (_naming(name, laws.bounds, one.core, x, profile.draws // 2), one.core.facts(x))
        for name, x in _spread().items()
    }


def _error(one: Subject, profile: Profile) -> _Told:
    if one.least_world > 1:
        return _not_promised("measured with one worker, and this needs more")
    found = _bounds(one, profile)
    worst = max(found, key=lambda name: found[name][0])
    gauss, facts = found["Gaussian"]
    numbers: dict[str, Any] = {"gaussian": gauss, "worst": found[worst][0], "worst_input": worst}
    numbers |= {"contraction": facts.contraction, "variance": facts.variance}
    measured = f"{gauss:.3g} of |x|^2 for Gaussian x; worst: {found[worst][0]:.3g} ({worst})"
    claims = _claims(facts)
    return _Told(measured, claims or "no bound", "holds" if claims else "not promised", "", numbers)


def _claims(facts: grace.Facts) -> str:
    claims = []
    if facts.contraction is not None:
        claims.append(f"delta {facts.contraction:.4g}: at most {1 - facts.contraction:.4g}")
    if facts.variance is not None:
        claims.append(f"omega {facts.variance:.4g}")
    return "; ".join(claims)


def _traffic(one: Subject, profile: Profile) -> _Told:
    for name in ("one element", "empty", "zeros", "f16", "f64"):
        xs = _workers(UGLY[name], max(2, one.least_world))
        for method in one.all:
            laws.traffic(method, xs)
    for method in one.all:
        moved = laws.traffic(method, _some(one))
    moved = laws.traffic(one.method, _some(one))
    most = max(moved, key=lambda traffic: traffic.sent)
    like = torch.empty(SHAPE, device="meta")
    said = one.method.traffic(like, laws._peer(moved.index(most), len(moved), 1))
    elements = math.prod(SHAPE)
    measured = f"{_moved(most)} for {elements:,} numbers, {len(moved)} workers"
    numbers = {"rounds": most.rounds, "sent": most.sent, "elements": elements, "workers": len(moved)}
    return _Told(measured, "depends on the data" if said is None else _moved(said), numbers=numbers)


def _moved(traffic: grace.Traffic) -> str:
    return f"{traffic.rounds} round{'s' * (traffic.rounds != 1)}, {traffic.sent:,} bytes sent"


def _payload(one: Subject, profile: Profile) -> _Told:
    if one.compressor is None:
        return _not_promised("it holds its own exchange")
    for n in (1, 2, 5, 31, 257):
        laws.payload(one.compressor, normal(3, n)(0))
        laws.summable(one.compressor, normal(3, n)(0))
    n = math.prod(SHAPE)
    x = normal(1, n)(0)
    stream = laws._peer(0, 1).private(one.compressor.id)
    wire = one.compressor.compress_(x, stream, False)
    size = wire.numel() * wire.element_size()
    said = one.compressor.facts(n).payload
    summable = "; wires can be summed" if one.compressor.summable else ""
    declared = "depends on the data" if said is None else f"{said:,} bytes"
    measured = f"{size:,} bytes, {8 * size / n:.3g} bits per number"
    return _Told(measured, declared + summable, numbers={"bytes": size, "elements": n})


def _fused(one: Subject, profile: Profile) -> _Told:
    others = [grace.method("none"), grace.method("powersgd:rank=1,min_rate=0.1")]
    for world in _worlds(one, profile):
        for method in one.all:
            laws.fused_equals_alone(
                [method, others[0], method, others[1], method],
                [_workers(make, world) for make in (normal(13, 7), normal(5), heavy(6, 6), normal(6, 5), normal(31))],
            )
    return _Told(f"bit for bit, {_listed(_worlds(one, profile))} workers")


def _donation(one: Subject, profile: Profile) -> _Told:
    for name in ("odd size", "f16", "non-contiguous"):
        laws.answers_may_alias(one.core, _workers(UGLY[name], max(2, one.least_world)))
    return _Told("bit for bit")


def _rest(one: Subject, profile: Profile) -> _Told:
    if not one.conserves:
        return _not_promised("it has no rest")
    for name in ("normal", "odd size", "f16", "f64"):
        laws.rest_is_free(one.core, _workers(UGLY[name], max(2, one.least_world)))
    return _Told("bit for bit")


def _randomness(one: Subject, profile: Profile) -> _Told:
    for method in one.all:
        for xs in (_some(one), _workers(UGLY["zeros"], max(2, one.least_world))):
            laws.own_randomness(method, xs)
    said = one.core.facts(torch.empty(SHAPE, device="meta")).deterministic
    return _Told("as declared; global generators untouched", "deterministic" if said else "random")


def _state(one: Subject, profile: Profile) -> _Told:
    steps = [_workers(normal(12, 8, seed=t), max(2, one.least_world)) for t in range(4)]
    for method in one.all:
        laws.state_survives(method, steps, stop=2)
    return _Told("bit for bit, saved after 2 of 4 steps")


def _nonfinite(one: Subject, profile: Profile) -> _Told:
    names = ("normal", "one element", "f16", *(("0-d", "f64", "zeros", "channels last") if profile.ugly else ()))
    cases = [(name, bad) for bad in (math.nan, math.inf, -math.inf) for name in names]
    for name, bad in cases[:: 1 if profile.every else 4]:
        xs = _workers(UGLY[name], max(2, one.least_world))
        steps = [xs, [x * 2 for x in xs], [-x for x in xs]]
        for method in one.all:
            laws.nonfinite_is_agreed(method, steps, bad, rank=len(xs) - 1, at=xs[0].numel() // 2)
    return _Told("inf, -inf and NaN: NaN on all ranks, memories untouched")


def _failure(one: Subject, profile: Profile) -> _Told:
    for method in one.all:
        for make in (normal(*SHAPE), UGLY["empty"]):
            laws.failure_leaves_memory(method, _workers(make, max(2, one.least_world)))
    return _Told("in every round")


def _corruption(one: Subject, profile: Profile) -> _Told:
    trials = refused = 0
    for method in one.all:
        for xs in (_some(one), _workers(normal(5), max(2, one.least_world))):
            found = laws.corruption_is_refused(method, xs, profile.trials)
            trials, refused = trials + found[0], refused + found[1]
    if not trials:
        return _not_promised("no bytes are gathered; the network sums numbers")
    return _Told(f"{refused} of {trials} refused, the others finite", numbers={"trials": trials, "refused": refused})


def _edges(one: Subject, profile: Profile) -> _Told:
    worlds = _worlds(one, profile)
    one.method.facts(torch.empty(0, device="meta"))  # whatever it says, it says something
    for i, name in enumerate(EDGES):
        xs = _workers(UGLY[name], worlds[i % len(worlds)])
        for method in one.all if profile.every else [one.all[i % len(one.all)]]:
            _naming(name, laws.agreement, method, xs)
            _naming(name, laws.finite_stays_finite, method, xs)
        if one.conserves:
            _naming(name, laws.conservation, one.core, xs)
    xs = _workers(HUGE, worlds[-1])
    for method in one.all:
        _naming("huge", laws.agreement, method, xs)
    finite = bool(laws.run(one.method, xs)[0].mean.isfinite().all())
    return _Told(f"{len(EDGES) + 1} inputs; 1e38 {'stays finite' if finite else 'overflows'}")


def _naming(name: str, law: Callable[..., T], *arguments: Any) -> T:
    """What the law returns; if it is broken, the error names the input."""
    try:
        return law(*arguments)
    except Exception as error:
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        raise AssertionError(f"{name}: {kind}{error}") from error


def _speed(one: Subject, profile: Profile) -> _Told:
    if one.least_world > 1:
        return _not_promised("measured with one worker, and this needs more")
    found = measure.speed(one.core, profile.numbers)
    parts = {"encode": found.encode, "decode": found.decode} if found.decode is not None else {"step": found.encode}
    words = ", ".join(f"{what} {1e3 * t:.3g} ms ({t / found.add:.3g} x)" for what, t in parts.items() if t is not None)
    return _Told(words, f"{found.numbers:,} numbers; x: torch add_", "told", "", asdict(found))


def _declared(name: str, one: Subject) -> str:
    """What a broken law promised, in words."""
    facts = one.core.facts(torch.empty(SHAPE, device="meta"))
    if name == "error bound":
        return _claims(facts)
    return {"unbiased": "unbiased" if facts.unbiased else "biased"}.get(name, "")


CHECKS: dict[str, Callable[[Subject, Profile], _Told]] = {
    "agreement": _agreement,
    "conservation": _conservation,
    "nothing lost": _nothing_lost,
    "unbiased": _unbiased,
    "error bound": _error,
    "traffic": _traffic,
    "payload": _payload,
    "fused equals alone": _fused,
    "answers in place": _donation,
    "rest is free": _rest,
    "randomness": _randomness,
    "state survives": _state,
    "non-finite agreed": _nonfinite,
    "failure": _failure,
    "corruption": _corruption,
    "edge inputs": _edges,
    "speed": _speed,
}
