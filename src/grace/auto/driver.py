"""``auto`` at work on one session: it measures, plans, offers choices, and says before each step which one is used.

An adapter calls :meth:`Driver.begin` when the ranks have agreed, :meth:`Driver.comes` when a bucket comes,
:meth:`Driver.holds` before it exchanges one, and :meth:`Driver.ended` when a step's last exchange is over; the last two in
the order in which buckets are exchanged, in the thread that exchanges.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from grace.auto.calibrate import Calibration
from grace.auto.choices import Buckets, Choice, parts_of, policy_of
from grace.auto.classes import LOOSE, factor_of, permitted
from grace.auto.controller import ONE, Controller
from grace.auto.device import OnDevice
from grace.auto.explain import Explanation, explain
from grace.auto.history import History
from grace.auto.model import Losses, Model, StepClock
from grace.auto.planner import Plan
from grace.auto.settings import Auto
from grace.auto.site import Site
from grace.auto.sources import OnHost
from grace.auto.trial import measured_gain
from grace.errors import ConfigurationError
from grace.flags.capturing import capturing
from grace.predict.links import UNSHAPED
from grace.predict.probe import Probe, Timings
from grace.registry.policy import Policy
from grace.run.optimizer import Settings
from grace.run.session import Session
from grace.run.streams import CudaStreams, Streams


class Driver:
    """A rank's part in ``auto``. All ranks make theirs with the same arguments.

    Args:
        session: whose methods it chooses.
        settings: what the user said.
        optimizer: the settings of the optimizer; None: unknown.
        site: what is exchanged, and how; None: the session's tensors are averaged.
        clock: nanoseconds of the host, monotonic.
        streams: of the GPU that tensors are on; None: as they are.

    Raises:
        ConfigurationError: where it cannot choose: tensors on an accelerator that is no GPU of CUDA's, groups of parameters
            as one tensor.
    """

    def __init__(
        self,
        session: Session,
        settings: Auto,
        *,
        optimizer: Settings | None = None,
        site: Site | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        streams: Streams | None = None,
    ):
        options, self.site = session.options, site or Site.of(session)
        if options.granularity != "parameter":
            raise ConfigurationError(
                f"auto: granularity={options.granularity!r} makes one tensor of the parameters of one method, and auto "
                "changes their methods; legal: granularity='parameter', with which a bucket's tensors of one method go "
                "through the codec and travel together all the same. Or name a method: grace advise says which"
            )
        if self.site.device.type not in ("cpu", "meta", "cuda"):
            raise ConfigurationError(
                f"auto measures steps on processors and on GPUs of CUDA's, and these tensors are on {self.site.device}; name "
                "a method: grace advise says which"
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
        on_device = self.site.device.type == "cuda"
        self.source: OnHost = OnDevice(self, streams or CudaStreams(self.site.device)) if on_device else OnHost(self)
        self._start = clock()
        self._overhead = self.holding = self._exchanges = 0
        self.speaks = session.rank == 0 and (self.site.beside is None or self.site.beside.rank == 0)  # for all ranks
        self._coming: list[tuple[str, ...]] = []
        self._listening: StepClock | None = None
        self.losses = Losses()
        self._measuring = False
        self._using: tuple[int, bool] = (0, False)
        self._counts = True  # whether the step that comes is a measure of others

    # ---- before the first step --------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Measures what can be known before the first step, and takes what promises to be fastest until the model is known.
        All ranks call it.

        Raises:
            ConfigurationError: two workers have one GPU; on all ranks. TransportError: the link failed meanwhile; likewise.
        """
        if self.session.world == 1:
            self.end("one worker exchanges nothing")
            return
        first = self.source.begin()
        self.session.offer([self.site.resolve(policy_of(first, self.buckets))])
        self.history.measured(first)

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
        return self._listens and not self.site.holds and self.source.holds

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
            self._coming, self._exchanges = [], 0
            self.source.broke()
        if self._listening is not None:
            self._listening.began()

    @property
    def measures(self) -> bool:
        """True if :meth:`holds` looks at gradients in this step."""
        return self.active and self._measuring

    def holds(self, names: Sequence[str], gradients: Mapping[str, Tensor], last: bool) -> bool:
        """True if this bucket waits, to be exchanged with later ones. ``gradients``: its tensors, of any shape, by name;
        ``last``: whether the step ends with it: then nothing waits.

        Raises:
            ConfigurationError: the step is captured into a graph.
        """
        if not self.active:
            return False
        if capturing():
            raise ConfigurationError(
                "auto compares methods in steps that follow one another, and a captured graph repeats one method for ever: "
                "call handle.switch(METHOD) before the capture, with what handle.explain() says is used, or name a method"
            )
        self._coming.append(tuple(names))
        if self._measuring:
            free = {name: x for name, x in gradients.items() if self.buckets.fixed(name) is None}
            self.losses.measure(free, self.methods[2:], self.session.peer, self.site.way)
        if last or not self.site.holds:
            return False
        if self._listening is not None:
            return self.source.holds
        return bool(self.choices) and len(self._coming) - 1 not in self.choices[self._using[0]].flushes

    def exchanged(self, nanoseconds: int) -> None:
        """The buckets that have come since the last one was exchanged took so long, with codecs, the link and waiting."""
        if self.controller is not None and self._coming and not self.source.late:
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
        came, self._coming = tuple(self._coming), []
        counts, self._counts = self._counts, True
        part = self._is_part(came)
        period = self.source.ended(self._number, counts and not part)
        if part:  # such a step is no measure of whole ones
            self._exchanges = 0
            self.source.goes_on()
            return
        unheard = self._listening is None and self.controller is None  # the first step
        if unheard or not self._known_buckets(came):  # DistributedDataParallel makes its buckets anew
            self._listen(came)
        elif self._measuring:
            self._measuring = False
            free = [name for names in self.buckets.names for name in names if self.buckets.fixed(name) is None]
            self.losses.share(free, self.methods[2:], self.tell)
        elif self._listening is not None:
            self._listening.exchanged(counts)
            if self._listening.done:
                self._decide(self._listening)
        elif self.controller is not None:
            self._control(self.controller, period)
        self.source.goes_on()

    @property
    def _number(self) -> int:
        """The number of the step that ends, as its measurements are known by."""
        return self.session.worker.step if self.controller is None else self.controller.step + 1

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
        self._listening = self.source.listen(len(came))
        self._measuring = self.settings.error is not None
        if self.choices:
            current = self._using[0]
            self.session.use(current)
            self.choices, self.controller = [], None

    # ---- decisions --------------------------------------------------------------------------------------------------
    def _decide(self, listening: StepClock) -> None:
        """Offers what is worth trying, if the model is known."""
        self._listening = None
        if not self.source.learn(self.tell(listening.record()), listening.steps):
            self._listening = self.source.listen(len(self.buckets.names))
            return
        policy, self.loaded = self.loaded, None
        loaded = None if policy is None else self._plan_of(policy)
        if policy is not None and loaded is None:
            self.history.left()
        plans, best, challengers = self.source.propose(loaded)
        self.choices = [Choice.of(plan, self.buckets) for plan in plans]
        self._offer(best)
        told = self._told
        self.controller = Controller(
            _nanoseconds(plans), best, challengers, margin=self.settings.margin, share=self.settings.share, seed=self.seed,
            spent=sum(told.values()), period=int(1e9 * plans[best].seconds), first=self.session.worker.step,
            weights=_weights(plans), late=self.source.late,
        )  # fmt: skip
        if self.known.unsure:
            self.controller.ask(f"the link is known only so far: {self.known.name_unsure()}")
        self.history.planned(challengers)

    def _offer(self, first: int) -> None:
        """The ranks agree on all choices, and use one."""
        plans = {f"plan of choice {number}": repr(choice.plan) for number, choice in enumerate(self.choices)}
        self.session.offer([self.site.resolve(choice.policy) for choice in self.choices], first, also=plans)
        self._using = (first, False)

    def _plan_of(self, policy: Policy) -> Plan | None:
        """The plan of a state that was loaded; None: not all of it was measured."""
        parts = parts_of(policy, self.buckets, self.source.methods, self.session.like, self.tell)
        return None if parts is None else self.source.plan(parts)

    def _control(self, controller: Controller, period: int) -> None:
        for step, nanoseconds, compiled in self.source.known(self._number, due=controller.ends):
            controller.took(step, nanoseconds, compiled=compiled)
        record = controller.ended(period, self.clock() - self._start, self._overhead, self._exchanges)
        self._exchanges = 0
        if record is not None:
            self.source.tell(record)
        if controller.awaited is not None and controller.step >= controller.awaited + self.source.late:
            controller.heard(self.source.told())
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
        """Measures again, and plans anew."""
        start = self.clock()
        plans, challengers = self.source.again(alarm=controller.pressing)
        if [plan.parts for plan in plans] != [choice.plan.parts for choice in self.choices]:
            self.choices = [Choice.of(plan, self.buckets) for plan in plans]
            self._offer(controller.current)
        self._overhead += self.clock() - start
        self.history.looked(plans, challengers, why)
        controller.looked(_nanoseconds(plans), challengers, why, _weights(plans))

    def tell(self, values: Sequence[int]) -> list[list[int]]:
        """Everyone's whole numbers; all ranks call it."""
        start = self.clock()
        probe = Probe(self.session.network, 1, beside=self.site.beside, device=self.session.device)
        rows = probe.all_gather_numbers(values)
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
        return {**before, "trials and records": after, **self.source.aside}

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
        return self._measuring + (self.source.listens + 1 if self._listening is None else self._listening.left)

    def end_run(self) -> None:
        """There are no more steps: it says so, if they were too few to choose by."""
        if left := self.listens_for:
            self.end(f"the run was {left} steps too short for the model to be known: {self.source.meanwhile} was used")

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
