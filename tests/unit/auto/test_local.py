"""``auto`` where only every fourth step is exchanged: links and clocks are only modelled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grace.adapters.outer.door import LocalSteps
from grace.adapters.outer.presets import OuterSettings
from grace.auto.driver import Driver
from grace.errors import StateError
from grace.registry import spell
from grace.registry.policy import Policy
from grace.run import worker as worker_module
from grace.run.options import Options
from grace.run.parked import Parked
from tests.unit.auto.handles import AUTO, MS, both

EVERY, STEP = 4, 100 * MS


class Modelled(LocalSteps):
    """With a clock of its own: a step takes 100 ms, and an exchange what the link says of its method."""

    def __init__(self, transport: Any, link: dict[str, float], method: Any = AUTO, warmup_steps: int = 0):
        self.now, self.link = 0, link
        self._clock = lambda: self.now
        self.used: list[str] = []
        torch.manual_seed(1)
        self.net = nn.Linear(64, 64)
        with torch.no_grad():  # so that all grads are zeros, and the test moves parameters
            optimizer = torch.optim.SGD(self.net.parameters(), lr=1.0)
        settings = OuterSettings(every=EVERY, warmup_steps=warmup_steps)
        super().__init__(self.net, optimizer, method, Options(), settings, transport=transport)

    def _exchange_bucket(self, gradients: dict[str, Tensor], last: bool, into: Any = None) -> Any:
        if last:
            like = self.net.weight
            self.used.append(spell(self._session.policy.method_for("weight", like, 0)))
            self.now += int(MS * self.link.get(self.used[-1], 1.0))
        return super()._exchange_bucket(gradients, last, into)

    def train(self, steps: int, first: int = 0) -> dict[str, Tensor]:
        """The sum of the moves, which are those of gradients that are drawn."""
        moved = {name: torch.zeros_like(p) for name, p in self.net.named_parameters()}
        for index in range(first, first + steps):
            draw = torch.Generator().manual_seed(2 * index + self.rank)
            for name, p in self.net.named_parameters():
                p.grad = torch.randn(p.shape, generator=draw)
                moved[name] += p.grad
            self.now += STEP
            self._optimizer.step()
        return moved


def test_a_round_is_what_is_measured(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Modelled:
        handle = Modelled(member, link)
        handle.train(30)
        handle.sync()  # in the middle of a window, before an evaluation
        handle.train(4 * 60)
        return handle

    first, second = both(job)
    assert first.used == second.used
    assert "topk" in first.used[-5:]
    explained = first.explain()
    assert {bucket.method for bucket in explained.buckets if bucket.numbers > 1024} == {"topk"}
    assert explained.compute == pytest.approx(0.4), "of a window"
    assert explained.verified_at is not None
    assert "a step here is a round: 4 local steps and their exchange" in str(explained)
    assert all(torch.equal(p, q) for p, q in zip(first.net.parameters(), second.net.parameters(), strict=True))


def test_rounds_of_other_lengths_would_mislead(link: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "irregular", lambda driver: None)

    def job(member: Any, rank: int) -> Modelled:
        handle = Modelled(member, link)
        for _ in range(30):
            handle.train(1)
            handle.sync()
        return handle

    assert both(job)[0].explain().compute == pytest.approx(0.1), "windows that were ended early taken for whole ones"


def balance(link: dict[str, float]) -> float:
    """The largest difference between what the replicas moved, and what was applied and is owed."""

    def job(member: Any, rank: int) -> tuple[Modelled, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        handle = Modelled(member, link, "auto:methods=(topk)")
        start = {name: p.detach().clone() for name, p in handle.net.named_parameters()}
        moved = handle.train(4 * 40)
        session = handle._session
        handle._driver.end("the test goes on")  # type: ignore[union-attr]
        session.offer([f"topk:ratio={ratio}" for ratio in (0.01, 0.02)] + ["none"])
        for k, number in enumerate((0, 1, 2, 0, 2, 1)):
            session.use(number, trial=k % 2 == 0)
            more = handle.train(4, first=4 * (40 + k))
            moved = {name: x + more[name] for name, x in moved.items()}
        return handle, start, moved, session.worker.state.debts()

    ends = both(job)
    worst = 0.0
    for name, p in ends[0][0].net.named_parameters():
        owed = sum((end[3].get(name, torch.zeros_like(p)) for end in ends), torch.zeros_like(p)) / 2
        computed = sum((end[2][name] for end in ends), torch.zeros_like(p)) / 2
        worst = max(worst, float((ends[0][1][name] - p.detach() + owed - computed).abs().max()))
    return worst


def test_nothing_is_lost_whatever_is_used(link: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    assert balance(link) < 0.15  # bf16 rounds, in its trial

    class Forgetting(Parked):
        def put(self, name: str, method: Any, state: Any) -> None:
            return None

    monkeypatch.setattr(worker_module, "Parked", Forgetting)
    assert balance(link) > 1, "a memory that is not parked"


def test_a_run_that_is_too_short_says_so(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Modelled:
        handle = Modelled(member, link)
        handle.train(4 * 3)
        assert "the model is known after 4 more steps" in str(handle.explain())
        handle.detach()
        return handle

    first = both(job)[0]
    assert "the run was 4 steps too short for the model to be known" in str(first.explain())
    assert set(first.used) == {"topk"}, "what codecs and the link said"


def test_its_state_is_where_it_goes_on(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Modelled:
        first = Modelled(member, link)
        first.train(4 * 12 + 2)
        saved = first.state_dict()
        assert saved["auto"]["methods"]["weight"] == "topk"
        again = Modelled(member, link)
        again.load_state_dict(saved)
        assert not again.synchronized
        with pytest.raises(StateError, match="lacks"):
            again.load_state_dict({key: x for key, x in saved.items() if key != "reference"})
        again.train(4 * 40)
        fixed = Modelled(member, link, "topk")
        fixed.load_state_dict(saved)
        fixed.train(4)
        return again

    first, second = both(job)
    assert first.used[0] == first.used[-1] == "topk"
    assert first.used == second.used
    assert first.explain().stage == "running"


def test_bits_by_layer_follow_the_moves(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Modelled:
        handle = Modelled(member, link, Policy.adaptive("qsgd", budget=4.0, every=2))
        handle.train(4 * 4)
        return handle

    first, second = both(job)
    assert first.used == second.used
    assert "weight: 4,096 numbers, qsgd" in str(first.explain())
