"""``auto`` where all gradients come at once, as from TensorFlow, Keras and JAX; links and clocks are only modelled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from grace.adapters.handover import Handover
from grace.errors import ConfigurationError, NonFiniteError
from grace.registry import spell
from grace.run.options import Options
from grace.state import flat
from tests.unit.auto.handles import AUTO, LIKE, MS, both

BUCKET = 4 * (4096 + 64)  # bytes: two buckets, as the other tests have


class Timed(Handover):
    """With a clock of its own: the model computes for 100 ms, and an exchange takes what the link says of its method."""

    def __init__(self, transport: Any, link: dict[str, float], method: Any = AUTO, **options: Any):
        self.now, self.link = 0, link
        self._clock = lambda: self.now
        self.used: list[str] = []
        kinds = [tuple(x.shape) for x in LIKE.values()], [x.dtype for x in LIKE.values()]
        chosen = Options(bucket_bytes=BUCKET, **options)
        super().__init__(list(LIKE), *kinds, method, transport=transport, options=chosen)

    def _exchange_bucket(self, gradients: dict[str, Tensor], last: bool, into: Any = None) -> Any:
        if last:
            self.used.append(spell(self._session.policy.method_for("second", LIKE["second"], 0)))
            self.now += int(MS * self.link[self.used[-1]])
        return super()._exchange_bucket(gradients, last, into)

    def step(self, gradients: list[Tensor]) -> list[Tensor]:
        self.now += 100 * MS
        return [mean for mean in self.mean(gradients) if mean is not None]


def draw(step: int, rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2 * step + rank)
    return [torch.randn(x.shape, generator=generator) for x in LIKE.values()]


def test_it_chooses_loses_nothing_and_says_why(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> tuple[Timed, list[list[Tensor]]]:
        handover = Timed(member, link, "auto:methods=(topk)")  # 4 bits would lose what they round
        return handover, [handover.step(draw(step, rank)) for step in range(120)]

    (rank_0, means), (rank_1, others) = both(job)
    assert all(torch.equal(x, y) for a, b in zip(means, others, strict=True) for x, y in zip(a, b, strict=True))
    assert rank_0.used == rank_1.used
    assert rank_0.used[-1] == "topk"
    assert "bf16" in rank_0.used, "the better baseline is tried"
    assert "topk; verified at step" in str(rank_0.explain())
    assert rank_0.explain().compute == pytest.approx(0.1)
    bias, second = list(LIKE).index("bias"), list(LIKE).index("second")
    own = [[(x + y) / 2 for x, y in zip(draw(step, 0), draw(step, 1), strict=True)] for step in range(120)]
    for name, mean, plain in zip(rank_0.used, means, own, strict=True):  # bf16 rounds what other methods leave as it is
        assert (mean[bias] - plain[bias]).abs().max() <= (plain[bias].abs().max() / 64 if name == "bf16" else 0)
    owed = (
        sum((handover._session.worker.state.debts()["second"] for handover in (rank_0, rank_1)), torch.zeros(64, 64))
        / 2
    )
    sent = torch.stack([mean[second] for mean in means]).sum(0)
    torch.testing.assert_close(
        sent + owed, torch.stack([plain[second] for plain in own]).sum(0), rtol=1e-4, atol=0.1
    )  # bf16 rounds


def test_its_state_is_where_it_goes_on(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Timed:
        first = Timed(member, link)
        for step in range(40):
            first.step(draw(step, rank))
        saved = flat(first.state_dict())
        again = Timed(member, link)
        again.load_state_dict(saved)
        for step in range(30):
            again.step(draw(step, rank))
        return again

    for handover in both(job):
        assert handover.used[0] == handover.used[-1] == "topk"


def test_a_step_that_is_not_finite_ends_on_all_ranks_and_the_next_goes_on(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> list[Tensor]:
        handover = Timed(member, link, nonfinite="error")
        handover.step(draw(0, rank))
        bad = draw(1, rank)
        bad[2][0, 0] = torch.inf if rank else 1.0  # of the first of two buckets
        with pytest.raises(NonFiniteError, match="second"):
            handover.step(bad)
        return handover.step(draw(2, rank))

    exact = (draw(2, 0)[1] + draw(2, 1)[1]) / 2
    for means in both(job):
        assert torch.equal(means[1], exact)
        assert all(bool(x.isfinite().all()) for x in means)


def test_the_user_may_switch(link: dict[str, float]) -> None:
    def job(member: Any, rank: int) -> Timed:
        handover = Timed(member, link, "topk")
        handover.step(draw(0, rank))
        with pytest.raises(ConfigurationError, match="the method was given, Policy"):
            handover.explain()
        handover.switch(AUTO)
        for step in range(30):
            handover.step(draw(step, rank))
        handover.switch("none")
        handover.step(draw(31, rank))
        return handover

    for handover in both(job):
        assert handover.used[-2:] == ["topk", "none"]
        assert "the user has switched" in str(handover.explain())
