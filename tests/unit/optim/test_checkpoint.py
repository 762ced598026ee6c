"""Checkpoints that load on any number of workers: averages are the same, and what is owed is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grace.errors import StateError
from grace.optim import ZeroOneAdam, parse
from tests.unit.networks import returned
from tests.unit.optim.workers import Workers, load, saved, small

TEXTS = [
    "onebitadam:freeze_step=3", "zerooneadam:freeze_step=20,kappa=1", "demo:k=8,tile=16", "dion:rank_fraction=0.25",
    "onebitlamb:freeze_step=3,eps=0.0001",
]  # fmt: skip


def owed(workers: Workers) -> dict[str, torch.Tensor]:
    debts = [optimizer.session.worker.state.debts() for optimizer in workers.optimizers]
    return {name: sum(debt[name] for debt in debts) / len(debts) for name in debts[0]}  # type: ignore[misc]


def reshard(text: str, memories: str, world: int) -> None:
    first = Workers(parse(text), 2, small, lr=0.01)
    first.train(range(6))
    before, counters = owed(first), first.optimizers[0]._counters()
    dicts = returned(saved(first, memories))
    assert all(torch.equal(dicts[0]["averages"][key], x) for key, x in dicts[1]["averages"].items())
    whole = {**dicts[0], **dicts[1]}
    second = Workers(parse(text), world, small, lr=0.01)
    for model in second.models:
        model.load_state_dict(first.models[0].state_dict())
    returned(load(second, whole, memories, 2))
    after = owed(second)
    assert any(bool(x.any()) for x in before.values())
    for name, x in before.items():
        torch.testing.assert_close(after.get(name, torch.zeros_like(x)), x, atol=1e-6, rtol=1e-5)
    for optimizer in second.optimizers:
        assert optimizer._counters() == counters
        for key, x in dicts[0]["averages"].items():
            assert torch.equal(optimizer.shared_state()[key], x)
    second.train(range(6, 9))
    assert second.replicas_equal()
    assert second.optimizers[0].steps == 9


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("text", TEXTS)
def test_what_is_owed_survives_another_number_of_workers(text: str, world: int) -> None:
    reshard(text, "mean", world)


@pytest.mark.parametrize("text", TEXTS[:1])
def test_all_memories_load_too(text: str) -> None:
    reshard(text, "all", 2)


def test_a_checkpoint_without_averages_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.optim.base.CompressedOptimizer.adopt", lambda self, counters, state: None)
    with pytest.raises(AssertionError):
        reshard(TEXTS[0], "mean", 2)


def test_dion_goes_on_as_if_nothing_had_happened() -> None:
    """The mean of the momenta is the momentum of one worker with the mean gradient."""
    first = Workers(parse(TEXTS[3]), 2, small, lr=0.01)
    first.train(range(6))
    dicts = returned(saved(first, "mean"))
    second = Workers(parse(TEXTS[3]), 1, small, lr=0.01)
    second.models[0].load_state_dict(first.models[0].state_dict())
    returned(load(second, dicts[0], "mean", 2))
    both = Workers(parse(TEXTS[3]), 2, small, lr=0.01)
    both.train(range(6))
    made = torch.Generator().manual_seed(3)
    gradients = [torch.randn(p.shape, generator=made) for p in small().parameters()]
    both.step([gradients, gradients])
    second.step([gradients])
    torch.testing.assert_close(both.parameters()[0], second.parameters()[0], atol=2e-5, rtol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    workers = Workers(parse(TEXTS[0]), 1, small)
    workers.train(range(2))
    given = returned(saved(workers, "mean"))[0]
    other = Workers(parse(TEXTS[1]), 1, small)
    with pytest.raises(StateError, match=r"counts|is of OneBitAdam"):
        returned(load(other, given, "mean", 1))
    with pytest.raises(StateError, match="lacks averages"):
        returned(load(workers, {key: x for key, x in given.items() if key != "averages"}, "mean", 1))
    local = Workers(ZeroOneAdam, 1, small, freeze_step=1, double_every=1)
    local.train(range(3))
    assert not local.optimizers[0].synchronized  # type: ignore[attr-defined]
    checkpoint: Any = local.optimizers[0].checkpoint
    with pytest.raises(StateError, match=r"step 1 of a window of 2; call optimizer\.sync\(\)"):
        checkpoint()
