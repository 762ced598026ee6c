"""The source of ``auto`` on GPUs: as on processors, by the device's clock.

Codecs, the link and the model are measured by marks on streams (:class:`grace.predict.probe.DeviceMeter`,
:class:`grace.auto.model.DeviceClock`), and the host's time to issue a bucket is a number of its own: in the timeline the host
is a lane more (:class:`grace.predict.timeline.Host`). Until the model is known fp32 is used, as it takes the least from it.

What a step takes is the device's time between two events, one at the end of each step, on the stream on which its last
exchange ends. The host reads them when they have happened, and at the end of a block at the latest two steps later, as it
reads the flags of a step; what all ranks were told comes as late. So outside of measurements the device never waits for the
host, and the host for no step but one that is two steps old. Steps in which the host has waited for a compiler, Triton's or
torch's, count for nothing.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from grace.auto.calibrate import find_machine
from grace.auto.classes import EXACT, keeps_memory
from grace.auto.model import STEPS, WARM, DeviceClock, StepClock, model_of
from grace.auto.planner import Part, Plan, propose
from grace.auto.sources import OnHost
from grace.compute import backends, devices
from grace.compute.launching import count_compiled
from grace.contract.peer import Peer
from grace.errors import ConfigurationError
from grace.predict.probe import DeviceMeter, gather_numbers
from grace.registry import method as make_method
from grace.run.streams import Streams
from grace.transports.agreement import SECONDS

if TYPE_CHECKING:
    from grace.auto.driver import Driver

LATE = 2  # steps after which the host knows what one took: flags of two steps are under way, too
MOST = 4  # methods beside fp32 and bf16 that are measured: each compiles its kernels for some seconds
FIRST = "qsgd", "fp8"  # these before others, where a class has them
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


class OnDevice(OnHost):
    """The source on a GPU, by the device's clock; see the module."""

    late, holds, listens, meanwhile = LATE, False, WARM + 1 + STEPS + LATE, "fp32"

    def __init__(self, driver: Driver, streams: Streams):
        super().__init__(driver)
        self._streams = streams
        self._meter = DeviceMeter(streams, driver.session.device, driver.clock)
        self._pending: collections.deque[tuple[int, Any, Any, bool]] = collections.deque()
        self._compiled = 0
        self._looked = False  # since the last step ended
        self._letter: tuple[Any, Any] | None = None  # what is under way to this host, and the mark behind it

    # ---- what is measured -------------------------------------------------------------------------------------------
    def _where(self) -> dict[str, Any]:
        driver = self._driver
        everyone = self._share(find_facts(driver.site.device))
        refuse_shared([facts.place for facts in everyone], everyone[0].name)
        memory = min(facts.free for facts in everyone)
        driver.methods, left_out = self._choose(everyone, memory)
        driver.left_out = {**driver.left_out, **left_out}
        return {"device": everyone[0].name, "memory": memory}

    def _first(self) -> Plan:
        driver = self._driver
        self.aside["compiling kernels"] = driver.known.compiling
        self._compiled = count_compiled()
        return Plan(tuple(Part(j, j + 1, EXACT[0]) for j in range(len(driver.buckets.names))), 0.0)

    def _share(self, own: GPUFacts) -> list[GPUFacts]:
        """The facts of all workers. They go as text, which needs no tensor that the network takes."""
        text = self._driver.session.all_gather_text(json.dumps([asdict(own)]), SECONDS)
        if (beside := self._driver.site.beside) is not None:
            text = [
                part for line in beside.all_gather_text(json.dumps(text), seconds=SECONDS) for part in json.loads(line)
            ]
        return [GPUFacts(**facts) for part in text for facts in json.loads(part)]

    def _choose(self, everyone: Sequence[GPUFacts], memory: int) -> tuple[list[str], dict[str, str]]:
        """The methods that are tried, fp32 and bf16 first, and why others are not."""
        driver = self._driver
        free, left_out = dict.fromkeys(driver.methods[len(EXACT) :], ""), dict[str, str]()
        if problems := [facts.problem for facts in everyone if facts.problem]:
            left_out.update(
                dict.fromkeys(free, f"a worker's GPU has no Triton kernels, only torch's casts: {problems[0]}")
            )
        peer, named = Peer(0, driver.session.world), bool(driver.settings.methods)
        too_large = driver.site.refuse_memory(memory, everywhere=True)
        for name in free:
            if name in left_out:
                continue
            if too_large and keeps_memory(name):
                left_out[name] = too_large
            elif not named and driver.site.way.traffic(make_method(name), _SHAPE, peer) is None:
                left_out[name] = "the host has to ask how many bytes it sends, and waits for the GPU in each step"
        kept = [name for name in free if name not in left_out]
        if not named:
            kept.sort(key=lambda name: not name.startswith(FIRST))  # stable: then by what they send
            why = f"{MOST} others come first, and each compiles kernels of its own; methods= names what is tried"
            left_out.update((name, why) for name in kept[MOST:])
            kept = kept[:MOST]
        return [*EXACT, *kept], left_out

    def listen(self, buckets: int) -> StepClock:
        return DeviceClock(buckets, self._streams, LATE, self._driver.clock, count_compiled)

    def learn(self, rows: Sequence[Sequence[int]], steps: int) -> bool:
        if min(row[-1] for row in rows) < 1:  # all steps of a rank have compiled
            return False
        driver = self._driver
        buckets, known = driver.buckets, driver.known
        issues = [known.issue(buckets.methods_of(j, j + 1, EXACT[0])) for j in range(len(buckets.names))]
        driver.model = model_of(rows, issues)
        self._name_stragglers([driver.model.computing])
        return True

    def propose(self, loaded: Plan | None) -> tuple[list[Plan], int, list[int]]:
        return propose(self.problem(), loaded, careful=True)

    def again(self, *, alarm: bool) -> tuple[list[Plan], list[int]]:
        self._looked = True
        return super().again(alarm=alarm)

    # ---- what steps take --------------------------------------------------------------------------------------------
    def ended(self, step: int, counts: bool) -> int:
        compiled, before = count_compiled(), self._compiled
        mark, last = self._streams.mark(self._streams.current()), self._last
        if last is not None and counts:
            self._pending.append((step, last, mark, compiled != before))
        self._last, self._compiled = mark, compiled
        return 0

    def goes_on(self) -> None:
        if self._looked:
            self._last, self._looked = self._streams.mark(self._streams.current()), False

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
