"""Refuses what came from the network without asking the host: what is wrong is kept on the device and raised two steps later.

On the CPU :func:`refuse_unless` raises at once. On an accelerator a decoder goes on, with numbers that cannot hurt (an index
is clamped), and whether all was well becomes a :data:`grace.flags.finite.Flag`: the exchange then counts as one that failed
(its mean is NaN, its memory stays as it was), and the error is raised when the worker reads it, two steps later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from torch import Tensor

from grace.collectives import Exchange
from grace.flags.finite import Flag, and_, not_, on_host, or_

T = TypeVar("T")
Problem = Callable[[], Exception]  # makes the error; it may read tensors then


class Refusals:
    """Flags that should hold, of any shapes, and the errors for those that do not. As a context it collects what is refused
    inside.
    """

    def __init__(self) -> None:
        self.checks: list[tuple[Tensor, Problem]] = []

    def __enter__(self) -> Refusals:
        _stack().append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _stack().pop()

    @property
    def ok(self) -> Flag:
        """True if nothing was refused."""
        out: Flag = True
        for fine, _ in self.checks:
            out = and_(out, fine.all() if fine.ndim else fine)
        return out

    def watch(self, exchange: Exchange[T]) -> Exchange[T]:
        """The same exchange; what it refuses between two collectives is collected here."""
        message: Tensor | None = None
        error: BaseException | None = None
        while True:
            try:
                with self:
                    if error is not None:
                        op = exchange.throw(error)
                    else:
                        op = next(exchange) if message is None else exchange.send(message)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            error = None
            try:
                message = yield op
            except GeneratorExit:
                exchange.close()
                raise
            except BaseException as thrown:
                error = thrown


_local = threading.local()


def _stack() -> list[Refusals]:
    stack: list[Refusals] | None = getattr(_local, "stack", None)
    if stack is None:
        stack = _local.stack = []
    return stack


def refuse_unless(fine: Tensor | bool, problem: Problem) -> None:
    """Raises what ``problem`` makes unless ``fine`` holds, a bool or all of a bool tensor of any shape: at once if the host
    can tell, else later.

    Raises:
        PayloadError, or whatever ``problem`` makes.
    """
    if isinstance(fine, Tensor) and not on_host(fine.device):
        stack = _stack()
        if stack:
            stack[-1].checks.append((fine, problem))
            return
    if not (bool(fine.all()) if isinstance(fine, Tensor) else fine):
        raise problem()


def decode(finite: Flag, run: Callable[[], Any]) -> Flag:
    """Runs a decoder on payloads that mean nothing unless ``finite``. Whether they were finite and none was refused."""
    if isinstance(finite, bool):
        if finite:
            run()
        return finite
    with Refusals() as refusals:
        run()
    if not refusals.checks:
        return finite
    fine, problems = refusals.ok, [problem for _, problem in refusals.checks]
    refuse_unless(or_(not_(finite), fine), lambda: _first(problems))
    return and_(finite, fine)


def _first(problems: list[Problem]) -> Exception:
    """An error for several checks, at least one of which failed."""
    errors = [problem() for problem in problems]
    texts = list(dict.fromkeys(str(error) for error in errors))
    return errors[0] if len(texts) == 1 else type(errors[0])("one of: " + "; ".join(texts))
