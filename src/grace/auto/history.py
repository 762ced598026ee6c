"""The log of ``auto``, line by line, as it happens: for ``explain``, and at INFO in rank 0's log (the logger ``grace``)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grace.auto.explain import bucket_lines, find_buckets, name_plan, trial_line, waits_line
from grace.auto.planner import Plan

if TYPE_CHECKING:
    from grace.auto.driver import Driver

_log = logging.getLogger("grace")
_RECENT = 15  # exchanges of a bucket whose median is what it takes


class History:
    """The events of one driver, and what exchanges of its buckets took.

    Attributes:
        events: step and words, of what the controller does not know of.
    """

    def __init__(self, driver: Driver):
        self._driver = driver
        self.events: list[tuple[int, str]] = []
        self._took: dict[tuple[int, int], list[int]] = {}
        self._trials = self._alarms = 0  # of the controller, that were told
        self._waits: dict[int, str] = {}

    # ---- exchanges of buckets ---------------------------------------------------------------------------------------
    def exchanged(self, choice: int, bucket: int, nanoseconds: int) -> None:
        """Under this choice the exchange that ended with this bucket took so long."""
        took = self._took.setdefault((choice, bucket), [])
        took.append(nanoseconds)
        del took[:-_RECENT]

    def median(self, choice: int, bucket: int) -> float | None:
        """Seconds of the last exchanges that ended with this bucket under this choice; None: there was none."""
        took = sorted(self._took.get((choice, bucket), ()))
        return took[(len(took) - 1) // 2] / 1e9 if took else None

    # ---- decisions --------------------------------------------------------------------------------------------------
    def measured(self, first: Plan) -> None:
        """Codecs and the link are known, and this plan is used until the model is."""
        known = self._driver.known
        if self._driver.site.note:
            self._add(self._driver.site.note)
        seconds = sum(known.spent.values()) / 1e9
        kinds = [
            f"{kind} of {_bytes(timing.sizes[-1])} takes {1e3 * timing.seconds[-1]:.1f} ms"
            for kind, timing in known.timings.kinds.items()
            if timing.sizes
        ]
        self._add(
            f"measured {len(known.rates)} codecs and the link in {seconds:.1f} s: {', '.join(kinds)}; "
            f"{name_plan(first)} until the model is known"
        )

    def planned(self, challengers: Sequence[int]) -> None:
        """The model is known, and choices are offered."""
        driver = self._driver
        controller, model = driver.controller, driver.model
        assert controller is not None
        self._took.clear()
        self._trials = self._alarms = 0
        plans = [choice.plan for choice in driver.choices]
        used = plans[controller.current]
        if model is None:
            words = f"a step takes {1e3 * used.seconds:.1f} ms"
        else:
            words = f"a step takes {1e3 * model.compute:.1f} ms without communication; {self._predictions(plans)}"
        self._add(f"{words}; uses {name_plan(used)}{self._tries(challengers)}")
        self._say_buckets()

    def looked(self, plans: Sequence[Plan], challengers: Sequence[int], why: str) -> None:
        """The link was measured again, and these plans were predicted anew."""
        self._add(f"measured the link again, as {why}; {self._predictions(plans)}{self._tries(challengers)}")

    def loaded(self, measured: str) -> None:
        """A state or a checkpoint was loaded, whose methods are used from now on. ``measured``: among whom, if elsewhere."""
        methods, known = self._used(), self._driver.known
        if measured:
            self._add(
                f"goes on with the methods of a state that was saved among {measured}; here are {known.fingerprint}: all is "
                f"measured anew. They are {methods}"
            )
        else:
            self._add(f"goes on with the methods of a state that was loaded, {methods}, until the model is known")

    def left(self) -> None:
        """Notes that the loaded methods are left: they are none of the plans that may be used."""
        self._add(
            f"leaves the methods of the state that was loaded, {self._used()}: not all are among those measured here"
        )

    def unusable(self, why: str) -> None:
        """A state or a checkpoint was loaded, and its methods cannot be used."""
        self._add(f"cannot use the methods of the state that was loaded, and chooses anew: {why}")

    def _used(self) -> str:
        """The methods that are used for this rank's tensors."""
        return ", ".join(sorted(set(self._driver.session.methods().values())))

    def heard(self) -> None:
        """All ranks have told of a block: tells what has come of it."""
        controller = self._driver.controller
        assert controller is not None
        names = [name_plan(choice.plan) for choice in self._driver.choices]
        news = [(step, text) for step, text in controller.events[self._alarms :]]
        trials = controller.trials[self._trials :]
        self._alarms, self._trials = len(controller.events), len(controller.trials)
        news += [(trial.step, trial_line(names[trial.rival], names[trial.incumbent], trial)) for trial in trials]
        for step, text in news:
            self._say(step, text)
        if any(trial.won for trial in trials):
            self._say_buckets()
        if controller.waits != self._waits:
            self._waits = controller.waits
            if controller.waits:
                self._say(controller.step, f"waits: {waits_line(self._driver, controller)}")

    def ended(self) -> None:
        """It chooses no more."""
        self._say(self._driver.session.worker.step, f"ended: {self._driver.ended_by}")

    # ---- how --------------------------------------------------------------------------------------------------------
    def _predictions(self, plans: Sequence[Plan]) -> str:
        times = {plan: "" if plan.factor == 1 else f" times {plan.factor:.3g} as many steps" for plan in plans}
        words = ", ".join(f"{name_plan(plan)} {1e3 * plan.seconds:.1f} ms{more}" for plan, more in times.items())
        return f"predicted: {words}"

    def _tries(self, challengers: Sequence[int]) -> str:
        plans = [name_plan(self._driver.choices[number].plan) for number in challengers]
        return f"; tries {', then '.join(plans)}" if plans else "; tries nothing"

    def _add(self, text: str) -> None:
        step = self._driver.session.worker.step
        self.events.append((step, text))
        self._say(step, text)

    def _say(self, step: int, text: str) -> None:
        if self._driver.speaks:
            _log.info("auto, step %d: %s", step, text)

    def _say_buckets(self) -> None:
        """A line for each bucket, where somebody listens."""
        driver = self._driver
        if driver.speaks and driver.controller is not None and _log.isEnabledFor(logging.INFO):
            for line in bucket_lines(find_buckets(driver)):
                _log.info("auto, step %d: %s", driver.session.worker.step, line)


def _bytes(count: int) -> str:
    for size, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count} bytes"
