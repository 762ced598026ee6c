"""``auto`` at work on one session: it measures, plans, offers choices, and says before each step which one is used.

An adapter calls :meth:`Driver.begin` when the ranks have agreed, :meth:`Driver.comes` when a bucket comes,
:meth:`Driver.holds` before it exchanges one, and :meth:`Driver.ended` when a step's last exchange is over; the last two in
the order in which buckets are exchanged, in the thread that exchanges.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from grace.auto.calibrate import Calibration, calibrate, stragglers
from grace.auto.choices import Buckets, Choice, policy_of, problem_of
from grace.auto.classes import LOOSE, factor_of, keeps_memory, permitted
from grace.auto.controller import ONE, Controller
from grace.auto.explain import Explanation, explain
from grace.auto.history import History
from grace.auto.looks import look
from grace.auto.losses import Losses
from grace.auto.model import STEPS, Model, StepClock, model_of
from grace.auto.planner import Plan, Problem, propose, propose_again
from grace.auto.saved_choice import parts_of
from grace.auto.settings import Auto
from grace.auto.site import Site
from grace.auto.trial import measured_gain
from grace.errors import ConfigurationError, GraceWarning, stack_level
from grace.predict.links import UNSHAPED
from grace.predict.probe import Probe, Timings
from grace.registry.policy import Policy
from grace.run.optimizer import Settings
from grace.run.session import Session

_MILLION = 1_000_000


class Driver:
    """A rank's part in ``auto``. All ranks make theirs with the same arguments.

    Args:
        session: whose methods it chooses.
        settings: what the user said.
        optimizer: the settings of the optimizer; None: unknown.
        site: what is exchanged, and how; None: the session's tensors are averaged.
        clock: nanoseconds, monotonic.

    Raises:
        ConfigurationError: where it cannot choose: tensors on an accelerator, groups of parameters as one tensor.
    """

    def __init__(
        self,
        session: Session,
        settings: Auto,
        *,
        optimizer: Settings | None = None,
        site: Site | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ):
        options, self.site = session.options, site or Site.of(session)
        if options.granularity != "parameter":
            raise ConfigurationError(
                f"auto: granularity={options.granularity!r} makes one tensor of the parameters of one method, and auto "
                "changes their methods; legal: granularity='parameter', with which a bucket's tensors of one method go "
                "through the codec and travel together all the same. Or name a method: grace advise says which"
            )
        if self.site.device.type not in ("cpu", "meta"):
            raise ConfigurationError(
                f"auto measures codecs on the processor, and these tensors are on {self.site.device}; name a method: "
                "grace advise says which"
            )
        self.session, self.settings, self.clock = session, settings, clock
        self.methods, self.left_out = permitted(
            settings.quality if settings.error is None else LOOSE, session.world, optimizer, settings.methods or None,
            memoryless=settings.error is not None, way=self.site.way, goal=settings.goal,
        )  # fmt: skip
        self.factors = {name: factor_of(name) or 1.0 for name in self.methods} if settings.goal == "time" else {}
        self.seed = options.seed if settings.seed is None else settings.seed
        self.known = Calibration(
            session.world, session.transport, 1.0, Timings(UNSHAPED, session.world, 1), way=self.site.way
        )
        self.model: Model | None = None
        self.buckets = self.site.buckets(options.bucket_bytes // 4, settings.keep)
        self.choices: list[Choice] = []
        self.controller: Controller | None = None
        self.ended_by: str | None = None  # why it chooses no more
        self.loaded: Policy | None = None  # of a state that it goes on from
        self.history = History(self)
        self._first: Plan | None = None
        self._start = clock()
        self._last = 0
        self._overhead = self.holding = self._exchanges = 0
        self.speaks = session.rank == 0 and (self.site.beside is None or self.site.beside.rank == 0)  # for all ranks
        self._coming: list[tuple[str, ...]] = []
        self._listening: StepClock | None = None
        self._losses = Losses()
        self._measuring = False
        self._using: tuple[int, bool] = (0, False)
        self._counts = True  # whether the step that comes is a measure of others

    # ---- before the first step --------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Measures codecs and the link, and takes what promises to be fastest until the model is known. All ranks call it.

        Raises:
            TransportError: the link failed meanwhile; on all ranks.
        """
        if self.session.world == 1:
            self.end("one worker exchanges nothing")
            return
        kept = [method for _, method in self.settings.keep if method not in self.methods]
        tensors = [math.prod(shape) for shape in self.buckets.exchanged.values()]
        largest = max(*tensors, *self.buckets.numbers, min(sum(tensors), self.session.options.bucket_bytes // 4))
        candidates = [*self.methods[:2], *kept, *self.methods[2:]]
        self.known = calibrate(self.session.network, candidates, largest, way=self.site.way, beside=self.site.beside)
        self.left_out = {**self.left_out, **self.known.left_out}
        if why := self.site.refuse_memory(self.known.memory):
            self.left_out.update((name, why) for name in self.methods if keeps_memory(name))
            self.methods = [name for name in self.methods if not keeps_memory(name)]
        self.methods = [name for name in self.methods if name in self.known.rates]
        if self.speaks:
            for text in stragglers(self.known.codecs):
                warnings.warn(f"auto: {text}: compression cannot mend that", GraceWarning, stacklevel=stack_level())
        problem = problem_of(self.buckets, None, self.known, self._careful, fuses=self.site.holds, factors=self.factors)
        plans = [plan for method in problem.methods if (plan := problem.uniform(method)) is not None]
        self._first = min(plans, key=lambda plan: plan.cost)
        self.session.offer([self.site.resolve(policy_of(self._first, self.buckets))])
        self.history.measured(self._first)

    @property
    def _careful(self) -> list[str]:
        """Methods that may be used before errors are known."""
        return self.methods if self.settings.error is None else self.methods[:2]

    # ---- steps ------------------------------------------------------------------------------------------------------
    @property
    def active(self) -> bool:
        """True if it chooses."""
        return self.ended_by is None

    def comes(self, names: Sequence[str]) -> None:
        """A bucket of these tensors has come; called at once."""
        if self._listens:
            assert self._listening is not None
            self._listening.ready()

    @property
    def _listens(self) -> bool:
        return self.active and self._listening is not None and not self._measuring

    @property
    def waits(self) -> bool:
        """True if the model is to wait until the exchange of the bucket that comes is over: :meth:`waited` then says so."""
        return self._listens and not self.site.holds

    def waited(self, nanoseconds: int) -> None:
        """The model has waited for so long; called by who computes."""
        if self._listening is not None:
            self._listening.waited(nanoseconds)

    def irregular(self) -> None:
        """The step that ends with the coming exchange is no measure of others: its period counts for nothing."""
        self._counts = False

    def began(self) -> None:
        """A step begins; one that was broken off counts for nothing."""
        if self._coming:
            self._coming, self._last, self._exchanges = [], 0, 0
        if self._listening is not None:
            self._listening.began()

    @property
    def measures(self) -> bool:
        """True if :meth:`holds` looks at gradients in this step."""
        return self.active and self._measuring

    def holds(self, names: Sequence[str], gradients: Mapping[str, Tensor], last: bool) -> bool:
        """True if this bucket waits, to be exchanged with later ones. ``gradients``: its tensors, of any shape, by name;
        ``last``: whether the step ends with it: then nothing waits.
        """
        if not self.active:
            return False
        self._coming.append(tuple(names))
        if self._measuring:
            free = {name: x for name, x in gradients.items() if self.buckets.fixed(name) is None}
            self._losses.measure(free, self.methods[2:], self.session.peer, self.site.way)
        if last or not self.site.holds:
            return False
        if self._listening is not None:
            return True
        return bool(self.choices) and len(self._coming) - 1 not in self.choices[self._using[0]].flushes

    def exchanged(self, nanoseconds: int) -> None:
        """The buckets that have come since the last one was exchanged took so long, with codecs, the link and waiting."""
        if self.controller is not None and self._coming:
            self._exchanges += nanoseconds
            known, last = self.buckets.names, self._coming[-1]
            place = known.index(last) if not self.site.holds and last in known else len(self._coming) - 1
            self.history.exchanged(self._using[0], place, nanoseconds)

    def ended(self) -> None:
        """A step's last exchange is over.

        Raises:
            AgreementError: ranks have decided differently. TransportError: the link failed. On all ranks.
        """
        if not self.active or not self._coming:
            return
        now, came, self._coming = self.clock(), tuple(self._coming), []
        period, self._last = now - self._last if self._last and self._counts else 0, now
        counts, self._counts = self._counts, True
        if self._is_part(came):  # such a step is no measure of whole ones
            self._last, self._exchanges = self.clock(), 0
            return
        unheard = self._listening is None and self.controller is None  # the first step
        if unheard or not self._known_buckets(came):  # DistributedDataParallel makes its buckets anew
            self._listen(came)
        elif self._measuring:
            self._measuring = False
            free = [name for names in self.buckets.names for name in names if self.buckets.fixed(name) is None]
            self._losses.share(free, self.methods[2:], self._tell)
        elif self._listening is not None:
            self._listening.exchanged(counts)
            if self._listening.done:
                self._decide()
        elif self.controller is not None:
            self._control(period, now)
        self._last = self.clock()

    def _is_part(self, came: tuple[tuple[str, ...], ...]) -> bool:
        """True if a step has used a part of the model, where buckets are known and each goes alone."""
        if self.site.holds or not self.site.names or self._known_buckets(came):
            return False
        known = [set(names) for names in self.buckets.names]
        return all(any(set(names) <= held for held in known) for names in came)

    def _known_buckets(self, came: tuple[tuple[str, ...], ...]) -> bool:
        """True if these are the buckets that are planned for; where each goes alone, in any order: what is not used in a pass
        comes last.
        """
        return came == self.buckets.names or (not self.site.holds and set(came) == set(self.buckets.names))

    def _listen(self, came: tuple[tuple[str, ...], ...]) -> None:
        """The buckets are others than were known: their steps are measured."""
        self.buckets = Buckets(came, self.site.shapes, self.settings.keep, self.site.parts)
        self._listening = StepClock(len(came), clock=self.clock)
        self._measuring = self.settings.error is not None
        if self.choices:
            current = self._using[0]
            self.session.use(current)
            self.choices, self.controller = [], None

    # ---- decisions --------------------------------------------------------------------------------------------------
    def _decide(self) -> None:
        """The model is known: plans, and offers what is worth trying."""
        assert self._listening is not None
        self.model = model_of(self._tell(self._listening.record()))
        self.holding += int(1e9 * self.model.exposed) * self._listening.steps
        self._listening = None
        problem = self.problem()
        policy, self.loaded = self.loaded, None
        loaded = None if policy is None else self._plan_of(policy, problem)
        if policy is not None and loaded is None:
            self.history.left()
        plans, best, challengers = propose(problem, loaded)
        self.choices = [Choice.of(plan, self.buckets) for plan in plans]
        self._offer(best)
        told = self._told
        self.controller = Controller(
            _nanoseconds(plans), best, challengers, margin=self.settings.margin, share=self.settings.share, seed=self.seed,
            spent=sum(told.values()), period=int(1e9 * plans[best].seconds), first=self.session.worker.step,
            weights=_weights(plans),
        )  # fmt: skip
        if self.known.unsure:
            self.controller.ask(f"the link is known only so far: {self.known.name_unsure()}")
        self.history.planned(challengers)
        if self.speaks:
            for text in stragglers([self.model.computing]):
                warnings.warn(f"auto: {text}: compression cannot mend that", GraceWarning, stacklevel=stack_level())

    def _offer(self, first: int) -> None:
        """The ranks agree on all choices, and use one."""
        plans = {f"plan of choice {number}": repr(choice.plan) for number, choice in enumerate(self.choices)}
        self.session.offer([self.site.resolve(choice.policy) for choice in self.choices], first, also=plans)
        self._using = (first, False)

    def _plan_of(self, policy: Policy, problem: Problem) -> Plan | None:
        """The plan of a state that was loaded; None: not all of it was measured."""
        parts = parts_of(policy, self.buckets, list(self.known.rates), self.session.like, self._tell)
        return None if parts is None else problem.plan(parts)

    def problem(self) -> Problem:
        """The planning problem, from all that is known."""
        return problem_of(
            self.buckets, self.model, self.known, self.methods, self._losses.of, self.settings.error,
            fuses=self.site.holds, factors=self.factors,
        )  # fmt: skip

    def _control(self, period: int, now: int) -> None:
        controller = self.controller
        assert controller is not None
        record = controller.ended(period, now - self._start, self._overhead, self._exchanges)
        self._exchanges = 0
        if record is not None:
            controller.heard(self._tell(record))
            self.history.heard()
            if controller.look is not None:
                self._look(controller, controller.look)
        self._apply(controller)

    def _apply(self, controller: Controller) -> None:
        wanted = (controller.plan, controller.trying)
        if wanted != self._using:
            self._using = wanted
            self.session.use(wanted[0], trial=wanted[1])

    def _look(self, controller: Controller, why: str) -> None:
        """Measures the link and codecs again, and plans anew."""
        start = self.clock()
        used = dict.fromkeys(method for choice in self.choices for method in choice.plan.methods)
        # of all candidates, or old numbers would compete with new ones
        self.known = look(
            self.session.network, self.known, list(self.known.rates), first=list(used), beside=self.site.beside
        )
        problem = self.problem()
        plans, challengers = propose_again(
            problem, [choice.plan.parts for choice in self.choices], controller.current, alarm=controller.pressing,
            verified=controller.verified_at is not None,
        )  # fmt: skip
        if [plan.parts for plan in plans] != [choice.plan.parts for choice in self.choices]:
            self.choices = [Choice.of(plan, self.buckets) for plan in plans]
            self._offer(controller.current)
        self._overhead += self.clock() - start
        self.history.looked(plans, challengers, why)
        controller.looked(_nanoseconds(plans), challengers, why, _weights(plans))

    def _tell(self, values: Sequence[int]) -> list[list[int]]:
        start = self.clock()
        rows = Probe(self.session.network, 1, beside=self.site.beside).all_gather_numbers(values)
        self._overhead += self.clock() - start
        return rows

    # ---- for the user -----------------------------------------------------------------------------------------------
    @property
    def _told(self) -> dict[str, int]:
        """Nanoseconds that were spent before the controller began, on all ranks alike."""
        return {**self.known.spent, "holding": self.holding}

    @property
    def spent(self) -> dict[str, int]:
        """Nanoseconds, by what they were spent on."""
        before = self._told
        after = 0 if self.controller is None else max(0, self.controller.spent - sum(before.values()))
        return {**before, "trials and records": after}

    @property
    def elapsed(self) -> int:
        """Nanoseconds since it began, on this rank."""
        return max(1, self.clock() - self._start)

    @property
    def values(self) -> dict[str, float]:
        """For logs: the number of the plan, its measured gain over the better baseline if there is one, and what was spent."""
        controller = self.controller
        if controller is None:
            return {}
        share = sum(self.spent.values()) / self.elapsed
        logged = {"auto/plan": float(controller.current), "auto/spent_share": share}
        gain = measured_gain(controller.trials, controller.current, range(controller.baselines))
        if gain is not None:
            logged["auto/speedup"] = gain.median
        return logged

    def explain(self) -> Explanation:
        """The choices and their reasons; the same on all ranks, but for times that are this rank's."""
        return explain(self)

    @property
    def listens_for(self) -> int:
        """Number of steps that are still to be measured before it plans."""
        if not self.active or self.controller is not None:
            return 0
        return self._measuring + (STEPS + 2 if self._listening is None else self._listening.left)

    def end_run(self) -> None:
        """There are no more steps: it says so, if they were too few to choose by."""
        if left := self.listens_for:
            self.end(
                f"the run was {left} steps too short for the model to be known: what codecs and the link said was used"
            )

    def end(self, why: str) -> None:
        """It chooses no more; what it has chosen stays until something else is used."""
        if self.ended_by is None:
            self.ended_by = why
            self.history.ended()

    # ---- checkpoints ------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The part of a checkpoint that belongs to the choice, beside the session's state."""
        return {
            "version": 1, "settings": str(self.settings), "methods": self.session.methods(),
            "fingerprint": self.known.fingerprint,
        }  # fmt: skip

    def load(self, policy: Policy, measured: str | None = None) -> None:
        """A state of this policy was loaded: it is used, and the model measured anew; then it must stand its trials.

        ``measured``: among whom, if ``auto`` saved it: none of its numbers is used, wherever that was.
        """
        self.session.offer([policy])
        self.history.loaded("" if measured in (None, self.known.fingerprint) else str(measured))
        self.loaded, self.controller, self.choices, self._using = policy, None, [], (0, False)
        self._listen(self.buckets.names)


def _nanoseconds(plans: Sequence[Plan]) -> list[int]:
    return [int(1e9 * plan.seconds) for plan in plans]


def _weights(plans: Sequence[Plan]) -> list[int]:
    return [round(ONE * plan.factor) for plan in plans]
