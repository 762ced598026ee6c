"""Cases of the laws: those that each method declares, and every communicator and memory that is registered, around
methods that stand for all kinds of wires.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grace
from grace.contract.method import Method
from grace.errors import CompositionError
from grace.registry import COMMUNICATORS, MEMORIES, recipe

# Every communicator, with and without the usual memory, is run around these, which have all kinds of wires; around others
# what their recipe says.
AROUND = ("none", "fp16", "efsignsgd", "qsgd", "randomk", "threshold", "topk")
WITHOUT_MOMENTUM = ("topk:ratio=0.2,memory=dgc,momentum=0", "topk:ratio=0.2,memory=distef,mu=0")  # lose nothing, either
REMEMBERED = ("topk",)  # every other memory is run around these
ROUNDS = (
    "server_memory",
    "warm_start",
    "start_step",
    "alternate",
    "follow_lr",
)  # knobs that change who sends what when
WHOLE = (
    "qsgd",
    "randomk",
)  # around these every communicator stays in `make test` for every law: wires gathered, and summed

KNOBS = {name: recipe(name).cases for name in grace.methods()}
# (method, kind of input): what comes back without error, for workers 0, 1, ...
EXACT = {(name, kind): knobs for name in grace.methods() for kind, knobs in recipe(name).recovers}


def spell_case(name: str, *knobs: str) -> str:
    given = ",".join(knob for knob in knobs if knob)
    return f"{name}:{given}" if given else name


def _specs() -> list[str]:
    """Each case as the recipe says; the first also over ScatterReduce and without a memory, or around everything."""
    out: list[str] = []
    for name, (first, *more) in KNOBS.items():
        bare = recipe(name).communicator is None
        out += [spell_case(name, knobs) for knobs in (first, *more)]
        if name in AROUND:
            around = [f"communicator={communicator}" for communicator in COMMUNICATORS.names()]
            out += [spell_case(name, first, outer, f"memory={m}") for outer in around for m in ("none", "residual")]
            others = MEMORIES.names() if name in REMEMBERED else ("momentum",)
            out += [spell_case(name, first, f"memory={m}") for m in others if m != "residual"]
        elif bare:
            out.append(spell_case(name, first, "memory=none"))
        else:
            out += [spell_case(name, first, "communicator=scatterreduce"), spell_case(name, first, "memory=none")]
    return out


def _cases() -> dict[str, Method]:
    made: dict[str, Method] = {}
    for spec in _specs():
        try:
            method = grace.method(spec)
        except CompositionError:  # pieces that do not fit; tests/unit/test_communicators.py asserts which, and why
            continue
        if method not in made.values():  # two spellings of one method, such as its defaults
            made[spec] = method
    last = "parameterserver:server=1"
    inner = grace.method("topk:ratio=0.2")
    return made | {
        "momentum(residual(topk))": grace.Momentum(inner),
        last: grace.ParameterServer(grace.QSGD(bits=3), 1),
        **{spec: grace.method(spec) for spec in WITHOUT_MOMENTUM},
    }


CASES: dict[str, Method] = _cases()
_NAMES = [spec.partition(":")[0] for spec in CASES]
# The first case of each method, and around some of them every communicator, with and without a memory, and every memory.
STAY = [
    spec
    for i, (spec, name) in enumerate(zip(CASES, _NAMES, strict=True))
    if _NAMES.index(name) == i
    or (name in WHOLE and "communicator" in spec)
    or name in REMEMBERED
    or any(knob in spec for knob in ROUNDS)
]
# Of what is measured of random methods; with as many test_mutants.py catches those that are biased, or promise too much.
DRAWS = 80


def by_tier(of: Iterable[str] = CASES) -> list[Any]:
    """Parameters of a law: the cases in :data:`STAY` are of `make test`, and the others, which put the same pieces together
    around other numbers, of `make laws` (tests/tiers.py).
    """
    import pytest  # worker processes that read the cases need none

    return [spec if spec in STAY else pytest.param(spec, marks=pytest.mark.tier("laws")) for spec in of]


def by_night(*defects: str, of: Iterable[str] = CASES) -> list[Any]:
    """Parameters of a law that follows from how pieces are put together: the cases in :data:`STAY` are of
    `make test`, and the others, which put the same pieces together around other numbers, are left to the night.
    """
    import pytest  # worker processes that read the cases need none

    return [spec if spec in STAY else pytest.param(spec, marks=pytest.mark.night(*defects)) for spec in of]
