"""The parts that all optimizers share: steps that count on all ranks or on none, states, what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import grace
from grace.errors import (
    ConfigurationError,
    FingerprintMismatch,
    GraceError,
    InputError,
    NonFiniteError,
    ReplicasDifferError,
    StateError,
    UnknownNameError,
)
from grace.optim import OneBitAdam, optimizers, parse
from grace.run.options import Options
from grace.transports.simulated import simulated
from tests.unit.optim.workers import Point, Workers, equal, everything, flat, loss_of, small

TEXTS = [
    "onebitadam:freeze_step=3", "zerooneadam:freeze_step=4,double_every=2,max_interval=4", "demo:k=8,tile=16",
    "dion:rank_fraction=0.25", "onebitlamb:freeze_step=3,eps=0.0001",
]  # fmt: skip
LEARNING = [
    "onebitadam:freeze_step=25,lr=0.01", "zerooneadam:freeze_step=25,double_every=8,max_interval=4,kappa=2,lr=0.01",
    "demo:k=8,tile=16,lr=0.01", "dion:rank_fraction=0.25,lr=0.03", "onebitlamb:freeze_step=25,lr=0.03",
]  # fmt: skip
STOPS = {  # before the freeze, after it; and within windows of 2 and of 4
    "onebitadam": (2, 5), "onebitlamb": (2, 5), "zerooneadam": (2, 4, 7, 9),
}  # fmt: skip
COUNTED = [  # in which a step is what counts or not, and no window
    "onebitadam:freeze_step=3", "onebitadam:freeze_step=20", "zerooneadam:freeze_step=20,kappa=1", "demo:k=8,tile=16",
    "dion:rank_fraction=0.25", "onebitlamb:freeze_step=3,eps=0.0001",
]  # fmt: skip


def alone(**knobs: Any) -> tuple[nn.Module, OneBitAdam]:
    model = small()
    return model, OneBitAdam(model.named_parameters(), **{"freeze_step": 3, **knobs})


# ---- laws of all of them --------------------------------------------------------------------------------------------
def start(text: str, world: int = 2, **knobs: Any) -> Workers:
    return Workers(parse(text), world, small, **{"lr": 0.01, **knobs})


@pytest.mark.parametrize("text", LEARNING)
def test_replicas_stay_equal_and_learn(text: str) -> None:
    workers = Workers(parse(text), 3, small, options=Options(check_replicas_every=3))  # which finds nothing
    before = float(loss_of(workers.models[0], 99, 0, 200).detach())
    workers.train(range(61))
    assert workers.replicas_equal()
    assert float(loss_of(workers.models[0], 99, 0, 200).detach()) < 0.85 * before
    assert workers.optimizers[0].stats.steps == workers.optimizers[0].steps == 61
    assert workers.optimizers[0].stats.traffic.sent > 0


@pytest.mark.parametrize(
    ("text", "at"), [(text, at) for text in TEXTS for at in STOPS.get(text.partition(":")[0], (4,))]
)
def test_a_run_that_resumes_has_the_same_bits(text: str, at: int) -> None:
    whole, first = start(text), start(text)
    whole.train(range(12))
    first.train(range(at))
    second = start(text)
    for model, other in zip(second.models, first.models, strict=True):
        model.load_state_dict(other.state_dict())
    for optimizer, state in zip(second.optimizers, first.states(), strict=True):
        optimizer.load_state_dict(state)
    second.train(range(at, 12))
    assert all(map(torch.equal, whole.parameters(), second.parameters()))
    assert all(map(equal, whole.states(), second.states()))


def refuse_to_count(workers: Workers, bad: Any = float("nan")) -> None:
    """A NaN in one tensor of one rank: nobody changes anything."""
    workers.train(range(5))
    before, states, counted = workers.parameters(), workers.states(), workers.optimizers[1].steps
    for rank, model in enumerate(workers.models):
        model.zero_grad()
        loss_of(model, 5, rank).backward()
    next(workers.models[0].parameters()).grad[0, 0] = bad  # type: ignore[index]
    workers.step()
    assert all(map(torch.equal, before, workers.parameters()))
    assert all(map(equal, states, workers.states()))
    assert [optimizer.steps for optimizer in workers.optimizers] == [counted] * len(workers.models)
    together = len(workers.optimizers[0].session.group_of["0.weight"].members)  # of a buffer all are lost
    assert [optimizer.stats.nonfinite for optimizer in workers.optimizers] == [together] * len(workers.models)
    workers.train(range(5, 8))
    assert workers.optimizers[0].steps == counted + 3
    assert workers.replicas_equal()
    assert bool(flat(workers.models[0]).isfinite().all())


@pytest.mark.parametrize("text", COUNTED)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_counts_on_no_rank(text: str, bad: float) -> None:
    refuse_to_count(start(text), bad)


def test_a_step_that_keeps_its_memories_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = start("onebitadam:freeze_step=3")
    for optimizer in workers.optimizers:
        monkeypatch.setattr(optimizer.session.worker, "abandon", optimizer.session.worker.commit)
    with pytest.raises(AssertionError):
        refuse_to_count(workers)


def test_a_step_that_is_not_finite_can_be_an_error() -> None:
    workers = start("onebitadam:freeze_step=3", options=Options(nonfinite="error"))
    for at in range(2):
        workers.train(range(2 * at, 2 * at + 2))
        with pytest.raises(NonFiniteError, match=r"'0\.weight'"):
            workers.step([[torch.full_like(p, torch.inf) if not n else p.grad for n, p in enumerate(model.parameters())]
                          for model in workers.models])  # fmt: skip
    assert workers.optimizers[0].steps == 4


@pytest.mark.parametrize("text", TEXTS)
def test_replicas_that_differ_are_found(text: str) -> None:
    workers = start(text, options=Options(check_replicas_every=2))
    workers.train(range(4))
    name = "exp_avg_sq" if text.startswith("zero") else ""  # parameters are made anew from what is averaged
    held = workers.optimizers[1].state[workers.models[1].get_parameter("2.bias")]
    (held[name] if name else workers.models[1].get_parameter("2.bias").detach())[0] += 0.5
    with pytest.raises(ReplicasDifferError, match="the parameters of rank 1"):
        workers.train(range(4, 10))


# ---- other numbers of workers ---------------------------------------------------------------------------------------
def test_a_state_is_refused_by_another_number_of_workers() -> None:
    workers = start(TEXTS[0])
    workers.train(range(5))
    with pytest.raises(StateError, match=r"world 2, this is world 3.*checkpoint\(\)"):
        start(TEXTS[0], 3).optimizers[0].load_state_dict(workers.optimizers[0].state_dict())


def test_a_state_of_something_else_is_refused_and_changes_nothing() -> None:
    model, optimizer = alone()
    loss_of(model, 0, 0).backward()
    optimizer.step()
    kept = optimizer.state_dict()
    with pytest.raises(StateError, match="lacks 'grace'"):
        optimizer.load_state_dict(torch.optim.Adam(model.parameters()).state_dict())
    other = OneBitAdam(Point(2, 2).named_parameters(), method="none")
    with pytest.raises(StateError, match="groups of \\[1\\] parameters"):
        optimizer.load_state_dict({**kept, "param_groups": other.state_dict()["param_groups"]})
    with pytest.raises(StateError, match="is of Adagrad"):
        optimizer.load_state_dict({**kept, "grace": {**kept["grace"], "optimizer": "Adagrad"}})
    assert equal(kept, optimizer.state_dict())


# ---- ways to use them -----------------------------------------------------------------------------------------------
def test_closures_schedulers_and_scalers_work() -> None:
    model, optimizer = alone(lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 0, 0)
        loss.backward()
        return loss.detach()

    assert float(optimizer.step(closure)) > 0
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    other, plain = alone(lr=0.05)
    other.load_state_dict(model.state_dict())
    plain.load_state_dict(optimizer.state_dict())
    closure()
    optimizer.step()
    plain.zero_grad()
    scaler.scale(loss_of(other, 0, 0)).backward()
    scaler.step(plain)
    scaler.update()
    torch.testing.assert_close(flat(model), flat(other), atol=1e-6, rtol=1e-6)
    scaler.scale(loss_of(other, 0, 0) * torch.inf).backward()
    scaler.step(plain)  # which calls step() nevertheless: other ranks wait for it
    assert plain.steps == 2
    assert plain.stats.nonfinite > 0


def test_parameters_need_no_names_and_may_be_in_groups() -> None:
    model = small()
    parts = list(model.parameters())
    optimizer = OneBitAdam([{"params": parts[:2]}, {"params": parts[2:], "lr": 0.0}], lr=0.1, freeze_step=1)
    assert next(iter(optimizer.session.like)) == "group0.0"
    before = [p.detach().clone() for p in parts]
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step, 0).backward()
        optimizer.step()
    assert [torch.equal(a, b) for a, b in zip(before, parts, strict=True)] == [False] * 2 + [True] * 3


def test_narrow_parameters_have_averages_in_float32_also_after_loading() -> None:
    def build() -> nn.Module:
        return small().bfloat16()

    workers = Workers(OneBitAdam, 2, build, lr=0.01, freeze_step=3)
    workers.train(range(6))
    assert workers.replicas_equal()
    again = Workers(OneBitAdam, 2, build, lr=0.01, freeze_step=3)
    for optimizer, state in zip(again.optimizers, workers.states(), strict=True):
        optimizer.load_state_dict(state)
    assert all(map(equal, workers.states(), again.states()))
    assert again.optimizers[0].state[next(again.models[0].parameters())]["exp_avg"].dtype == torch.float32


# ---- what is refused ------------------------------------------------------------------------------------------------
def test_parameters_of_somebody_else_are_refused() -> None:
    model, optimizer = alone()
    with pytest.raises(ConfigurationError, match=r"'0\.weight' is trained by a grace\.optim\.OneBitAdam"):
        OneBitAdam(model.named_parameters())
    with pytest.raises(ConfigurationError, match=r"grace\.optim\.OneBitAdam"):
        grace.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), "topk")
    with pytest.raises(ConfigurationError, match=r"grace\.optim\.OneBitAdam"):
        grace.local(model, optimizer, "none", every=2)
    optimizer.close()
    with pytest.raises(GraceError, match="closed"):
        optimizer.step()
    distributed = grace.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), "none")
    with pytest.raises(ConfigurationError, match=r"grace\.DistributedOptimizer.*handle\.detach\(\)"):
        OneBitAdam(model.named_parameters())
    distributed.handle.detach()
    OneBitAdam(model.named_parameters()).close()


def test_parameters_that_come_later_are_named() -> None:
    model = small()
    model[2].bias.requires_grad_(False)
    optimizer = OneBitAdam(model.named_parameters(), freeze_step=3)
    with pytest.raises(ConfigurationError, match=r"cannot be added.*'new'"):
        optimizer.add_param_group({"params": [("new", nn.Parameter(torch.zeros(2)))]})
    loss_of(model, 0, 0).backward()
    optimizer.step()
    model[2].bias.requires_grad_(True)
    with pytest.raises(ConfigurationError, match=r"'2\.bias' of shape \(24,\) was frozen"):
        optimizer.step()
    with pytest.raises(ConfigurationError, match=r"'2\.bias'"):  # the session has ended, so that others hear of it
        optimizer.step()


def test_sparse_gradients_and_failing_closures_end_the_session() -> None:
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = OneBitAdam(table.named_parameters(), method="none")
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(InputError, match=r"'weight' is torch\.sparse_coo"):
        optimizer.step()
    _, optimizer = alone()

    def closure() -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        optimizer.step(closure)
    assert isinstance(optimizer.session.error, ZeroDivisionError)


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"lr": -1.0}, "lr=-1.0"), ({"betas": (0.9, 1.0)}, "betas"), ({"eps": -1e-8}, "eps"),
        ({"weight_decay": -0.1}, "weight_decay"), ({"freeze_step": 0}, "whole number >= 1, or 'auto'"),
        ({"freeze_step": "soon"}, "whole number >= 1, or 'auto'"), ({"method": "nothing"}, "unknown method"),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(knobs: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        alone(**knobs)


def test_ranks_that_differ_are_told() -> None:
    first, second = simulated(2)
    OneBitAdam(Point(4).named_parameters(), lr=0.1, method="none", transport=first)
    with pytest.raises(FingerprintMismatch, match="param_groups"):
        OneBitAdam(Point(4).named_parameters(), lr=0.2, method="none", transport=second)


def test_an_optimizer_is_not_copied() -> None:
    import copy

    with pytest.raises(GraceError, match="neither copied nor pickled"):
        copy.deepcopy(alone()[1])


# ---- simulated workers and strings ----------------------------------------------------------------------------------
def test_a_simulated_worker_begins_with_the_parameters_of_rank_0_and_does_not_step_alone() -> None:
    workers = Workers(OneBitAdam, 2, lambda: Point(40, 40), freeze_step=1)
    with pytest.raises(grace.errors.TransportError, match="simulate\\("):
        workers.optimizers[1].step()
    first, second = simulated(2)
    points = [nn.Parameter(torch.full((2,), float(value))) for value in (1, 2)]
    for point, place in zip(points, (first, second), strict=True):
        OneBitAdam([("x", point)], method="none", transport=place)
    assert torch.equal(*(point.detach() for point in points))
    with pytest.raises(grace.errors.TransportError, match="before rank 0"):
        OneBitAdam(Point(2).named_parameters(), method="none", transport=simulated(2)[1])


@pytest.mark.parametrize("damage", ["absent", "narrow", "of another shape", "strange"])
def test_a_state_of_other_tensors_is_refused_before_anything_changes(damage: str) -> None:
    _, optimizer = alone()
    saved = optimizer.state_dict()
    saved["state"] = {place: dict(held) for place, held in saved["state"].items()}
    held = saved["state"][1]
    x = held.pop("exp_avg")
    if damage == "strange":
        held.update(exp_avg=x, unheard_of=x)
    elif damage != "absent":
        held["exp_avg"] = x.half() if damage == "narrow" else x[:1]
    before = optimizer.state_dict()
    with pytest.raises(StateError, match=r"exp_avg|unheard_of"):
        optimizer.load_state_dict(saved)
    assert equal(before, optimizer.state_dict())


def test_a_string_makes_a_factory() -> None:
    model = small()
    optimizer = parse("onebitadam:freeze_step=7,betas=(0.8,0.99),method=(topk:ratio=0.1,memory=none),lr=0.5")(
        model.named_parameters(), lr=0.25
    )
    assert isinstance(optimizer, OneBitAdam)
    assert optimizer.freeze_step == 7
    assert (optimizer.param_groups[0]["betas"], optimizer.param_groups[0]["lr"]) == ((0.8, 0.99), 0.25)
    assert "topk:ratio=0.1,memory=none" in str(optimizer.session.policy)
    exact = parse("onebitadam:method=none")(small().named_parameters())
    assert "efsignsgd" not in str(exact.session.policy)
    assert set(optimizers()) == {text.partition(":")[0] for text in TEXTS}
    for text in ("onebitadm", "onebitadam:freez_step=3"):
        with pytest.raises(UnknownNameError, match="did you mean"):
            parse(text)
    with pytest.raises(ConfigurationError, match="betas"):
        parse("onebitadam:betas=0.9")


def test_a_method_for_all_tensors_compresses_small_ones_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = OneBitAdam(Point(4).named_parameters(), method=everything("efsignsgd"))
    assert "efsignsgd" in str(optimizer.session.policy)
