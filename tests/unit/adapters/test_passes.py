"""Backward passes, and the exchanges beside them: in one process, by passes of a model without any sharding."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from grace.adapters.passes import Passes
from tests.patience import PATIENCE


class Late:
    def __init__(self, seen: list[str], name: str):
        self.seen, self.name = seen, name

    def settle(self) -> None:
        self.seen.append(f"settle {self.name}")


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def passes(seen: list[str]) -> Iterator[Passes]:
    made = Passes(torch.device("cpu"), lambda: seen.append("end"), contextlib.nullcontext)
    yield made
    made.close()


def run(*hooks: Callable[[], None]) -> None:
    """A backward pass in which these are called one after the other."""
    x = torch.ones(1, requires_grad=True)
    out = x * 1
    for hook in reversed(hooks):
        out = out * 1

        def call(gradient: Tensor, hook: Callable[[], None] = hook) -> None:
            hook()

        out.register_hook(call)
    out.sum().backward()


def test_a_pass_goes_on_while_its_exchanges_run_and_ends_after_them(passes: Passes, seen: list[str]) -> None:
    began, computed = [], threading.Event()

    def reduce(name: str) -> None:
        began.append(passes.begin())

        def exchange() -> None:
            computed.wait(PATIENCE)
            seen.append(f"exchange {name}")

        passes.submit(exchange)
        passes.settle(Late(seen, name))

    def compute() -> None:
        seen.append("compute")
        computed.set()

    for _ in range(2):
        computed.clear()
        run(lambda: reduce("a"), lambda: reduce("b"), compute)
    once = ["compute", "exchange a", "exchange b", "settle a", "settle b", "end"]
    assert seen == 2 * once
    assert began == [True, False, True, False]


def test_what_is_waited_for_is_there_at_once(passes: Passes, seen: list[str]) -> None:
    def reduce() -> None:
        passes.begin()
        passes.submit(lambda: seen.append("first"))
        passes.submit(lambda: seen.append("second"), wait=True)
        seen.append("goes on")
        passes.settle(None)

    run(reduce)
    assert seen == ["first", "second", "goes on", "end"]


def test_an_error_comes_at_the_end_and_nothing_is_exchanged_after_it(passes: Passes, seen: list[str]) -> None:
    def fail() -> None:
        raise ValueError("the network")

    def reduce(job: Callable[[], None]) -> None:
        passes.begin()
        passes.submit(job)
        passes.settle(Late(seen, "it"))

    with pytest.raises(ValueError, match="the network"):
        run(lambda: reduce(fail), lambda: reduce(lambda: seen.append("exchange")), lambda: seen.append("compute"))
    assert seen == ["compute"]
    run(lambda: reduce(lambda: seen.append("exchange")))
    assert seen == ["compute", "exchange", "settle it", "end"]


def test_a_pass_that_was_broken_off_is_forgotten(passes: Passes, seen: list[str]) -> None:
    """Not only never ended: what was to come of it does not come of the next one."""

    def reduce(name: str) -> None:
        assert passes.begin()
        passes.submit(lambda: None)
        passes.settle(Late(seen, name))

    def stop() -> None:
        raise ValueError("the user's")

    with pytest.raises(ValueError, match="the user's"):
        run(lambda: reduce("old"), stop)
    run(lambda: reduce("new"))
    assert seen == ["settle new", "end"]


def test_no_more_than_two_groups_wait(passes: Passes) -> None:
    go, waiting, most = threading.Event(), [], []

    def reduce(name: int) -> None:
        passes.begin()
        if name == 2:
            threading.Timer(0.05, go.set).start()  # while this one waits for room
        waiting.append(name)
        passes.submit(lambda: go.wait(PATIENCE) and waiting.remove(name))
        most.append(len(waiting))
        passes.settle(None)

    run(*(lambda name=name: reduce(name) for name in range(6)))  # type: ignore[misc]
    assert max(most) == 2
    assert not waiting


def test_outside_of_a_pass_an_exchange_is_one_of_its_own(passes: Passes, seen: list[str]) -> None:
    assert passes.begin()
    passes.submit(lambda: seen.append("exchange"))
    passes.settle(Late(seen, "it"))
    assert seen == ["exchange", "settle it", "end"]


def test_on_an_accelerator_it_is_done_where_torch_asks(seen: list[str]) -> None:
    passes = Passes(torch.device("cuda"), lambda: seen.append("end"), contextlib.nullcontext)
    assert not passes.overlaps

    def reduce() -> None:
        passes.begin()
        passes.submit(lambda: seen.append("exchange"), wait=True)
        passes.settle(None)

    run(reduce, lambda: seen.append("compute"))
    assert seen == ["exchange", "compute", "end"]
