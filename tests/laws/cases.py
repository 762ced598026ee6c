"""What the laws run over: the cases that each method declares, and compositions that stand for all kinds of wires."""

from __future__ import annotations

import grace
from grace.contract.method import Method
from grace.errors import CompositionError
from grace.registry import recipe

COMMUNICATORS = ("allreduce", "allgather", "broadcast", "scatterreduce", "parameterserver")

# Every communicator and memory is run around these, which have all kinds of wires; around others what their recipe says.
AROUND = ("none", "fp16", "efsignsgd", "qsgd", "randomk", "threshold", "topk")

KNOBS = {name: recipe(name).cases for name in grace.methods()}
# (method, kind of input): what comes back without error, for workers 0, 1, ...
EXACT = {(name, kind): knobs for name in grace.methods() for kind, knobs in recipe(name).recovers}


def spell_case(name: str, *knobs: str) -> str:
    given = ",".join(knob for knob in knobs if knob)
    return f"{name}:{given}" if given else name


def _specs() -> list[str]:
    """Each case as the recipe says; the first also over ScatterReduce and without a memory, or around everything."""
    out: list[str] = []
    for name, (first, *others) in KNOBS.items():
        bare = recipe(name).communicator is None
        out += [spell_case(name, knobs) for knobs in (first, *others)]
        if name in AROUND:
            around = [f"communicator={communicator}" for communicator in COMMUNICATORS]
            out += [spell_case(name, first, one, f"memory={m}") for one in around for m in ("none", "residual")]
            out.append(spell_case(name, first, "memory=momentum"))
        elif bare:
            out.append(spell_case(name, first, "memory=none"))
        else:
            out += [spell_case(name, first, "communicator=scatterreduce"), spell_case(name, first, "memory=none")]
    return out


def _cases() -> dict[str, Method]:
    made = {}
    for spec in _specs():
        try:
            made[spec] = grace.method(spec)
        except CompositionError:  # pieces that do not fit; tests/unit/test_communicators.py asserts which, and why
            continue
    last = "parameterserver:server=1"
    inner = grace.method("topk:ratio=0.2")
    return made | {
        "momentum(residual(topk))": grace.Momentum(inner),
        last: grace.ParameterServer(grace.QSGD(bits=3), 1),
    }


CASES: dict[str, Method] = _cases()
