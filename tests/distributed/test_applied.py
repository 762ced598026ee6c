"""Gradients that nobody applies, at the doors of torch: what is dropped owes nothing, and what is accumulated is applied."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.run.worker import Worker
from tests.distributed.ddp_models import weights
from tests.distributed.processes import Pool
from tests.distributed.sharded_models import pytestmark as sharded_here

STEPS = 20  # with a pass between each that must leave nothing behind
SPECS = ("topk:ratio=0.01", "efsignsgd", "powersgd", "randomk:ratio=0.01")


def net(inputs: int, outputs: int, seed: int, **options: Any) -> DistributedDataParallel:
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))
    return DistributedDataParallel(layers, **options)


def numbers(rank: int) -> Iterator[Tensor]:
    made = torch.Generator().manual_seed(rank)
    while True:
        yield torch.randn(32, 16, generator=made)


def logits(x: Tensor, real: bool) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(x, torch.full_like(x, float(real)))


def play(
    rank: int, spec: str, aside: bool, none: bool = True, given: bool = False, **options: Any
) -> tuple[Tensor, Any]:
    """A generator and a discriminator in turn. aside: whether the former's pass is kept from the latter's exchange; it is a
    step all the same, since what a method draws follows the number of the step.
    """
    g, d = net(16, 16, 1, **options), net(16, 1, 2, **options)
    of_g, of_d = torch.optim.SGD(g.parameters(), lr=0.01), torch.optim.SGD(d.parameters(), lr=0.05)
    handles = [grace.attach(m, spec, optimizer=o if given else None) for m, o in ((g, of_g), (d, of_d))]
    data = numbers(rank)
    for _ in range(STEPS):
        of_d.zero_grad(none)
        made = g(next(data)).detach()
        (logits(d(next(data) * 0.5 + 2), True) + logits(d(made), False)).backward()
        of_d.step()
        of_g.zero_grad(none)
        with d.no_sync() if aside else contextlib.nullcontext():
            logits(d(g(next(data))), True).backward()
        if aside:
            handles[1]._session.worker.advance()
        of_g.step()
    stats = handles[1].stats
    for handle in handles:
        handle.detach()
    return weights(d), stats


def gan(rank: int, world: int, spec: str) -> None:
    right, _ = play(rank, spec, aside=True)
    for options in ({}, {"none": False}, {"given": True}, {"gradient_as_bucket_view": True}):
        trained, stats = play(rank, spec, aside=False, **options)
        assert stats.dropped == STEPS - 1, (stats.dropped, options)  # of the last pass nobody knows yet
        assert torch.equal(trained, right), options


@pytest.mark.parametrize(
    "spec", [SPECS[0], *(pytest.param(s, marks=pytest.mark.night("a dropped exchange that stays")) for s in SPECS[1:])]
)
def test_a_generator_s_pass_leaves_nothing_in_the_discriminator(pair: Pool, spec: str) -> None:
    pair.run(gan, spec)


def learn(
    rank: int, spec: str, between: Callable[[Any, Any, Tensor, Tensor], None], **options: Any
) -> tuple[Tensor, Any]:
    """Steps of training, with something between them."""
    model = net(16, 4, 3, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    handle = grace.attach(model, spec)
    data = numbers(rank)
    for _ in range(STEPS):
        x = next(data)
        y = x[:, :4].argmax(1)
        between(model, optimizer, x, y)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    stats = handle.stats
    handle.detach()
    return weights(model), stats


def nothing(*_: Any) -> None:
    """Usual training."""


def attack(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    (-10 * nn.functional.cross_entropy(model(x + 0.1), y)).backward()
    model.zero_grad()


def skipped(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    """A step that is skipped for its norm, and what is cleared after two passes."""
    for _ in range(2):
        nn.functional.cross_entropy(model(x), y).mul(100).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.zero_grad(set_to_none=False)


def ascent(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
    """The first pass of SAM, which moves the parameters there and back."""
    nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        moves = [p.grad * 0.01 for p in model.parameters()]
        for sign in (1, -1):
            for p, move in zip(model.parameters(), moves, strict=True):
                p.add_(move, alpha=sign)
    optimizer.zero_grad()


def aside(kind: Callable[..., None]) -> Callable[..., None]:
    """The same, of which nothing is exchanged: for SAM, whose parameters come back with roundings, with the means."""

    def run(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        with model.no_sync():
            kind(model, optimizer, x, y)

    return run


def dropped(rank: int, world: int, spec: str, kind: Any, times: int) -> None:
    right, _ = learn(rank, spec, nothing)
    for options in ({}, {"gradient_as_bucket_view": True}):
        trained, stats = learn(rank, spec, kind, **options)
        assert stats.dropped == times * STEPS, (stats.dropped, options)
        close = {"rtol": 1e-3, "atol": 1e-4} if kind is ascent else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(trained, right, **close)


@pytest.mark.parametrize(("kind", "times"), [(attack, 1), (skipped, 2), (ascent, 1)])
def test_a_pass_that_is_dropped_changes_nothing(pair: Pool, kind: Any, times: int) -> None:
    pair.run(dropped, "topk:ratio=0.05", kind, times)


def test_it_does_where_nothing_is_undone(pair: Pool) -> None:
    with pytest.raises(AssertionError):
        pair.run(never_undone)


def never_undone(rank: int, world: int) -> None:
    own = Worker.settle
    Worker.settle = lambda self, dropped=(), waiting=(): own(self, (), waiting)  # type: ignore[method-assign]
    try:
        right, _ = learn(rank, "topk:ratio=0.05", nothing)
        trained, _ = learn(rank, "topk:ratio=0.05", attack)
    finally:
        Worker.settle = own  # type: ignore[method-assign]
    assert torch.equal(trained, right)


def accumulate(rank: int, world: int, spec: str) -> None:
    """Two passes for each step, with an exchange each: as where nothing can be undone."""

    def train() -> tuple[Tensor, int]:
        model = net(16, 4, 3)
        optimizer, handle, data = torch.optim.SGD(model.parameters(), lr=0.05), grace.attach(model, spec), numbers(rank)
        for _ in range(10):
            for _ in range(3):
                model(next(data)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        handle.detach()
        return weights(model), handle.stats.dropped

    trained, count = train()
    own = Worker.keep_unapplied
    Worker.keep_unapplied = lambda *_: None  # type: ignore[method-assign, assignment]
    try:
        plain, _ = train()
    finally:
        Worker.keep_unapplied = own  # type: ignore[method-assign]
    assert count == 0
    assert torch.equal(trained, plain)


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "powersgd"])
def test_passes_that_add_up_are_applied(pair: Pool, spec: str) -> None:
    pair.run(accumulate, spec)


# ---- the optimizer's door --------------------------------------------------------------------------------------------
def by_optimizer(rank: int, world: int, clear: str) -> None:
    def train(dropping: bool) -> tuple[Tensor, int]:
        model = net(16, 4, 3).module
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizer = grace.DistributedOptimizer(optimizer, "topk:ratio=0.05", model.named_parameters())
        data = numbers(rank)
        for _ in range(20):
            x = next(data)
            if dropping:
                (-10 * model(x).square().mean()).backward()
                optimizer.synchronize()
                if clear == "none":
                    model.zero_grad()
                else:
                    optimizer.zero_grad(set_to_none=clear == "optimizer")
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.handle.detach()
        return weights(model), optimizer.handle.stats.dropped

    right, _ = train(dropping=False)
    trained, count = train(dropping=True)
    assert count == 20
    assert torch.equal(trained, right)


@pytest.mark.parametrize("clear", ["optimizer", "zeros", "none"])
def test_what_is_synchronized_and_dropped_owes_nothing(pair: Pool, clear: str) -> None:
    pair.run(by_optimizer, clear)


def closures(rank: int, world: int) -> None:
    """LBFGS uses what each evaluation gives: nothing of it is undone."""
    model = net(16, 4, 3).module
    optimizer = grace.DistributedOptimizer(
        torch.optim.LBFGS(model.parameters(), max_iter=4), "bf16", model.named_parameters()
    )
    x = next(numbers(rank))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert optimizer.handle.stats.dropped == 0
    optimizer.handle.detach()


def test_a_closure_s_gradients_are_used(pair: Pool) -> None:
    pair.run(closures)


def before_a_closure(rank: int, world: int) -> None:
    """A closure that clears what was there before the step began, and was not applied: as where a trainer skips a step."""

    def train(dropping: bool) -> tuple[Tensor, int]:
        model = net(16, 4, 3)
        optimizer, handle = torch.optim.SGD(model.parameters(), lr=0.05), grace.attach(model, "topk:ratio=0.05")
        data = numbers(rank)
        for _ in range(20):
            x = next(data)
            if dropping:
                (-10 * model(x).square().mean()).backward()

            def closure(x: Tensor = x) -> Tensor:
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                return loss

            optimizer.step(closure)
        handle.detach()
        return weights(model), handle.stats.dropped

    right, none = train(dropping=False)
    trained, count = train(dropping=True)
    assert (none, count) == (0, 20)
    assert torch.equal(trained, right)


def test_a_closure_drops_what_was_there_before(pair: Pool) -> None:
    pair.run(before_a_closure)


# ---- states between an exchange and a step --------------------------------------------------------------------------
def states(rank: int, world: int) -> None:
    model = net(16, 4, 3)
    optimizer, handle, data = (
        torch.optim.SGD(model.parameters(), lr=0.05),
        grace.attach(model, "topk:ratio=0.05"),
        numbers(rank),
    )

    def memory() -> Tensor:
        return torch.cat([state[0].flatten() for state in handle.state_dict()["states"].values() if state is not None])

    def go() -> None:
        model(next(data)).square().mean().backward()

    go()
    optimizer.step()
    optimizer.zero_grad()
    before = memory()
    go()
    waiting = memory()
    assert not torch.equal(waiting, before), "it may still be applied"
    optimizer.zero_grad()
    assert torch.equal(memory(), before)
    go()
    after = memory()
    optimizer.step()
    optimizer.zero_grad()
    assert torch.equal(memory(), after)
    assert handle.stats.dropped == 1
    handle.detach()


def test_a_state_is_of_what_counts(pair: Pool) -> None:
    pair.run(states)


# ---- where nobody can know ------------------------------------------------------------------------------------------
def by_hand(rank: int, world: int, changes: str) -> int:
    """Number of warnings that nobody can know, where no optimizer of torch's is at work."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("grace").addHandler(handler)
    model = net(16, 4, 3)
    handle, data = grace.attach(model, "topk:ratio=0.05"), numbers(rank)
    for _ in itertools.repeat(None, 4):
        model(next(data)).square().mean().backward()
        for p in model.parameters():
            if changes == "data":
                p.data.sub_(p.grad, alpha=0.1)
            else:
                with torch.no_grad():
                    p.sub_(p.grad, alpha=0.1)
            p.grad = None
    assert handle.stats.dropped == 0
    handle.detach()
    logging.getLogger("grace").removeHandler(handler)
    assert all("torch.autograd.grad for an attack" in text for text in messages)
    return len(messages)


def test_steps_by_hand_count_and_are_asked_about_once_where_torch_does_not_tell(pair: Pool) -> None:
    assert pair.run(by_hand, "under no_grad") == [0, 0]
    assert pair.run(by_hand, "data") == [1, 0]


# ---- a sharded model ------------------------------------------------------------------------------------------------
def sharded(rank: int, world: int, clear: str) -> None:
    from tests.distributed.sharded_models import make

    def train(dropping: bool) -> tuple[list[Tensor], int]:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        handle = grace.attach(model, "topk:ratio=0.05")
        made = torch.Generator().manual_seed(rank)
        for step in range(12):
            x = torch.randn(8, 32, generator=made)
            if dropping:
                for _ in range(1 + step % 2):  # two passes that add up are dropped together
                    (-10 * model(x).square().mean()).backward()
                optimizer.zero_grad(set_to_none=clear == "none")
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=clear == "none")
        handle.detach()
        return [p.detach().to_local().clone() for p in model.parameters()], handle.stats.dropped

    right, _ = train(dropping=False)
    trained, count = train(dropping=True)
    assert count == 18, count
    assert all(map(torch.equal, trained, right))


@sharded_here
@pytest.mark.parametrize("clear", ["none", "zeros"])
def test_what_is_dropped_of_a_sharded_model_owes_nothing(pair: Pool, clear: str) -> None:
    pair.run(sharded, clear)
