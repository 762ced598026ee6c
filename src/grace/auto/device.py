"""The source of ``auto`` on GPUs: trials alone. Nothing is predicted there; real steps under each method are compared.

What a step takes is the device's time between two events, one at the end of each step, on the stream on which its last
exchange ends. The host reads them when they have happened, and at the end of a block at the latest two steps later, as it
reads the flags of a step; what all ranks were told comes as late. So the device never waits for the host, and the host for no
step but one that is two steps old. Steps in which the host has waited for a compiler, Triton's or torch's, count for nothing.

A plan that nobody has run is taken to be somewhat slower than the one in use, so that a trial has a price: where steps are
long, nothing is tried that the budget does not allow.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from grace.auto.calibrate import Calibration, find_machine
from grace.auto.classes import EXACT, keeps_memory
from grace.auto.model import STEPS
from grace.auto.planner import Part, Plan
from grace.compute import backends, devices
from grace.compute.launching import count_compiled
from grace.contract.peer import Peer
from grace.errors import ConfigurationError
from grace.predict.links import UNSHAPED
from grace.predict.probe import Timings, gather_numbers, middle
from grace.registry import method as make_method
from grace.run.streams import Streams
from grace.transports.agreement import SECONDS

if TYPE_CHECKING:
    from grace.auto.driver import Driver
    from grace.auto.sources import Listener

LATE = 2  # steps after which the host knows what one took: flags of two steps are under way, too
WARM = 3  # steps that are not listened to: buckets are made anew, and libraries choose their algorithms
MOST = 4  # methods beside fp32 and bf16 that are tried: each compiles its kernels for some seconds
FIRST = "qsgd", "fp8"  # these before others, where a class has them
ASSUMED = 1.25  # times the step of the plan in use: a plan that nobody has run
ASSUMED_EXACT = 1.1  # the same of fp32 and bf16, whose codecs are casts
_WORTH = 1.25  # times the step of the plan in use: who took longer is not tried again without an alarm
_AGAIN = 2  # plans that are tried again without an alarm
_SHAPE = 1024, 1024  # of the matrix whose bytes say whether they depend on the data
NOT_RUN = (
    "auto on GPUs has been tested over a device of virtual time, and was not run on a GPU yet: compare a step with what a "
    "method by name takes"
)


@dataclass(frozen=True, slots=True)
class GPUFacts:
    """Facts about a worker's GPU. place: of the device, as no other has it. name: of its kind. problem: the reason why it has
    no Triton kernels; empty: it has. free: bytes of its memory.
    """

    place: str
    name: str
    problem: str
    free: int


def find_facts(device: torch.device) -> GPUFacts:
    """The facts about a GPU of this process."""
    properties = torch.cuda.get_device_properties(device)
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    place = f"{find_machine():x}/{getattr(properties, 'uuid', device.index)}"
    problem = ""
    if not backends.runs_triton(device):
        asked = not backends.backend().tries_triton
        problem = f"{backends.VARIABLE} asks for others" if asked else devices.find_triton_problem() or "no Triton"
    return GPUFacts(place, properties.name, problem, int(free))


class OnDevice:
    """The source on a GPU, by the device's clock; see the module."""

    late, holds, predicts, listens = LATE, False, False, WARM + STEPS + LATE
    why, meanwhile = "to see whether it is faster", "fp32"

    def __init__(self, driver: Driver, streams: Streams):
        self._driver, self._streams = driver, streams
        self._period = 0  # nanoseconds of a step of the plan that is used first
        self._last: Any = None  # the mark at the end of the last step
        self._pending: collections.deque[tuple[int, Any, Any, bool]] = collections.deque()
        self._compiled = 0
        self._letter: tuple[Any, Any] | None = None  # what is under way to this host, and the mark behind it
        self.name = ""
        self.aside: dict[str, int] = {}  # nanoseconds, by what they were spent on beside the budget

    # ---- before the first step --------------------------------------------------------------------------------------
    def begin(self) -> Plan:
        driver = self._driver
        everyone = self._share(find_facts(driver.site.device))
        refuse_shared([facts.place for facts in everyone], everyone[0].name)
        self.name = everyone[0].name
        driver.known = Calibration(
            driver.session.world, driver.session.transport, 1.0, Timings(UNSHAPED, driver.session.world, 1),
            way=driver.site.way, memory=min(facts.free for facts in everyone), device=self.name,
        )  # fmt: skip
        driver.methods, left_out = self._choose(everyone)
        driver.left_out = {**driver.left_out, **left_out}
        self._compiled = count_compiled()
        return self._uniform(EXACT[0], 0.0)

    def _share(self, own: GPUFacts) -> list[GPUFacts]:
        """The facts of all workers. They go as text, which needs no tensor that the network takes."""
        text = self._driver.session.all_gather_text(json.dumps([asdict(own)]), SECONDS)
        if (beside := self._driver.site.beside) is not None:
            text = [
                part for line in beside.all_gather_text(json.dumps(text), seconds=SECONDS) for part in json.loads(line)
            ]
        return [GPUFacts(**facts) for part in text for facts in json.loads(part)]

    def _choose(self, everyone: Sequence[GPUFacts]) -> tuple[list[str], dict[str, str]]:
        """The methods that are tried, fp32 and bf16 first, and why others are not."""
        driver = self._driver
        free, left_out = dict.fromkeys(driver.methods[len(EXACT) :], ""), dict[str, str]()
        if problems := [facts.problem for facts in everyone if facts.problem]:
            left_out.update(
                dict.fromkeys(free, f"a worker's GPU has no Triton kernels, only torch's casts: {problems[0]}")
            )
        peer, named = Peer(0, driver.session.world), bool(driver.settings.methods)
        memory = driver.site.refuse_memory(driver.known.memory, everywhere=True)
        for name in free:
            if name in left_out:
                continue
            if memory and keeps_memory(name):
                left_out[name] = memory
            elif not named and driver.site.way.traffic(make_method(name), _SHAPE, peer) is None:
                left_out[name] = "the host has to ask how many bytes it sends, and waits for the GPU in each step"
        kept = [name for name in free if name not in left_out]
        if not named:
            kept.sort(key=lambda name: not name.startswith(FIRST))  # stable: then by what they send
            why = f"{MOST} others come first, and each compiles kernels of its own; methods= names what is tried"
            left_out.update((name, why) for name in kept[MOST:])
            kept = kept[:MOST]
        return [*EXACT, *kept], left_out

    @property
    def line(self) -> str:
        """The source in words, for the log."""
        tried = ", ".join(["bf16", *self._driver.methods[2:]])
        return (
            f"on {self.name} nothing is predicted, and real steps are compared: fp32, which is used first, with {tried}"
        )

    # ---- the first steps --------------------------------------------------------------------------------------------
    def listen(self, buckets: int) -> Listener:
        return DeviceListener(self, self._driver.session.worker.step)

    def learn(self, rows: Sequence[Sequence[int]], steps: int) -> bool:
        if min(row[1] for row in rows) < 1:  # all steps of a rank have compiled
            return False
        self._period = max(1, *(row[0] for row in rows))
        return True

    # ---- what is proposed -------------------------------------------------------------------------------------------
    @property
    def methods(self) -> Sequence[str]:
        lost, most = self._driver.losses.of, self._driver.settings.error
        if most is None:
            return self._driver.methods
        buckets = self._driver.buckets
        free = [name for names in buckets.names for name in names if buckets.fixed(name) is None]
        legal = [m for m in self._driver.methods[2:] if all(lost.get(m, {}).get(x, most + 1) <= most for x in free)]
        return [*EXACT, *legal]

    def plan(self, parts: Sequence[Part]) -> Plan | None:
        factors = self._driver.factors
        return Plan(
            tuple(parts), self._period / 1e9, max((factors.get(part.method, 1.0) for part in parts), default=1.0)
        )

    def _uniform(self, method: str, nanoseconds: float) -> Plan:
        parts = tuple(Part(j, j + 1, method) for j in range(len(self._driver.buckets.names)))
        return Plan(parts, nanoseconds / 1e9, self._driver.factors.get(method, 1.0))

    def propose(self, loaded: Plan | None) -> tuple[list[Plan], int, list[int]]:
        """fp32, bf16 and each method for all buckets; fp32 is used first, or what was ``loaded``."""
        plans = [self._uniform(method, self._period * _assumed(method)) for method in self.methods]
        used = next((k for k, plan in enumerate(plans) if loaded is not None and plan.parts == loaded.parts), 0)
        if loaded is not None and plans[used].parts != loaded.parts:
            used = len(plans)
            plans.append(loaded)
        else:
            plans[used] = self._uniform(plans[used].methods[0], self._period)
        return plans, used, [k for k in range(len(plans)) if k != used]

    def again(self, *, alarm: bool) -> tuple[list[Plan], list[int]]:
        """The same plans, by what each took when it ran last. After an alarm all are tried; else the nearest."""
        driver, controller = self._driver, self._driver.controller
        assert controller is not None
        used, measured = controller.current, controller.measured
        self._period = max(1, measured.get(used, self._period))
        plans = [
            Plan(plan.parts, measured.get(k, int(self._period * _assumed(plan.methods[0]))) / 1e9, plan.factor)
            for k, plan in enumerate(choice.plan for choice in driver.choices)
        ]
        others = sorted((k for k in range(len(plans)) if k != used), key=lambda k: (plans[k].cost, k))
        if alarm:
            return plans, others
        return plans, [k for k in others if plans[k].cost <= _WORTH * plans[used].cost][:_AGAIN]

    def bucket(self, number: int) -> tuple[float | None, Mapping[str, float]]:
        return None, {}

    # ---- what steps take --------------------------------------------------------------------------------------------
    def ended(self, step: int, counts: bool) -> int:
        compiled, before = count_compiled(), self._compiled
        mark, last = self._streams.mark(self._streams.current()), self._last
        if last is not None and counts:
            self._pending.append((step, last, mark, compiled != before))
        self._last, self._compiled = mark, compiled
        return 0

    def goes_on(self) -> None: ...

    def broke(self) -> None:
        self._last = None

    def known(self, step: int, *, due: bool) -> list[tuple[int, int, bool]]:
        out: list[tuple[int, int, bool]] = []
        while self._pending:
            number, first, last, compiled = self._pending[0]
            if due and number <= step - LATE:  # the device has two steps to do, so that it is not kept waiting
                self._streams.wait_here(last)
            period = self._streams.between(first, last)
            if period is None:
                break
            self._pending.popleft()
            if compiled:
                self.aside["steps that compiled"] = self.aside.get("steps that compiled", 0) + period
            out.append((number, period, compiled))
        return out

    def tell(self, values: Sequence[int]) -> None:
        driver = self._driver
        rows = gather_numbers(values, driver.session.network, driver.site.beside, driver.session.device)
        letter = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=rows.is_cuda, device="cpu")
        letter.copy_(rows, non_blocking=True)
        self._letter = letter, self._streams.mark(self._streams.current())

    def told(self) -> list[list[int]]:
        assert self._letter is not None
        (letter, mark), self._letter = self._letter, None
        self._streams.wait_here(mark)
        rows: list[list[int]] = letter.tolist()
        return rows


class DeviceListener:
    """Listens to steps of the plan that is used first; as many on all ranks, whatever these know of them."""

    steps = STEPS

    def __init__(self, source: OnDevice, first: int):
        self._source, self._first, self._heard = source, first, 0

    def ready(self) -> None: ...
    def began(self) -> None: ...
    def waited(self, nanoseconds: int) -> None: ...

    def exchanged(self, counts: bool = True) -> None:
        """A step has ended."""
        self._heard += 1

    @property
    def left(self) -> int:
        """Number of steps that are still needed."""
        return OnDevice.listens - self._heard

    @property
    def done(self) -> bool:
        """True if enough steps have ended."""
        return self.left <= 0

    def record(self) -> list[int]:
        """Median in nanoseconds of the steps that count, and how many these are."""
        known = self._source.known(self._first + self._heard, due=True)
        periods = [period for step, period, compiled in known if step > self._first + WARM and not compiled]
        return [int(middle(periods)) if periods else 0, len(periods)]


def refuse_shared(places: Sequence[str], name: str) -> None:
    """Refuses two workers on one GPU. ``places``: of each worker's, by rank; ``name``: of the kind.

    Raises:
        ConfigurationError: names two ranks.
    """
    for rank, place in enumerate(places):
        if (first := places.index(place)) < rank:
            raise ConfigurationError(
                f"auto: ranks {first} and {rank} are on one GPU ({name}): NCCL refuses that, and over another backend each "
                "would measure the other's work. Give each worker its own, as grace.init_process_group('nccl') does, or name "
                "a method: grace advise says which"
            )


def _assumed(method: str) -> float:
    """Times the step of the plan in use that a method takes, where nobody has run it."""
    return ASSUMED_EXACT if method in EXACT else ASSUMED
