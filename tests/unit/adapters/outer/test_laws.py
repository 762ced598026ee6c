"""Facts that hold of every outer loop, each with defects that it finds."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.adapters.outer.fragments import Fragments
from grace.adapters.outer.loop import OuterLoop
from grace.adapters.outer.presets import OuterSettings
from grace.adapters.outer.state import OuterState
from tests.unit.adapters.outer.training import Rank, flat, make_inner, make_model, on_ranks, train

W = 2
STREAMING = {"every": 6, "fragments": 2, "delay": 2, "alpha": 0.5, "lr": 0.7, "momentum": 0.9}
ALL = grace.Policy([("*", "topk:ratio=0.05")])  # small tensors, too


# ---- the outer optimizer, and the schedule --------------------------------------------------------------------------
def by_hand(
    steps: int, every: int, fragments: int = 1, delay: int = 0, alpha: float = 0.0, **outer: Any
) -> list[Tensor]:
    """theta after each step, with torch's SGD as outer optimizer, on the mean of the pseudo-gradients of two ranks."""
    nets = [make_model(1) for _ in range(W)]
    inner = [make_inner(net) for net in nets]
    theta = {name: p.detach().clone() for name, p in nets[0].named_parameters()}
    sgd = torch.optim.SGD(list(theta.values()), **outer)
    parts = Fragments({name: x.numel() for name, x in theta.items()}, OuterSettings(every, fragments)).names
    means: dict[int, dict[str, Tensor]] = {}
    thetas = []
    for step in range(steps):
        for rank in range(W):
            train(nets[rank], inner[rank], rank, range(step, step + 1))
        for part, names in enumerate(parts):
            due = (part + 1) * every // fragments
            with torch.no_grad():
                if (step + 1 + delay - due) % every == 0:
                    ends = [[net.get_parameter(name).clone() for name in names] for net in nets]
                    means[part] = {
                        name: ((theta[name] - x) + (theta[name] - y)) / W
                        for name, x, y in zip(names, *ends, strict=True)
                    }
                if (step + 1 - due) % every == 0:
                    sgd.zero_grad()
                    for name, mean in means[part].items():
                        theta[name].grad = mean
                    sgd.step()
                    for net in nets:
                        for name in names:
                            p = net.get_parameter(name)
                            p.copy_(torch.lerp(theta[name], p, alpha))
        thetas.append(flat(theta.values()))
    return thetas


def looped(steps: int, method: Any = "none", **knobs: Any) -> list[Tensor]:
    """theta after each step of a loop between two ranks, on which it is the same."""

    def job(network: Any, rank: int) -> list[Tensor]:
        worker, thetas = Rank(network, rank, method, **knobs), []
        for step in range(steps):
            worker.train(step, step + 1)
            thetas.append(worker.theta)
        return thetas

    first, other = on_ranks(W, job)
    assert all(torch.equal(x, y) for x, y in zip(first, other, strict=True))
    return first  # type: ignore[no-any-return]


def same(first: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(first, other, strict=True))


def test_the_outer_optimizer_is_torchs_sgd_to_the_bit() -> None:
    for nesterov in (True, False):
        knobs = {"every": 3, "lr": 0.7, "momentum": 0.9, "nesterov": nesterov}
        assert same(looped(12, **knobs), by_hand(12, **knobs))


def test_with_lr_1_and_no_momentum_it_is_local_steps_to_the_bit() -> None:
    assert same(looped(6, every=3), by_hand(6, every=3, lr=1.0))

    def local(network: Any, rank: int) -> Tensor:
        net = make_model(1 + rank)
        inner = make_inner(net)
        grace.local(net, inner, ALL, every=3, transport=network)
        train(net, inner, rank, range(6))
        return flat(net.parameters())

    assert torch.equal(on_ranks(W, local)[0], looped(6, ALL, preset="local_sgd:every=3")[-1])


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_what_is_late_is_applied_at_exactly_the_step_that_the_preset_says(alpha: float) -> None:
    knobs = {**STREAMING, "alpha": alpha}
    assert same(looped(14, **knobs), by_hand(14, **knobs, nesterov=True))


def _without_nesterov(state: OuterState, name: str, d: Tensor) -> bool:
    b = state.momentum[name].mul_(0.9).add_(d)
    state.theta[name].sub_(b, alpha=0.7)
    return True


def _momentum_late(state: OuterState, name: str, d: Tensor) -> bool:
    """Steps with the momentum of the window before."""
    state.theta[name].sub_(d + 0.9 * state.momentum[name], alpha=0.7)
    state.momentum[name].mul_(0.9).add_(d)
    return True


def _uphill(state: OuterState, name: str, d: Tensor) -> bool:
    b = state.momentum[name].mul_(0.9).add_(d)
    state.theta[name].add_(d.add(b, alpha=0.9), alpha=0.7)
    return True


def _against_itself(state: OuterState, name: str, p: Tensor, keep: float = 0.0) -> None:
    """Keeps the share that it should give up."""
    p.copy_(torch.lerp(p, state.theta[name], keep) if keep else state.theta[name])


_ending = Fragments.ending


def _a_step_late(fragments: Fragments, step: int) -> int | None:
    return _ending(fragments, step + 1)  # the delay is 2


@pytest.mark.parametrize(
    ("owner", "name", "defect"),
    [
        (OuterState, "step", _without_nesterov), (OuterState, "step", _momentum_late), (OuterState, "step", _uphill),
        (OuterState, "write", _against_itself), (Fragments, "starting", _a_step_late),
    ],
)  # fmt: skip
def test_that_finds(owner: Any, name: str, defect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = {**STREAMING, "every": 8, "alpha": 0.3}
    expected = by_hand(12, **knobs, nesterov=True)
    assert same(looped(12, **knobs), expected)
    monkeypatch.setattr(owner, name, defect)
    assert not same(looped(12, **knobs), expected)


def test_the_vectors_of_the_papers_equations() -> None:
    """Two ranks end at 0.6 and 0.8, then at 0.501 and 0.401: theta 0.601, then 0.2314. A local 0.5, half of which is kept,
    becomes 0.5505.
    """
    p = torch.tensor([1.0])
    state = OuterState({"x": p}, OuterSettings(every=1, lr=0.7, momentum=0.9))
    state.begin({"x": p})
    for ends, theta in (((0.6, 0.8), 0.601), ((0.501, 0.401), 0.2314)):
        deltas = [state.delta("x", torch.tensor([end]), torch.empty(1)) for end in ends]
        assert state.step("x", sum(deltas, torch.zeros(1)) / 2)
        assert float(state.theta["x"]) == pytest.approx(theta, abs=1e-6)
        if theta == 0.601:
            local = torch.tensor([0.5])
            state.write("x", local, 0.5)
            assert float(local) == pytest.approx(0.5505, abs=1e-6)


# ---- replicas and states --------------------------------------------------------------------------------------------
PRESETS = {
    "local_sgd": "local_sgd:every=4", "post_local_sgd": "post_local_sgd:every=4,warmup_steps=2",
    "diloco": "diloco:every=4", "streaming_diloco": "streaming_diloco:every=8", "sparseloco": "sparseloco:every=4",
    "muloco": "muloco:every=4",
}  # fmt: skip


def is_shared(text: str) -> bool:
    """True if theta is the same on three ranks after each step, and so are the replicas at the end."""

    def job(network: Any, rank: int) -> list[Tensor]:
        worker, thetas = Rank(network, rank, text, check=True), []
        for step in range(10):
            worker.train(step, step + 1)
            thetas.append(worker.theta)
        assert not torch.equal(thetas[-1], thetas[0])
        worker.loop.sync()
        assert worker.loop.synchronized
        return [*thetas, worker.own]

    first, *others = on_ranks(3, job)
    return all(same(first, other) for other in others)


@pytest.mark.parametrize("text", PRESETS.values(), ids=PRESETS)
def test_theta_is_the_same_on_all_ranks_after_each_step(text: str) -> None:
    assert is_shared(text)


def test_that_finds_a_rank_that_applies_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = OuterLoop._exchange

    def own(loop: OuterLoop, deltas: dict[str, Tensor]) -> Any:
        copies = {name: x.clone() for name, x in deltas.items()}
        means = exchange(loop, deltas)
        return copies if loop.rank == 2 else means

    monkeypatch.setattr(OuterLoop, "_exchange", own)
    assert not is_shared(PRESETS["diloco"])


def stopped(method: Any, stop: int, **knobs: Any) -> tuple[Tensor, Tensor]:
    """This rank's parameters and theta after 16 steps, straight, minus the same after a stop."""

    def job(network: Any, rank: int) -> list[Tensor]:
        straight = Rank(network, rank, method, **knobs)
        straight.train(16)
        ends = [straight.own, straight.theta]
        straight.loop.detach()
        worker = Rank(network, rank, method, **knobs)
        worker.train(stop)
        file = io.BytesIO()
        torch.save({"inner": worker.inner.state_dict(), "loop": worker.loop.state_dict()}, file)
        worker.loop.detach()
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        assert bool(saved["loop"]["flight"]) == (stop in (6, 7))
        again = Rank(network, rank, method, **knobs)
        again.train(1)  # something else, and a flight
        again.inner.load_state_dict(saved["inner"])
        again.loop.load_state_dict(saved["loop"])
        again.train(stop, 16)
        return [ends[0] - again.own, ends[1] - again.theta]

    apart = on_ranks(W, job)
    return apart[0][0].abs().max() + apart[1][0].abs().max(), apart[0][1].abs().max()


@pytest.mark.parametrize("stop", [4, 5, 6, 7, 8])
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(stop: int) -> None:
    """Before, within and after an overlap, and between windows."""
    own, theta = stopped(ALL, stop, **{**STREAMING, "every": 8})
    assert float(own) == float(theta) == 0.0


@pytest.mark.parametrize("forgotten", ["flight", "momentum", "local"])
def test_that_finds_what_is_not_saved(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load = OuterLoop.load_state_dict

    def forget(loop: OuterLoop, saved: Any) -> None:
        load(loop, saved)
        if forgotten == "flight" and loop._flight is not None:
            loop._flight.means = {name: x * 0 for name, x in loop._flight.means.items()}
        if forgotten == "momentum":
            for x in loop._state.momentum.values():
                x.zero_()
        if forgotten == "local":
            with torch.no_grad():
                for name, p in loop._parameters.items():
                    loop._state.write(name, p)

    monkeypatch.setattr(OuterLoop, "load_state_dict", forget)
    assert float(stopped(ALL, 6, **{**STREAMING, "every": 8})[0]) > 0


# ---- conservation ---------------------------------------------------------------------------------------------------
def lost(method: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    """The share of all pseudo-gradients that was neither applied nor is owed."""
    delta, step = OuterState.delta, OuterState.step
    computed: dict[int, dict[str, Tensor]] = {}
    applied: dict[int, dict[str, Tensor]] = {}

    def note(log: dict[int, dict[str, Tensor]], state: OuterState, name: str, x: Tensor) -> None:
        sums = log.setdefault(id(state), {})
        sums[name] = sums.get(name, torch.zeros_like(x, dtype=torch.float64)) + x

    def seen_delta(state: OuterState, name: str, p: Tensor, out: Tensor) -> Tensor:
        result = delta(state, name, p, out)
        note(computed, state, name, result)
        return result

    def seen_step(state: OuterState, name: str, d: Tensor) -> bool:
        note(applied, state, name, d)
        return step(state, name, d)

    monkeypatch.setattr(OuterState, "delta", seen_delta)
    monkeypatch.setattr(OuterState, "step", seen_step)

    def job(network: Any, rank: int) -> tuple[int, dict[str, Tensor]]:
        worker = Rank(network, rank, method, **STREAMING)
        worker.train(4 * 6)
        return id(worker.loop._state), worker.loop._session.worker.state.debts()

    ends = on_ranks(W, job)
    worst = total = 0.0
    for name in computed[ends[0][0]]:
        mean = sum(computed[key][name] for key, _ in ends) / W
        owed = sum(debts.get(name, torch.zeros(())) for _, debts in ends) / W
        worst += float((applied[ends[0][0]][name] + owed - mean).abs().sum())
        total += float(mean.abs().sum())
    return worst / total


def test_what_was_applied_and_what_is_owed_is_what_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lost(ALL, monkeypatch) < 1e-6
    assert lost(grace.Policy([("*", "topk:ratio=0.05,memory=none")]), monkeypatch) > 0.1, "without a memory"


# ---- convergence ----------------------------------------------------------------------------------------------------
class Parts(torch.nn.Module):
    """As many parameters as there are fragments."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(40, 32) for _ in range(4))


def distance(text: str, steps: int = 400) -> float:
    """The distance of theta from the optimum of the mean of two quadratics, of whose optima each rank knows its own; 1 at the
    start.
    """
    draw = torch.Generator().manual_seed(5)
    optima = torch.randn(1, 4, 40, 32, generator=draw) + 0.2 * torch.randn(W, 4, 40, 32, generator=draw)

    def job(network: Any, rank: int) -> float:
        net = Parts()
        inner = torch.optim.SGD(net.parameters(), lr=0.02)
        loop = grace.outer(net, inner, text, transport=network)
        for _ in range(steps):
            for p, optimum in zip(net.parts, optima[rank], strict=True):
                p.grad = p.detach() - optimum
            inner.step()
        with loop.shared_model():
            return float((torch.stack([*net.parts]).detach() - optima.mean(0)).norm() / optima.mean(0).norm())

    return max(on_ranks(W, job))


@pytest.mark.parametrize("text", PRESETS.values(), ids=PRESETS)
def test_it_finds_the_optimum_of_the_mean(text: str) -> None:
    assert distance(text.replace("every=4", "every=2")) < 0.1


def test_that_finds_a_loop_that_averages_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank goes to its own optimum."""
    monkeypatch.setattr(OuterLoop, "_exchange", lambda loop, deltas: deltas)
    assert distance("diloco:every=2") > 0.12
