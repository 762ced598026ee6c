"""Plans: a method for each bucket, and buckets that travel as one, for the shortest step that the timeline predicts.

1. Where the lane does not slow the model, the end of its work is monotone in what each exchange takes: so each gets the method
   that is over soonest, and which neighbours travel together is a shortest path, ``E[j] = min over i of max(E[i], r_j) +
   d(i..j)``. That is exact there.
   On a GPU nothing that moves slows it; a host that comes late is left to the timeline.
2. Where cores are shared there is no closed form: from that plan, and from the best that use one method throughout, one bucket
   after the other changes its method where the played timeline gets shorter, the largest first, until nothing changes.

Where methods take more steps than bf16 to the same quality, a step's time counts times that factor, the largest of the plan.

fp32 and bf16 throughout are among the starts, so no plan is predicted slower than they. It takes a few thousand timelines at
most. All ranks plan alike: everything here is ``+ - * /`` and comparisons on the same numbers, and ties go to who comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from grace.auto.classes import EXACT
from grace.predict.timeline import Host, Phase, play

_PASSES = 4
_STARTS = 3
_FUSED = 4  # buckets that travel as one at most
_LESS = 1e-12
GAIN = 0.03  # what a plan must be predicted to gain over the better of fp32 and bf16, and over one method throughout
_FASTER = 0.95  # what a plan must be predicted to take, of the present one, to be tried after a look without an alarm
# Times the incumbent's prediction: who is predicted to take more is not tried, but for the better baseline.
_WORTH = 1.25
_NEAR = 1.25  # times the plan's step: a method that travels otherwise is tried first up to there


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring buckets that travel as one. first: the first of them. end: one beyond the last. method: theirs."""

    first: int
    end: int
    method: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan for all buckets. parts: in the order of the buckets. seconds: of a step, predicted. factor: times as many steps
    that it takes, the most of its methods.
    """

    parts: tuple[Part, ...]
    seconds: float
    factor: float = 1.0

    @property
    def cost(self) -> float:
        """Seconds of a step that is worth as much as one of bf16."""
        return self.seconds * self.factor

    @property
    def methods(self) -> tuple[str, ...]:
        """The method of each bucket."""
        return tuple(part.method for part in self.parts for _ in range(part.end - part.first))

    @property
    def uniform(self) -> bool:
        """True if all buckets have one method, and each travels alone."""
        return len(set(self.methods)) <= 1 and all(part.end == part.first + 1 for part in self.parts)

    def __str__(self) -> str:
        counts: dict[str, int] = {}
        for method in self.methods:
            counts[method] = counts.get(method, 0) + 1
        if len(counts) == 1:
            text = next(iter(counts))
        else:
            text = ", ".join(f"{method} for {count} of {len(self.methods)} buckets" for method, count in counts.items())
        fused = sum(part.end - part.first for part in self.parts if part.end > part.first + 1)
        return f"{text}; {fused} buckets travel with a neighbour" if fused else text


@dataclass(slots=True)
class Problem:
    """A step whose communication is to be planned.

    Attributes:
        compute: processor seconds of it without communication. threads: that compute. cores: of a worker.
        ready: when each bucket is ready, as shares of the step, rising. numbers: in each.
        methods: that may be used, the baselines first: of two as fast, the first is taken.
        phases: what buckets i to j - 1 do as one exchange under a method; None: they cannot.
        kinds: the collectives of each method, in their order. One that is not there is a kind of its own.
        factors: times as many steps that a method takes, 1 or more. One that is not there takes as many.
        host: of a GPU, and ``issue`` its seconds for buckets i to j - 1 as one exchange under a method; None: a processor.
    """

    compute: float
    threads: float
    cores: float
    ready: Sequence[float]
    numbers: Sequence[int]
    methods: Sequence[str]
    phases: Callable[[int, int, str], list[Phase] | None]
    kinds: Mapping[str, Sequence[str]] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    host: Host | None = None
    issue: Callable[[int, int, str], float] = lambda first, end, method: 0.0
    _known: dict[tuple[int, int, str], list[Phase] | None] = field(default_factory=dict)

    def job(self, part: Part) -> list[Phase] | None:
        """The phases of a part; None: it cannot be exchanged so."""
        key = (part.first, part.end, part.method)
        if key not in self._known:
            self._known[key] = self.phases(*key)
        return self._known[key]

    def plan(self, parts: Sequence[Part]) -> Plan | None:
        """These parts, and what they take; None: one of them cannot be."""
        jobs = [self.job(part) for part in parts]
        ready = [self.ready[part.end - 1] for part in parts]
        known = [job for job in jobs if job is not None]
        if len(known) < len(jobs):
            return None
        factor = max((self.factors.get(part.method, 1.0) for part in parts), default=1.0)
        host = self.host
        if host is not None:
            issues = [self.issue(part.first, part.end, part.method) for part in parts]
            host = replace(host, arrives=[host.arrives[part.end - 1] for part in parts if host.arrives], issues=issues)
        seconds = play(self.compute, self.threads, self.cores, ready, known, host, urgent=host is not None)
        return Plan(tuple(parts), seconds, factor)

    def travels(self, method: str) -> tuple[str, ...]:
        """The kinds of a method's payloads: how they travel."""
        return tuple(self.kinds.get(method, (method,)))

    def uniform(self, method: str) -> Plan | None:
        """The plan with this method for all buckets, each on its own."""
        return self.plan([Part(j, j + 1, method) for j in range(len(self.ready))])


def better_baseline(problem: Problem, baselines: Sequence[str]) -> Plan:
    """The faster of these methods throughout, as predicted; they can always be used."""
    plans = [plan for name in baselines if (plan := problem.uniform(name)) is not None]
    best = plans[0]
    for plan in plans[1:]:
        best = plan if plan.cost < best.cost else best
    return best


def make_plan(problem: Problem) -> Plan:
    """The best plan found."""
    starts = sorted(
        (plan for method in problem.methods if (plan := problem.uniform(method)) is not None),
        key=lambda plan: plan.cost,  # stable: of two as fast the first method
    )[:_STARTS]
    lane = problem.plan(find_lane(problem))
    if lane is not None:
        starts.append(lane)
    best = None
    for start in starts:
        candidate = _descend(problem, start)
        if best is None or candidate.cost < best.cost - _LESS:
            best = candidate
    assert best is not None
    return best


def shortlist(problem: Problem, baselines: Sequence[str], most: int = 2) -> list[Plan]:
    """Plans worth trying, the best first: the plan, if it is predicted to gain 3 % over the better of the baselines, and
    one method throughout, those first whose collectives are not those of the plan or of another before them.

    Where one method throughout is predicted to be as fast to 3 %, it is the plan: predictions err by as much, and those of a
    mixture err in more places. An error of the link's measurement is shared by all that travels alike, hence the order.
    """
    base, best = better_baseline(problem, baselines), make_plan(problem)
    uniform = sorted(
        (plan for method in problem.methods if (plan := problem.uniform(method)) is not None),
        key=lambda plan: plan.cost,  # stable: of two as fast the first method
    )
    if uniform[0].cost < (1 + GAIN) * best.cost:
        best = uniform[0]
    listed = [best] if best.cost < (1 - GAIN) * base.cost else []
    travels = {problem.travels(method) for method in (best if listed else base).methods}
    others = [
        plan
        for plan in uniform
        if plan.methods[0] not in baselines and plan.parts not in [other.parts for other in listed]
    ]

    def order(plan: Plan) -> tuple[bool, float]:
        other = problem.travels(plan.methods[0]) not in travels and plan.cost < _NEAR * best.cost
        return not other, plan.cost

    while others and len(listed) < most:
        plan = min(others, key=order)  # stable, as above
        others.remove(plan)
        listed.append(plan)
        travels.add(problem.travels(plan.methods[0]))
    return listed


def find_lane(problem: Problem) -> list[Part]:
    """The parts whose lane is over soonest, if nothing that it does slows the model."""
    count = len(problem.ready)
    ends: list[float] = [0.0] * (count + 1)
    back: list[Part | None] = [None] * (count + 1)
    span = problem.compute / min(problem.threads, problem.cores)
    for j in range(1, count + 1):
        best: float | None = None
        for i in range(max(0, j - _FUSED), j):
            for method in problem.methods:
                part = Part(i, j, method)
                job = problem.job(part)
                if job is None:
                    continue
                taken = 0.0
                for _, seconds in job:
                    taken += seconds
                end = max(ends[i], problem.ready[j - 1] * span) + taken
                if best is None or end < best - _LESS:
                    best, back[j] = end, part
        assert best is not None, "a baseline can always be used"
        ends[j] = best
    parts: list[Part] = []
    j = count
    while j:
        last = back[j]
        assert last is not None
        parts.append(last)
        j = last.first
    return parts[::-1]


def _descend(problem: Problem, start: Plan) -> Plan:
    """Each part in turn gets the method that shortens the step most, the largest first, then the latest."""
    plan = start
    sizes = [sum(problem.numbers[part.first : part.end]) for part in plan.parts]
    order = sorted(range(len(plan.parts)), key=lambda k: (-sizes[k], -k))
    for _ in range(_PASSES):
        before = plan.cost
        for k in order:
            for method in problem.methods:
                if method == plan.parts[k].method:
                    continue
                changed = Part(plan.parts[k].first, plan.parts[k].end, method)
                trial = problem.plan([*plan.parts[:k], changed, *plan.parts[k + 1 :]])
                if trial is not None and trial.cost < plan.cost - _LESS:
                    plan = trial
        if plan.cost >= before - 1e-9:
            break
    return plan


# ---- what is offered, and tried --------------------------------------------------------------------------------------
def propose(
    problem: Problem, loaded: Plan | None = None, *, careful: bool = False
) -> tuple[list[Plan], int, list[int]]:
    """Plans, the number of the one that is used first, and the numbers of those to try, in their order.

    The first two are fp32 and bf16, the better one first. ``loaded``: a plan that a state has brought, which is used first.
    ``careful``: whether else the better one is used until real steps have shown that what is predicted to be faster is so.
    """
    base = better_baseline(problem, EXACT)
    other = problem.uniform(EXACT[1] if base.methods[0] == EXACT[0] else EXACT[0])
    assert other is not None
    plans = [base, other]
    plans += [plan for plan in shortlist(problem, EXACT) if plan.parts not in [other.parts for other in plans]]
    best = 2 if len(plans) > 2 and plans[2].cost < base.cost else 0
    if loaded is not None:
        parts = [plan.parts for plan in plans]
        best = parts.index(loaded.parts) if loaded.parts in parts else len(plans)
        plans += [loaded] if best == len(plans) else []
    used = 0 if careful and loaded is None else best
    most = _WORTH * plans[used].cost
    order = dict.fromkeys([best, *range(len(plans))])
    return plans, used, [k for k in order if k != used and (k == 0 or plans[k].cost <= most)]


def propose_again(
    problem: Problem, offered: Sequence[Sequence[Part]], current: int, *, alarm: bool, verified: bool
) -> tuple[list[Plan], list[int]]:
    """Plans after a look at the link, those ``offered`` first, and the numbers of those to try, in their order.

    Args:
        problem: by what is known now.
        offered: the parts of each plan so far.
        current: the number of the one that is used.
        alarm: whether steps have changed their pace: then whatever is predicted to be faster is tried, and the better
            baseline.
        verified: whether real steps have shown that what is used is no slower than the baselines.
    """
    known = [problem.plan(list(parts)) for parts in offered]
    plans = [plan for plan in known if plan is not None]
    best = make_plan(problem)
    number = next((k for k, plan in enumerate(plans) if plan.parts == best.parts), len(plans))
    plans += [best] if number == len(plans) else []
    used = plans[current].cost
    challengers = [number] if best.cost < _FASTER * used or (alarm and best.cost < used) else []
    if alarm or not verified or plans[0].cost < _FASTER * used:
        challengers.append(0)
    return plans, [k for k in dict.fromkeys(challengers) if k != current]
