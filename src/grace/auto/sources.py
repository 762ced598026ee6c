"""Sources of what ``auto`` knows: what it measures before and between steps, what it proposes by that, and what steps take.

Codecs and the link are measured in ``attach``, the model in some of the first steps, and a timeline says which plans are worth
trying. :class:`OnHost` does so on processors, by the host's clock; on GPUs, by the device's, see :mod:`grace.auto.device`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grace.auto.calibrate import Calibration, Told, agree_on, calibrate, learn, stragglers, unsure_of
from grace.auto.choices import problem_of
from grace.auto.classes import keeps_memory
from grace.auto.model import STEPS, StepClock, model_of
from grace.auto.planner import Part, Plan, Problem, propose, propose_again
from grace.errors import GraceWarning, TransportError, stack_level
from grace.predict.probe import Meter, Probe
from grace.predict.rates import Rate, Rater
from grace.transports.base import Transport

if TYPE_CHECKING:
    from grace.auto.driver import Driver

SIZES, SECONDS = (4, 1 << 17, 1 << 20), 0.025  # bytes of collectives, and what one of them may take
CODEC_NS = 120_000_000  # what codecs may take
_WARM, _SAMPLES = 1, 2


class OnHost:
    """The source on processors, by the host's clock. To derive from.

    Attributes:
        late: steps after which :meth:`known` has what one took, and :meth:`told` what all ranks were told; where it is 0, the
            host's clock times exchanges, too.
        holds: whether the first steps hold buckets, or wait for them, so that the model is undisturbed; and later ones, so
            that buckets travel as one.
        listens: steps that it listens to. meanwhile: the reason for what is used until then.
        aside: nanoseconds that were spent beside the budget, by what on.
    """

    late, holds, listens, meanwhile = 0, True, STEPS + 1, "what codecs and the link said"
    _meter: Meter | None = None  # of codecs and the link; None: on processors

    def __init__(self, driver: Driver):
        self._driver = driver
        self._last: Any = None  # nanoseconds of the host's clock when the last step ended
        self._rows: list[list[int]] = []
        self.aside: dict[str, int] = {}

    # ---- what is measured -------------------------------------------------------------------------------------------
    def begin(self) -> Plan:
        """Measures before the first step; the plan that is used until more is known. All ranks call it."""
        driver, site, where = self._driver, self._driver.site, self._where()
        kept = [method for _, method in driver.settings.keep if method not in driver.methods]
        tensors = [math.prod(shape) for shape in driver.buckets.exchanged.values()]
        largest = max(*tensors, *driver.buckets.numbers, min(sum(tensors), driver.session.options.bucket_bytes // 4))
        candidates = [*driver.methods[:2], *kept, *driver.methods[2:]]
        driver.known = calibrate(
            driver.session.network, candidates, largest, way=site.way, beside=site.beside, meter=self._meter, **where
        )
        driver.left_out = {**driver.left_out, **driver.known.left_out}
        if why := site.refuse_memory(driver.known.memory):
            driver.left_out.update((name, why) for name in driver.methods if keeps_memory(name))
            driver.methods = [name for name in driver.methods if not keeps_memory(name)]
        driver.methods = [name for name in driver.methods if name in driver.known.rates]
        self._name_stragglers(driver.known.codecs)
        return self._first()

    def _where(self) -> dict[str, Any]:
        """Further arguments of :func:`grace.auto.calibrate.calibrate`; asked before it is known what is measured."""
        return {}

    def _first(self) -> Plan:
        # until errors are known, only what needs none
        driver = self._driver
        careful = driver.methods if driver.settings.error is None else driver.methods[:2]
        problem = problem_of(
            driver.buckets, None, driver.known, careful, fuses=driver.site.holds, factors=driver.factors
        )
        plans = [plan for method in problem.methods if (plan := problem.uniform(method)) is not None]
        return min(plans, key=lambda plan: plan.cost)

    def listen(self, buckets: int) -> StepClock:
        """Begins to listen to steps of so many buckets."""
        return StepClock(buckets, clock=self._driver.clock)

    def learn(self, rows: Sequence[Sequence[int]], steps: int) -> bool:
        """Takes what all ranks have listened to, in so many steps; False: it was too little."""
        driver = self._driver
        driver.model = model_of(rows)
        driver.holding += int(1e9 * driver.model.exposed) * steps
        self._name_stragglers([driver.model.computing])
        return True

    def _name_stragglers(self, told: Sequence[Told]) -> None:
        if self._driver.speaks:
            for text in stragglers(told):
                warnings.warn(f"auto: {text}: compression cannot mend that", GraceWarning, stacklevel=stack_level())

    # ---- what is proposed -------------------------------------------------------------------------------------------
    def problem(self) -> Problem:
        """The planning problem, from all that is known."""
        driver = self._driver
        return problem_of(
            driver.buckets, driver.model, driver.known, driver.methods, driver.losses.of, driver.settings.error,
            fuses=driver.site.holds and self.holds, factors=driver.factors,
        )  # fmt: skip

    @property
    def methods(self) -> Sequence[str]:
        """The methods that a plan may have, in the same order on all ranks."""
        return list(self._driver.known.rates)

    def plan(self, parts: Sequence[Part]) -> Plan | None:
        """The plan of these parts; None: one of them cannot be."""
        return self.problem().plan(parts)

    def propose(self, loaded: Plan | None) -> tuple[list[Plan], int, list[int]]:
        """As :func:`grace.auto.planner.propose`."""
        return propose(self.problem(), loaded)

    def again(self, *, alarm: bool) -> tuple[list[Plan], list[int]]:
        """Measures again, between two steps, and proposes: as :func:`grace.auto.planner.propose_again`."""
        driver, controller = self._driver, self._driver.controller
        assert controller is not None
        used = dict.fromkeys(method for choice in driver.choices for method in choice.plan.methods)
        # of all candidates, or old numbers would compete with new ones
        driver.known = look(
            driver.session.network, driver.known, list(driver.known.rates), first=list(used), beside=driver.site.beside,
            meter=self._meter,
        )  # fmt: skip
        return propose_again(
            self.problem(), [choice.plan.parts for choice in driver.choices], controller.current, alarm=alarm,
            verified=controller.verified_at is not None,
        )  # fmt: skip

    def bucket(self, number: int) -> tuple[float, Mapping[str, float]]:
        """Readiness of a bucket, as a share of the step, and seconds of its exchange under each method, as predicted."""
        problem = self.problem()
        jobs = {method: problem.job(Part(number, number + 1, method)) for method in problem.methods}
        times = {method: sum(seconds for _, seconds in job) for method, job in jobs.items() if job is not None}
        return problem.ready[number], times

    # ---- what steps take --------------------------------------------------------------------------------------------
    def ended(self, step: int, counts: bool) -> int:
        """A step has ended: nanoseconds that it took; 0: they are unknown, or :meth:`known` later. ``step``: its number; one
        that is another step does not count.
        """
        now, last = self._driver.clock(), self._last
        self._last = now
        return now - last if last and counts else 0

    def goes_on(self) -> None:
        """Whatever was done after a step is over: what comes belongs to the next one."""
        self._last = self._driver.clock()

    def broke(self) -> None:
        """A step was broken off: it is no measure of others."""
        self._last = None

    def known(self, step: int, *, due: bool) -> list[tuple[int, int, bool]]:
        """Number, nanoseconds, and whether it has compiled, of earlier steps that are known when this one ends, and were not
        yet; ``due``: of all steps that ended ``late`` steps ago.
        """
        return []

    def tell(self, values: Sequence[int]) -> None:
        """Begins to tell all ranks whole numbers."""
        self._rows = self._driver.tell(values)

    def told(self) -> list[list[int]]:
        """Everyone's numbers, as :meth:`tell` has begun to tell them."""
        return self._rows


# ---- again, between two steps -----------------------------------------------------------------------------------------
def look(
    transport: Transport,
    known: Calibration,
    methods: Sequence[str],
    *,
    first: Sequence[str] = (),
    beside: Transport | None = None,
    clock: Callable[[], int] = time.monotonic_ns,
    meter: Meter | None = None,
) -> Calibration:
    """Measures again: three sizes of the kinds of collectives that these candidates need, and codecs, of what is ``first``
    before others. All ranks call it. Where there is no time for a codec, it changes by as much as the others did; the rest of
    what is known stays.

    Raises:
        TransportError: the link failed meanwhile; on all ranks.
    """
    probe = Probe(
        transport, known.timings.cores, most_seconds=SECONDS, repeats=lambda size: 2, beside=beside, meter=meter
    )
    kinds = dict.fromkeys(kind for name in methods for kind, _, _ in known.rates[name].moved)
    try:
        told = [Told(kind, learn(probe, kind, SIZES)) for kind in kinds]
        rater = Rater(_SAMPLES, _WARM, known.way, meter)
        rates, codecs, codec_ns = _codecs_again(probe, rater, known, [*first, *methods], clock)
    except TransportError as error:
        raise TransportError(f"while auto measured the link and the codecs again: {error}") from error
    timings = replace(known.timings, kinds={**known.timings.kinds, **probe.timings.kinds})
    others = [link for link in known.links if link.what not in kinds]
    spent = {**known.spent, "looks": known.spent.get("looks", 0) + probe.spent + codec_ns}
    unsure = unsure_of(timings, dict.fromkeys(known.unsure, SIZES[-1]))
    return replace(
        known, timings=timings, links=(*others, *told), rates=rates, codecs=codecs, spent=spent, unsure=unsure
    )


def _codecs_again(
    probe: Probe, rater: Rater, known: Calibration, wanted: Sequence[str], clock: Callable[[], int]
) -> tuple[dict[str, Rate], tuple[Told, ...], int]:
    """Rates, what each rank measured, and nanoseconds that it took. What would take longer than there is time is left."""
    start, spent, numbers = clock(), 0, rater.numbers[1]
    pace: dict[str, float] = {}
    took = would = 0.0
    told = {codec.what: codec for codec in known.codecs}
    names = [name for name in dict.fromkeys(wanted) if name in known.rates]
    for name in names:
        before = known.rates[name].seconds(numbers)
        if spent + (_WARM + _SAMPLES) * before * 1e9 > CODEC_NS:
            continue
        agreed = agree_on(probe, rater, name, numbers, math.inf, lambda: clock() - start)
        spent = agreed.spent
        if agreed.sample is not None and before > 0:
            pace[name] = agreed.sample.seconds / before
            took, would = took + agreed.sample.seconds, would + before
            told[name] = Told(name, agreed.ns)
    usual = took / would if would else 1.0
    rates = {name: rate.paced(pace.get(name, usual)) for name, rate in known.rates.items()}
    return rates, tuple(told.values()), spent
