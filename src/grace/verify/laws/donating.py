"""Law 6, donation: answers may lie in the buffers that were donated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from grace.collectives import AllReduce, Collective, Exchange, watch
from grace.contract.method import Method
from grace.grid import Grid
from grace.run import simulate
from grace.verify.inputs import UGLY
from grace.verify.outcome import Held, Profile
from grace.verify.running import run, same_bits
from grace.verify.subject import Subject
from grace.verify.trials import make_workers


def answers_may_alias(method: Method[Any], xs: Sequence[Tensor]) -> None:
    """It makes no difference whether the answer to a donated buffer lies in that buffer."""
    for keep_rest in (False, True):
        donated: list[Tensor] = []
        aliased = run(method, xs, keep_rest=keep_rest, runner=partial(in_place, donated=donated))
        if not donated:
            continue  # both runs would be the same
        apart = run(method, xs, keep_rest=keep_rest)
        for rank, (a, b) in enumerate(zip(apart, aliased, strict=True)):
            assert same_bits(a.mean, b.mean), f"donation: rank {rank} has another mean if answers are in place"
            if a.rest is not None and b.rest is not None:
                assert same_bits(a.rest, b.rest), f"donation: rank {rank} has another rest if answers are in place"


def in_place(exchanges: list[Exchange[Any]], grid: Grid | None = None, *, donated: list[Tensor]) -> list[Any]:
    """As ``simulate``, but the answer to a donated buffer lies in that buffer, as with real transports. Such buffers are
    added to ``donated``.
    """

    def answer_in_place(op: Collective, answer: Tensor) -> Tensor:
        if not (isinstance(op, AllReduce) and op.donate):
            return answer
        donated.append(op.buf)
        return op.buf.copy_(answer)

    return simulate([watch(exchange, hear=answer_in_place) for exchange in exchanges], grid)


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    for name in ("odd size", "f16", "non-contiguous"):
        answers_may_alias(subject.core, make_workers(UGLY[name], max(2, subject.least_world)))
    return Held("bit for bit")
