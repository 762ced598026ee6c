"""The choices of ``auto`` and their reasons, in words and numbers: ``print(handle.explain())``,
``grace explain --run FILE``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grace.auto.calibrate import stragglers
from grace.auto.classes import EXACT, NAMES, evidence_of, extrapolates, steps_of
from grace.auto.device import NOT_RUN
from grace.auto.planner import Plan
from grace.auto.trial import Gain, Trial, measured_gain
from grace.errors import InputError

if TYPE_CHECKING:
    from grace.auto.controller import Controller
    from grace.auto.driver import Driver

SCHEMA, VERSION = "grace.auto", 1
_LATER = ("goal", "steps", "extrapolated")  # what documents of the same version may lack, or have as null
_REJECTED = 3  # that are named for a bucket
_COLUMNS = (
    "ready: share of a step's computation after which the bucket can go. predicted, measured: time of its exchange in a step "
    "on this rank, codecs and waiting for others included; -: no exchange was timed yet."
)


@dataclass(frozen=True)
class Bucket:
    """A bucket. numbers: in it. tensors: their names. ready: share of the step after which it comes; null: not measured.
    method: chosen. seconds: of its exchange, predicted; null: nothing is predicted here. others: the same of methods that
    were not chosen, the fastest first. fused: whether it travels with a neighbour. measured: seconds of its last exchanges on
    this rank, codecs and waiting for others included, in the median; of buckets that travel as one, the last one says it.
    null: there was none.
    """

    numbers: int
    tensors: tuple[str, ...]
    ready: float | None
    method: str
    seconds: float | None
    others: Mapping[str, float]
    fused: bool
    measured: float | None = None


@dataclass(frozen=True)
class Candidate:
    """A plan that was offered. words: it. predicted, measured: seconds of a step; null: it was not. factor: steps of it
    that come as far as one of bf16, under the goal "time".
    """

    words: str
    predicted: float | None
    measured: float | None
    factor: float = 1.0


@dataclass(frozen=True)
class Tried:
    """A trial. step: at which it ended, or stopped to go on later. incumbent, rival: numbers of candidates. why: it came.
    won: whether the rival did. words: how. pairs: seconds of a step, (incumbent's, rival's).
    """

    step: int
    incumbent: int
    rival: int
    why: str
    won: bool
    words: str
    pairs: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Explanation:
    """The choices of ``auto``, and their reasons. It prints as text; :meth:`save` writes what ``grace explain --run`` reads.

    Attributes:
        settings: what the user said. workers, transport, cores: of the run; cores of one worker. replicas: of a model that is
            sharded among the workers of each; 1: gradients go between all workers.
        stage: "ended: ...", "measuring", or "running".
        step: of the run. chosen: number of the candidate that is used.
        candidates: plans, fp32 and bf16 among them. buckets: under the chosen one.
        verified_at: the step at which real steps had shown that it is no slower than fp32 and bf16; null: predicted only.
        compute: seconds of the model's own step; null: not measured yet.
        trials, events: what has happened. waits, hopeless: why something is not tried.
        spent: seconds, by what for. elapsed: of the run.
        left_out: methods, and why. evidence: on what it rests that a method may be used. stragglers: ranks that are slow.
        goal: "steps" or "time". steps: of the methods that are used, to bf16's quality, in words.
        extrapolated: in what this run differs from those that the evidence rests on, in words.
        gain: over the one of fp32 and bf16 that was measured to be better, by paired steps; None: not measured.
    """

    settings: str
    workers: int
    transport: str
    cores: float
    stage: str
    step: int
    chosen: int | None
    candidates: tuple[Candidate, ...]
    buckets: tuple[Bucket, ...]
    verified_at: int | None
    compute: float | None
    trials: tuple[Tried, ...]
    events: tuple[tuple[int, str], ...]
    waits: str | None
    hopeless: str | None
    spent: Mapping[str, float]
    elapsed: float
    left_out: Mapping[str, str]
    evidence: Mapping[str, str]
    stragglers: tuple[str, ...] = ()
    policy: str = field(default="", repr=False)
    replicas: int = 1
    goal: str = "steps"
    steps: Mapping[str, str] = field(default_factory=dict)
    extrapolated: tuple[str, ...] = ()

    @property
    def spent_share(self) -> float:
        """Share of the run's time that measuring and trying have taken."""
        return sum(self.spent.values()) / max(1e-9, self.elapsed)

    @property
    def gain(self) -> Gain | None:
        """Gain of the chosen plan over the one of fp32 and bf16 that was measured to be better; None: not measured."""
        if self.chosen is None:
            return None
        plain = [k for k, candidate in enumerate(self.candidates) if candidate.words in NAMES.values()]
        return measured_gain(self.trials, self.chosen, plain)

    @property
    def history(self) -> list[tuple[int, str]]:
        """Steps and words: what was planned, noticed and tried, in order, as the log tells it."""
        names = [candidate.words for candidate in self.candidates]
        tried = [(trial.step, trial_line(names[trial.rival], names[trial.incumbent], trial)) for trial in self.trials]
        return sorted([*self.events, *tried], key=lambda pair: pair[0])

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        gain = self.gain
        measured = None if gain is None else {**asdict(gain), "over": self.candidates[gain.over].words}
        more = {"spent_share": self.spent_share, "gain": measured}
        return {"schema": SCHEMA, "version": VERSION, **asdict(self), **more}

    def save(self, path: str | Path) -> None:
        """Writes it as JSON."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Explanation:
        """Reads what :meth:`save` has written, or a result of ``grace bench train`` under ``auto``.

        Raises:
            InputError: it is something else.
        """
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls.read(document.get("auto") or document)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is no explanation of auto ({type(error).__name__}: {error}); handle.explain().save(FILE) writes one"
            ) from error

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Explanation:
        """The inverse of :meth:`as_dict`.

        Raises:
            ValueError: it is of another schema or version.
        """
        if document.get("schema") != SCHEMA or document.get("version") != VERSION:
            raise ValueError(
                f"schema {document.get('schema')!r}, version {document.get('version')!r}; legal: {SCHEMA!r}, {VERSION}"
            )
        later = {name: document[name] for name in _LATER if document.get(name) is not None}
        values = {name: document[name] for name in cls.__dataclass_fields__ if name not in _LATER} | later
        values["candidates"] = tuple(Candidate(**fields) for fields in document["candidates"])
        values["buckets"] = tuple(
            Bucket(**{**fields, "tensors": tuple(fields["tensors"])}) for fields in document["buckets"]
        )
        values["trials"] = tuple(
            Tried(**{**fields, "pairs": tuple(map(tuple, fields["pairs"]))}) for fields in document["trials"]
        )
        values["events"] = tuple((step, text) for step, text in document["events"])
        values["stragglers"] = tuple(document["stragglers"])
        values["extrapolated"] = tuple(later.get("extrapolated", ()))
        return cls(**values)

    def __str__(self) -> str:
        lines = [f"{self.settings}, {self._who()} over {self.transport}: {self._verdict()}"]
        lines += self._table()
        lines += [f"  {candidate.words}: {_step(candidate)}" for candidate in self.candidates]
        lines += [f"  step {step}: {text}" for step, text in self.history]
        if self.waits is not None:
            lines.append(f"Waits: {self.waits}.")
        spent = ", ".join(f"{what} {seconds:.2g}" for what, seconds in self.spent.items() if seconds >= 0.005)
        total = sum(self.spent.values())
        lines.append(
            f"spent {total:.1f} s in {_time(self.elapsed)} ({self.spent_share:.1%}){': ' + spent if spent else ''}."
        )
        lines += [f"{text[0].upper()}{text[1:]}." for text in self.stragglers]
        lines += [
            f"{_name(method)} may be used: {text}; to bf16's quality: {self.steps.get(method, 'not known')}."
            for method, text in self.evidence.items()
            if method not in NAMES
        ]
        lines += [f"{text[0].upper()}{text[1:]}." for text in self.extrapolated]
        lines += [f"{method} left out: {why}." for method, why in self.left_out.items()]
        return "\n".join(lines)

    def _who(self) -> str:
        if self.replicas == 1:
            return f"{self.workers} workers"
        return f"{self.workers} workers, {self.replicas} replicas of {self.workers // self.replicas} shards,"

    def _verdict(self) -> str:
        if self.chosen is None:
            return self.stage
        words = f"{self.candidates[self.chosen].words}"
        if self.stage != "running":
            return f"{words}; {self.stage}"
        if self.hopeless is not None:
            return f"{words}; not verified, as {self.hopeless}"
        if self.verified_at is None:
            known = self.candidates[self.chosen].predicted is not None
            return f"{words}; {'predicted, not verified' if known else 'compared with nothing yet'}"
        if self.candidates[self.chosen].words in NAMES.values():
            return f"{words}; nothing that may be used was faster, as real steps showed at step {self.verified_at}"
        return f"{words}; verified at step {self.verified_at}, {self._gain()}"

    def _gain(self) -> str:
        gain = self.gain
        if gain is None:
            return "gain not measured: it ran in no pair with fp32 or bf16"
        name, pairs = self.candidates[gain.over].words, "1 pair" if gain.pairs == 1 else f"{gain.pairs} pairs"
        text = f"{gain.median:.2f} times as fast as {name} in the median of {pairs} ({gain.low:.2f} to {gain.high:.2f})"
        factor = 1.0 if self.chosen is None else self.candidates[self.chosen].factor
        if factor == 1:
            return text
        return f"{text}, with at most {factor:.3g} times the steps: {gain.median / factor:.2f} times as soon there"

    def _table(self) -> list[str]:
        if not self.buckets:
            return []
        rows = [("bucket", "numbers", "ready", "chosen", "predicted", "measured", "rejected")]
        for k, bucket in enumerate(self.buckets):
            rows.append(
                (
                    str(k),
                    f"{bucket.numbers:,}",
                    "-" if bucket.ready is None else f"{bucket.ready:.2f}",
                    _name(bucket.method) + (" (with a neighbour)" if bucket.fused else ""),
                    _ms(bucket.seconds),
                    _measured(bucket),
                    _rejected(bucket),
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        right = (0, 1, 2, 4, 5)
        cells = [
            [(cell, width, i in right) for i, (cell, width) in enumerate(zip(row, widths, strict=True))] for row in rows
        ]
        lines = ["  ".join(c.rjust(w) if last else c.ljust(w) for c, w, last in row).rstrip() for row in cells]
        return [*lines, _COLUMNS]


def explain(driver: Driver) -> Explanation:
    """Explains the choices of a driver so far."""
    controller, model, known = driver.controller, driver.model, driver.known
    chosen = None if controller is None else controller.current
    candidates: list[Candidate] = []
    buckets: list[Bucket] = []
    if controller is not None and chosen is not None:
        for k, trial in enumerate(driver.choices):
            measured = controller.measured.get(k)
            taken = None if measured is None else measured / 1e9
            candidates.append(Candidate(name_plan(trial.plan), controller.predicted[k] / 1e9, taken, trial.plan.factor))
        buckets = find_buckets(driver)
    stage = f"ended: {driver.ended_by}" if driver.ended_by else "measuring" if controller is None else "running"
    told = [*known.codecs, *([model.computing] if model is not None else [])]
    used = dict.fromkeys(method for choice in driver.choices for method in choice.plan.methods)
    world, beside = driver.session.world, driver.site.beside
    return Explanation(
        str(driver.settings), world * (1 if beside is None else beside.world), driver.session.transport, known.cores, stage,
        driver.session.worker.step,
        chosen, tuple(candidates), tuple(buckets), None if controller is None else controller.verified_at,
        None if model is None else model.compute,
        () if controller is None else tuple(
            Tried(
                trial.step, trial.incumbent, trial.rival, trial.why, bool(trial.won), trial.words,
                tuple((rival / 1e9, theirs / 1e9) for rival, theirs in trial.pairs),
            )
            for trial in controller.trials
        ),
        (*(() if controller is None else controller.events), *driver.history.events),
        waits_line(driver, controller),
        None if controller is None else controller.hopeless,
        {what: ns / 1e9 for what, ns in driver.spent.items()}, driver.elapsed / 1e9, dict(driver.left_out),
        {method: evidence_of(method) for method in used}, tuple(stragglers(told)), repr(driver.session.worker.home),
        1 if beside is None else world, driver.settings.goal, {method: steps_of(method) for method in used},
        (
            *(extrapolates(world * (1 if beside is None else beside.world), driver.site.beyond) if set(used) - set(EXACT)
              else ()),
            *((NOT_RUN,) if known.device else ()),
        ),
    )  # fmt: skip


def find_buckets(driver: Driver) -> list[Bucket]:
    """The buckets under the choice that a driver uses, or goes back to after a trial."""
    assert driver.controller is not None
    number = driver.controller.current
    buckets = []
    for part in driver.choices[number].plan.parts:
        for j in range(part.first, part.end):
            ready, times = driver.source.bucket(j)
            others = dict(sorted(((m, t) for m, t in times.items() if m != part.method), key=lambda pair: pair[1]))
            names = driver.buckets.names[j]
            buckets.append(
                Bucket(
                    driver.buckets.numbers[j],
                    names,
                    ready,
                    part.method,
                    times.get(part.method, 0.0),
                    others,
                    part.end > part.first + 1,
                    driver.history.median(number, j),
                )
            )
    return buckets


def bucket_lines(buckets: Sequence[Bucket]) -> list[str]:
    """A line for each bucket: what was chosen, predicted, measured and rejected."""
    lines = []
    for k, bucket in enumerate(buckets):
        fused = ", with a neighbour" if bucket.fused else ""
        measured = "" if bucket.measured is None else f", {_measured(bucket)} measured"
        rejected = f"; rejected: {_rejected(bucket)}" if bucket.others else ""
        lines.append(
            f"bucket {k}, {bucket.numbers:,} numbers: {_name(bucket.method)}{fused}, {_ms(bucket.seconds)} predicted"
            f"{measured}{rejected}"
        )
    return lines


def trial_line(rival: str, incumbent: str, trial: Tried | Trial) -> str:
    """The result of a trial of one plan against another, in words and numbers."""
    pairs = [(float(rival), float(theirs)) for rival, theirs in trial.pairs]
    numbers = ""
    if len(pairs) > 1:
        unit = 1e3 if isinstance(trial, Tried) else 1e-6
        rival_ms, theirs = (sorted(pair[k] for pair in pairs)[(len(pairs) - 1) // 2] * unit for k in (0, 1))
        numbers = f"; {theirs:.1f} ms a step beside {rival_ms:.1f} in the median of {len(pairs)} pairs"
    return (
        f"{rival} {'replaces' if trial.won else 'does not replace'} {incumbent}: {trial.words}{numbers} ({trial.why})"
    )


def waits_line(driver: Driver, controller: Controller | None) -> str | None:
    """A line about plans that are not tried yet: which, why, and what is tried instead; None: none waits."""
    if controller is None:
        left = driver.listens_for
        return f"the model is known after {left} more steps, and until then nothing is tried" if left else None
    if not controller.waits:
        return None
    names = [name_plan(choice.plan) for choice in driver.choices]
    lines = [f"{names[number]}: {why}" for number, why in controller.waits.items()]
    return "; ".join(lines) + (f"; {names[controller.plan]} is tried meanwhile" if controller.trying else "")


def name_plan(plan: Plan) -> str:
    """A plan in words: "fp32", "topk", "topk for 3 of 4 buckets, bf16 for 1"."""
    return NAMES.get(str(plan), str(plan))


def _measured(bucket: Bucket) -> str:
    return _ms(bucket.measured)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f} ms"


def _rejected(bucket: Bucket) -> str:
    return "; ".join(f"{_name(name)} {1e3 * s:.1f} ms" for name, s in list(bucket.others.items())[:_REJECTED])


def _name(method: str) -> str:
    return NAMES.get(method, method)


def _step(candidate: Candidate) -> str:
    measured = [] if candidate.measured is None else [f"{1e3 * candidate.measured:.1f} ms a step measured"]
    predicted = [] if candidate.predicted is None else [f"{1e3 * candidate.predicted:.1f} predicted"]
    text = ", ".join([*measured, *predicted]) or "not tried yet"
    known = candidate.predicted if candidate.measured is None else candidate.measured
    if candidate.factor == 1 or known is None:
        return text
    worth = 1e3 * candidate.factor * known
    return f"{text}; times {candidate.factor:.3g}, the steps to bf16's quality: {worth:.1f} ms"


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
