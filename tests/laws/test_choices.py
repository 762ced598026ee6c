"""A worker that changes between choices at random loses nothing of what memories owe, and nothing jumps into one gradient."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from grace import Policy, Rule
from grace import method as make_method
from grace.errors import ConfigurationError, StateError
from grace.run import Simulator, Worker
from grace.run import worker as worker_module
from grace.run.options import Options
from grace.run.parked import INSTALMENTS, Parked, memory_of
from grace.run.session import Session
from grace.run.simulate import simulate
from grace.transports.alone import Alone

SHAPES = {"w": (40, 30), "v": (1500,)}
CHOICES = (
    "topk:ratio=0.02",
    "none",
    "efsignsgd",
    "varsparse",
    "powersgd:rank=1",
    "onebit",
)  # all owe what they do not send
W = 3


def only(method: Any) -> Policy:
    return Policy([("*", method)])


def choosing(*choices: str, world: int = W) -> Simulator:
    """Workers that were offered these, and use the first."""
    sim = Simulator(only(choices[0]), world)
    for worker in sim.workers:
        worker.offer([only(name) for name in choices])
        worker.use(0)
    return sim


def use(sim: Simulator, number: int, *, trial: bool = False) -> None:
    for worker in sim.workers:
        worker.use(number, trial=trial)


def owed_by(worker: Worker) -> dict[str, Tensor]:
    """Debts of a worker, wherever they are, by tensor."""
    total = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    for name, x in worker._owed.left.items():
        total[name] += x
    held = [(name, *pair) for name, pair in worker._states.items()]
    for name, method, state in (*held, *worker._parked.all()):
        if (debt := method.owed(state)) is not None:
            total[name] += debt
    return total


def saved_and_loaded(sim: Simulator, home: int) -> Simulator:
    """Other workers that go on from what these have saved, with the choice that these come back to."""
    saved = sim.state_dict()
    new = choosing(CHOICES[home], *CHOICES)
    for worker, state in zip(new.workers, saved["workers"], strict=True):
        worker.load_state_dict(state, {name: torch.empty(shape) for name, shape in SHAPES.items()})
        worker.offer([only(name) for name in CHOICES])
        worker.use(home)
    return new


def walk(seed: int, steps: int = 50, *, restarts: bool = False) -> float:
    """The largest difference, over steps, between the sum of gradients and what was applied and is owed."""
    rng, sim, home = random.Random(seed), choosing(*CHOICES), 0
    draw = torch.Generator().manual_seed(seed)
    balance = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    worst = 0.0
    for _ in range(steps):
        if rng.random() < 0.4:
            number, trial = rng.randrange(len(CHOICES)), rng.random() < 0.6
            home = home if trial else number
            use(sim, number, trial=trial)
        if restarts and rng.random() < 0.2:
            sim = saved_and_loaded(sim, home)
        xs = {name: [torch.randn(shape, generator=draw) for _ in range(W)] for name, shape in SHAPES.items()}
        means = sim.step(xs)
        debts = [owed_by(worker) for worker in sim.workers]
        for name, mean in means.items():
            balance[name] += sum(xs[name]) / W - mean
            owed = sum(debt[name] for debt in debts) / W
            worst = max(worst, float((balance[name] - owed).abs().max()))
    return worst


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_whatever_is_used(seed: int) -> None:
    assert walk(seed) < 2e-4


def test_nothing_is_lost_between_the_steps_of_a_trial() -> None:
    assert walk(7, restarts=True) < 2e-4


class Forgetting(Parked):
    """Keeps nothing of a method that is left."""

    def put(self, name: str, method: Any, state: Any) -> None:
        return None


def test_the_law_catches_a_state_that_is_not_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "Parked", Forgetting)
    assert walk(0) > 0.1


# ---- rows, of which each worker gets its own ---------------------------------------------------------------------------
ROWS = {"w": (W, 500), "v": (W, 40)}
TO_OWNERS = ("topk:ratio=0.02", "none", "efsignsgd", "onebit")


def walk_rows(seed: int, steps: int = 50) -> tuple[float, float]:
    """As :func:`walk`, of rows; where nothing is compressed and nothing owed, the network adds them up without the workers.
    And what is still owed when nothing was compressed for a while.
    """
    rng, sim = random.Random(seed), choosing(*TO_OWNERS)
    draw = torch.Generator().manual_seed(seed)
    balance = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in ROWS.items()}
    like = {name: torch.empty(shape, device="meta") for name, shape in ROWS.items()}
    worst, plain = 0.0, 0
    for step in range(steps + INSTALMENTS + 1):
        if step == steps:
            use(sim, TO_OWNERS.index("none"))
        elif step < steps and rng.random() < 0.4:
            use(sim, rng.randrange(len(TO_OWNERS)), trial=rng.random() < 0.6)
        xs = {name: [torch.randn(shape, generator=draw) for _ in range(W)] for name, shape in ROWS.items()}
        sums = {name: torch.stack(each).sum(0) for name, each in xs.items()}
        as_it_is = sim.workers[0].policy == only("none") and all([worker.owes_nothing(like) for worker in sim.workers])  # noqa: C419 - of each
        plain += as_it_is
        if as_it_is:
            means = {name: x / W for name, x in sums.items()}
        else:
            given = [{name: each[rank].clone() for name, each in xs.items()} for rank in range(W)]
            outs = simulate([worker.scatter(rows) for worker, rows in zip(sim.workers, given, strict=True)])
            means = {name: torch.stack([out[name].mean.clone() for out in outs]) for name in ROWS}
        for worker in sim.workers:
            worker.workspace.reset()
            worker.advance()
        for name, mean in means.items():
            balance[name] += sums[name] / W - mean
            owed = sum(worker.state.debts().get(name, torch.zeros(())).double() for worker in sim.workers) / W
            worst = max(worst, float((balance[name] - owed).abs().max()))
    assert plain, "some steps were plain"
    return worst, max(worker.memory_norm() for worker in sim.workers)


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_of_rows_and_all_is_paid(seed: int) -> None:
    worst, left = walk_rows(seed)
    assert worst < 2e-4
    assert left == 0


def test_the_law_catches_rows_that_forget_what_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "owes_nothing", lambda worker, like: True)
    assert walk_rows(0)[1] > 0.1


# ---- nothing jumps --------------------------------------------------------------------------------------------------
def largest_mean(*, trial: bool, world: int = 2) -> float:
    """Top-k alternates with plain sums every five steps: the largest mean, in those of the steps before."""
    sim, draw = choosing("topk:ratio=0.01", "none", world=world), torch.Generator().manual_seed(1)
    base = torch.randn(SHAPES["w"], generator=draw)
    before, during = 0.0, 0.0
    for step in range(300):
        exact = step >= 200 and (step // 5) % 2 == 1
        if step >= 200 and step % 5 == 0:
            use(sim, int(exact), trial=trial)
        xs = [base + 0.1 * torch.randn(base.shape, generator=draw) for _ in range(world)]
        norm = float(torch.linalg.vector_norm(sim.step({"w": xs})["w"]))
        before, during = (max(before, norm), during) if step < 200 else (before, max(during, norm))
    return during / before


def test_what_is_owed_does_not_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    assert largest_mean(trial=True) < 1.05, "parked"
    assert largest_mean(trial=False) < 4, "in instalments"
    monkeypatch.setattr(worker_module, "INSTALMENTS", 1)
    assert largest_mean(trial=False) > 5, "all at once"


def test_instalments_pay_all_and_then_nothing() -> None:
    sim = choosing("topk:ratio=0.25", "none", world=1)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert sim.step({"w": [x]})["w"].tolist() == [0, 0, 0, 4]
    use(sim, 1)
    paid = torch.stack([sim.step({"w": [torch.zeros(4)]})["w"] for _ in range(INSTALMENTS)])
    torch.testing.assert_close(paid, (torch.tensor([1.0, 2.0, 3.0, 0.0]) / INSTALMENTS).expand(INSTALMENTS, 4))
    assert sim.step({"w": [torch.zeros(4)]})["w"].tolist() == [0, 0, 0, 0]
    assert sim.workers[0].memory_norm() == 0


def test_a_memory_is_handed_over_to_a_memory_and_waits_through_a_trial() -> None:
    sim = choosing("topk:ratio=0.25", "topk:ratio=0.5", world=1)
    sim.step({"w": [torch.tensor([1.0, 2.0, 3.0, 4.0])]})
    use(sim, 1, trial=True)
    assert sim.step({"w": [torch.tensor([0.0, 0, 0, 1])]})["w"].tolist() == [0, 0, 0, 1], "it waits"
    use(sim, 1)
    assert sim.step({"w": [torch.zeros(4)]})["w"].tolist() == [0, 2, 3, 0], "and is handed over"
    use(sim, 0, trial=True)
    assert sim.step({"w": [torch.zeros(4)]})["w"].tolist() == [0, 0, 0, 0]
    use(sim, 0)
    assert sim.step({"w": [torch.zeros(4)]})["w"].tolist() == [1, 0, 0, 0]


def test_instalments_survive_a_nan_and_a_checkpoint() -> None:
    sim = choosing("topk:ratio=0.25", "none", world=1)
    sim.step({"w": [torch.tensor([1.0, 2.0, 3.0, 4.0])]})
    use(sim, 1)
    sim.step({"w": [torch.full((4,), torch.nan)]})
    first = sim.step({"w": [torch.zeros(4)]})["w"]
    torch.testing.assert_close(first, torch.tensor([1.0, 2, 3, 0]) / INSTALMENTS)
    other, like = Worker(only("none"), 0, 1), {"w": torch.empty(4)}
    saved = sim.workers[0].state_dict()
    other.load_state_dict(saved, like)
    assert other.state.instalments == {"w": INSTALMENTS - 1}
    for damage in ({"w": 0}, {"v": 3}, {"w": True}, 3):
        with pytest.raises(StateError, match="instalments"):
            other.load_state_dict({**saved, "instalments": damage}, like)
    with pytest.raises(StateError, match="are not those that rank 0 saved"):
        other.load_state_dict({**saved, "instalments": {"w": 3}}, like)


def test_a_switch_ends_the_choices() -> None:
    sim = choosing("topk:ratio=0.25", "none", world=1)
    sim.step({"w": [torch.tensor([1.0, 2.0, 3.0, 4.0])]})
    use(sim, 1, trial=True)
    sim.step({"w": [torch.zeros(4)]})
    sim.switch(only("topk:ratio=0.5"))
    assert sim.step({"w": [torch.zeros(4)]})["w"].tolist() == [0, 2, 3, 0]
    with pytest.raises(ConfigurationError, match="number=0 "):
        sim.workers[0].use(0)


def test_which_memories_can_take_a_debt() -> None:
    like = torch.empty(40, 30)
    for text, can in (("topk", True), ("powersgd", True), ("varsparse", False), ("none", False),
                      ("topk:memory=residual,follow_lr=true", False)):  # fmt: skip
        method = make_method(text)
        assert (memory_of(method, method.init(like)) is not None) == can, text


def test_what_is_refused() -> None:
    worker = Worker(only("none"), 0, 1)
    with pytest.raises(ConfigurationError, match="nothing to choose from"):
        worker.offer([])
    with pytest.raises(ConfigurationError, match="follows the step"):
        worker.offer([Policy([Rule("*", "topk", until_step=1), Rule("*", "none")])])
    worker.offer([only("none"), only("topk")])
    with pytest.raises(ConfigurationError, match=r"number=2 .*legal: 0 to 1, as offered"):
        worker.use(2)


def test_a_session_offers_and_uses() -> None:
    like = {"w": torch.empty(64, 64)}
    session = Session(like, "none", Alone())
    session.offer(["none", "topk:ratio=0.25"])
    session.use(1)
    assert session.policy == Policy.of("topk:ratio=0.25")
    session.exchange({"w": torch.ones(64, 64)})
    session.switch("none")
    with pytest.raises(ConfigurationError, match="as offered"):
        session.use(0)
    model = Session(like, "none", Alone(), Options(granularity="model"))
    with pytest.raises(ConfigurationError, match="granularity='model'; legal: 'parameter'"):
        model.offer(["none"])
