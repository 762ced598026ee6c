"""The handle of an outer loop: what it refuses, what it tells, and what becomes of numbers that are not finite."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.adapters.outer import loop as loop_module
from grace.adapters.outer.loop import OuterLoop
from grace.adapters.outer.presets import OuterSettings
from grace.adapters.outer.state import OuterState
from grace.errors import (
    CompositionError,
    ConfigurationError,
    FingerprintMismatch,
    GraceError,
    InputError,
    StateError,
    TransportError,
)
from grace.run.options import Options
from tests.unit.adapters.outer.training import Rank, flat, make_inner, make_model, on_ranks, train
from tests.unit.networks import in_threads

ALL = grace.Policy([("*", "topk:ratio=0.05")])
STREAMING = "streaming_diloco:every=6,fragments=2,delay=2"


# ---- what is not finite ---------------------------------------------------------------------------------------------
def poisoned(text: str) -> list[Any]:
    """A parameter of rank 1 becomes NaN in step 5 of 24."""

    def job(network: Any, rank: int) -> tuple[int, list[Tensor], Tensor, dict[str, Tensor]]:
        worker, thetas = Rank(network, rank, ALL, preset=text), []
        for step in range(24):
            worker.train(step, step + 1)
            if rank == 1 and step == 4:
                worker.net[0].weight.data[0, 0] = float("nan")
            thetas.append(worker.theta)
        return worker.loop.stats.nonfinite, thetas, worker.own, worker.loop._session.worker.state.debts()

    return on_ranks(2, job)


@pytest.mark.parametrize("text", ["diloco:every=6", "diloco:every=6,delay=2,alpha=0.5", STREAMING])
def test_a_window_that_is_not_finite_is_dropped_by_all(text: str) -> None:
    first, other = poisoned(text)
    assert first[0] == other[0] > 0
    assert all(torch.equal(x, y) for x, y in zip(first[1], other[1], strict=True))
    assert all(bool(x.isfinite().all()) for x in first[1])
    assert not torch.equal(first[1][-1], first[1][-7]), "it goes on"
    for _, _, own, debts in (first, other):
        assert bool(own.isfinite().all())
        assert all(bool(x.isfinite().all()) for x in debts.values())


def test_that_finds_replicas_of_which_only_one_fragment_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one makes it NaN again, and so forth."""
    monkeypatch.setattr(OuterLoop, "_agree", lambda loop, error, dropped=False: False)
    other = poisoned(STREAMING)[1]
    assert not bool(other[2].isfinite().all())


# ---- within and between windows -------------------------------------------------------------------------------------
def test_the_model_is_handed_out_where_it_is_the_same_everywhere() -> None:
    def job(network: Any, rank: int) -> Tensor:
        worker = Rank(network, rank, "none", preset=STREAMING)
        loop = worker.loop
        assert loop.model is worker.net
        worker.train(6)
        with pytest.raises(StateError, match=r"step 0 of a window of 6; call handle\.sync\(\)"):
            _ = loop.model
        own = worker.own
        with contextlib.suppress(KeyError), loop.shared_model() as net:
            assert net is worker.net
            assert not torch.equal(flat(net.parameters()), own)
            raise KeyError("in an evaluation")
        assert torch.equal(worker.own, own)
        worker.train(6, 7)
        assert loop._flight is not None
        loop.drain()
        assert loop._flight is not None, "its mean is still to be applied"
        loop.sync()
        assert loop.synchronized
        assert loop._flight is None
        assert torch.equal(worker.theta, worker.own)
        held = worker.own
        loop.sync()  # nothing to do
        assert torch.equal(worker.own, held)
        worker.train(7, 13)
        loop.detach()
        with pytest.raises(GraceError, match="detached"):
            loop.sync()
        return held

    first, other = on_ranks(2, job)
    assert torch.equal(first, other)


def test_each_step_is_logged_also_while_an_exchange_is_in_flight() -> None:
    def job(network: Any, rank: int) -> tuple[list[int], float]:
        worker, lines = Rank(network, rank, ALL, preset=STREAMING), list[tuple[int, dict[str, float]]]()
        worker.loop.log(lambda values, step: lines.append((step, values)), errors_every=3)
        worker.train(12)
        worker.loop.sync()
        stats = worker.loop.stats
        assert stats.exposed_seconds > 0
        assert lines[-1][1]["grace/memory_norm"] > 0
        return [step for step, _ in lines], sum(values["grace/sent_bytes"] for _, values in lines)

    for steps, sent in on_ranks(2, job):
        assert steps == list(range(1, 13))
        assert sent > 0


def offloads() -> None:
    def job(network: Any, rank: int) -> list[Tensor]:
        ends = []
        for offload in (False, True):
            worker = Rank(network, rank, ALL, preset=STREAMING, offload=offload, check_replicas_every=1)
            worker.train(12)
            assert all(x.device.type == "cpu" for x in worker.loop._state.tensors())
            ends.append(worker.theta)
            worker.loop.detach()
        return ends

    for ends in on_ranks(2, job):
        assert torch.equal(*ends), "other bits"


def test_what_is_offloaded_is_on_the_host_with_the_same_bits() -> None:
    offloads()


def _narrow(state: OuterState, p: Tensor) -> Tensor:
    """In bfloat16, where it is offloaded."""
    return torch.empty(p.shape, dtype=torch.bfloat16 if state._offload else torch.float32)


def _of_a_copy(state: OuterState, name: str, d: Tensor) -> bool:
    """Moves a copy of the momentum, which does not go back."""
    kept = state.momentum[name].clone()
    made = _outer_step(state, name, d)
    if state._offload:
        state.momentum[name].copy_(kept)
    return made


def _once(state: OuterState, name: str, p: Tensor, keep: float = 0.0) -> None:
    """Does not bring theta back to the replica."""
    if not state._offload:
        _write(state, name, p, keep)


_outer_step, _write = OuterState.step, OuterState.write


@pytest.mark.parametrize(("name", "mutant"), [("_make", _narrow), ("step", _of_a_copy), ("write", _once)])
def test_what_is_lost_on_the_host_is_noticed(name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OuterState, name, mutant)
    with pytest.raises(AssertionError, match="other bits"):
        offloads()


def test_state_is_float32_whatever_the_parameters_are() -> None:
    """Rank 0 moves by one unit in the last place of bfloat16 in each window: the mean moves by half of one."""

    def job(network: Any, rank: int) -> float:
        net = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
        torch.nn.init.ones_(net.weight)
        loop = grace.outer(net, make_inner(net), "none", every=2, delay=1, automatic=False, transport=network)
        for index in range(64):
            if rank == 0 and index % 2 == 0:
                net.weight.data.sub_(2.0**-8)
            loop.step()
        assert {x.dtype for x in loop._state.tensors()} == {torch.float32}
        return float(loop._state.theta["weight"])

    assert on_ranks(2, job) == [1 - 32 * 2.0**-9] * 2


def test_a_state_of_local_steps_from_before_is_taken() -> None:
    def job(network: Any, rank: int) -> None:
        worker = Rank(network, rank, "none", every=3)
        worker.train(4)
        saved = dict(worker.loop.state_dict())
        own = worker.own
        for key in ("alike", "momentum", "flight"):
            del saved[key]
        worker.train(4, 5)
        worker.loop.load_state_dict(saved)
        assert torch.equal(worker.own, own)
        assert not worker.loop.synchronized

    on_ranks(2, job)


def begins_synchronously() -> None:
    """Four steps as those of one model with the mean gradients of two ranks; after that each rank makes its own."""
    net, nets = make_model(1), [make_model(1) for _ in range(2)]
    inner = make_inner(net)
    for step in range(4):
        for rank, other in enumerate(nets):
            other.load_state_dict(net.state_dict())
            train(other, torch.optim.SGD(other.parameters(), lr=0.0), rank, range(step, step + 1))
        for p, x, y in zip(net.parameters(), *(other.parameters() for other in nets), strict=True):
            p.grad = (x.grad + y.grad) / 2  # type: ignore[operator]
        inner.step()

    def job(network: Any, rank: int) -> list[Tensor]:
        worker = Rank(network, rank, "none", preset="diloco:every=3", warmup_steps=4)
        worker.train(4)
        ends = [worker.theta, worker.own]
        worker.train(4, 5)
        return [*ends, worker.own]

    first, other = on_ranks(2, job)
    for ends in (first, other):
        torch.testing.assert_close(ends[1], flat(net.parameters()), msg="not synchronous training")
        assert torch.equal(ends[0], ends[1]), "theta is elsewhere"
    assert torch.equal(first[1], other[1]), "replicas differ"
    assert not torch.equal(first[2], other[2]), "it never ends"


def test_it_begins_with_steps_that_average_gradients() -> None:
    begins_synchronously()


_average = loop_module.average_gradients


def _nothing(session: Any, parameters: Any, buckets: Any) -> None:
    """Each rank goes on with its own."""
    own = {name: None if p.grad is None else p.grad.clone() for name, p in parameters.items()}
    _average(session, parameters, buckets)
    for name, p in parameters.items():
        p.grad = own[name]


def _sums(session: Any, parameters: Any, buckets: Any) -> None:
    _average(session, parameters, buckets)
    for p in parameters.values():
        p.grad.mul_(session.world)


def _weights_alone(session: Any, parameters: Any, buckets: Any) -> None:
    """Leaves tensors of one dimension."""
    own = {name: p.grad.clone() for name, p in parameters.items()}
    _average(session, parameters, buckets)
    for name, p in parameters.items():
        if p.ndim == 1:
            p.grad.copy_(own[name])


@pytest.mark.parametrize("mutant", [_nothing, _sums, _weights_alone])
def test_another_warm_up_is_noticed(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "average_gradients", mutant)
    with pytest.raises(AssertionError, match="not synchronous training"):
        begins_synchronously()


@pytest.mark.parametrize(
    ("more", "message"), [(-1, "not synchronous training"), (1, "it never ends")], ids=["too short", "too long"]
)
def test_a_warm_up_of_another_length_is_noticed(more: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OuterLoop, "warms_up", property(lambda loop: loop._total < loop.settings.warmup_steps + more))
    with pytest.raises(AssertionError, match=message):
        begins_synchronously()


# ---- what is refused ------------------------------------------------------------------------------------------------
def test_ranks_that_differ_are_told_in_what() -> None:
    def job(network: Any, rank: int) -> str:
        with pytest.raises(FingerprintMismatch) as caught:
            Rank(network, rank, "none", preset="diloco", every=30 + 2 * rank, lr=0.7 - 0.1 * rank)
        return str(caught.value)

    for message in on_ranks(2, job):
        assert "every: 30 on ranks [0], 32 on ranks [1]" in message
        assert "lr: 0.7 on ranks [0], 0.6 on ranks [1]" in message


@pytest.mark.parametrize(
    ("method", "knobs", "error", "words"),
    [
        ("signsgd", {"every": 4}, CompositionError, "signsgd takes a majority vote.*'0.weight' by 1; legal: methods that"),
        ("auto", {"every": 4, "delay": 1}, ConfigurationError, "auto measures rounds.*fragments=1 and delay=0"),
        ("auto", {"preset": "streaming_diloco"}, ConfigurationError, "auto measures rounds"),
        ("none", {"every": 20, "fragments": 5}, ConfigurationError, "fragments=5, and the optimizer trains 4 parameters"),
        ("dilco", {}, ConfigurationError, "did you mean 'diloco'"),
        ("none", {"every": 4, "transport": "alone", "group": "g"}, ConfigurationError, "give one of them"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_at_once(
    method: str, knobs: dict[str, Any], error: type[Exception], words: str
) -> None:
    net = make_model()
    with pytest.raises(error, match=words):
        grace.outer(net, make_inner(net), method, **{"transport": "alone", **knobs})


@pytest.mark.parametrize("nonfinite", ["error", "skip"])
def test_another_answer_to_inf_than_to_drop_the_window_is_refused(nonfinite: Any) -> None:
    net = make_model()
    with pytest.raises(ConfigurationError, match=f"nonfinite='{nonfinite}'.*go on from theta; legal: 'propagate'"):
        OuterLoop(net, make_inner(net), "none", Options(nonfinite=nonfinite), OuterSettings(4), transport="alone")


def test_an_optimizer_that_is_none_or_exchanges_by_itself_is_refused() -> None:
    net = make_model()
    with pytest.raises(ConfigurationError, match=r"optimizer='adam'; legal: a torch\.optim\.Optimizer"):
        grace.outer(net, "adam", "diloco", transport="alone")  # type: ignore[arg-type]
    inner = grace.DistributedOptimizer(make_inner(net), "none", net.named_parameters(), transport="alone")
    with pytest.raises(ConfigurationError, match=r"'0\.weight' is trained by a grace\.DistributedOptimizer"):
        grace.outer(net, make_inner(net), "diloco", transport="alone")
    inner.handle.detach()
    loop = grace.outer(net, make_inner(net), "diloco", transport="alone")
    with pytest.raises(ConfigurationError, match="is already trained in an outer loop"):
        grace.DistributedOptimizer(make_inner(net), "none", net.named_parameters(), transport="alone")
    loop.detach()


def test_auto_is_not_switched_to_where_it_cannot_work() -> None:
    net = make_model()
    loop = grace.outer(net, make_inner(net), "none", every=4, delay=1, transport="alone")
    with pytest.raises(ConfigurationError, match="auto measures rounds"):
        loop.switch("auto")
    loop.detach()


def test_two_optimizers_of_one_model_have_a_loop_each() -> None:
    """As Muon for the matrices, and another one for what is none."""

    def job(network: Any, rank: int) -> Tensor:
        net = make_model(1 + rank)
        matrices = [p for p in net.parameters() if p.ndim == 2]
        others = [p for p in net.parameters() if p.ndim < 2]
        muon = getattr(torch.optim, "Muon", torch.optim.SGD)(matrices, lr=0.02)
        first = grace.outer(net, muon, "muloco:every=2", transport=network)
        second = torch.optim.AdamW(others, lr=0.01)
        loops = (first, grace.outer(net, second, "diloco:every=2", transport=network))
        for index in range(4):
            draw = torch.Generator().manual_seed(10 * index + rank)
            for p in net.parameters():
                p.grad = torch.randn(p.shape, generator=draw)
            muon.step()
            second.step()
        assert all(loop.synchronized for loop in loops)
        return flat(net.parameters())

    first, other = on_ranks(2, job)
    assert torch.equal(first, other)


def test_parameters_that_are_added_are_named() -> None:
    net = make_model()
    net[2].requires_grad_(False)
    inner = make_inner(net)
    loop = grace.outer(net, inner, "none", every=2, transport="alone")
    with pytest.raises(ConfigurationError, match="already"):
        grace.outer(net, inner, "none", every=2, transport="alone")
    with pytest.raises(CompositionError, match="majority vote"):
        loop.switch("signsgd")
    loop.switch("topk")
    inner.step()
    net[2].requires_grad_(True)
    with pytest.raises(ConfigurationError, match=r"trains '2.bias', '2.weight', which it did not when the loop began"):
        inner.step()
    assert isinstance(loop.error, ConfigurationError)
    waves = torch.nn.Module()
    waves.register_parameter("waves", torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64)))
    with pytest.raises(InputError, match="'waves' is complex64"):
        grace.outer(waves, make_inner(waves), "none", every=2, transport="alone")


def test_a_failed_exchange_is_raised_where_it_is_due_and_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on the other rank; theta stays."""

    def job(network: Any, rank: int) -> Tensor:
        worker = Rank(network, rank, ALL, preset="diloco:every=4,delay=2")
        worker.train(4)
        held = worker.theta
        if rank == 1:
            monkeypatch.setattr(
                worker.loop, "_exchange", lambda deltas: worker.loop._session.exchange({"strange": deltas})
            )
        expected = InputError if rank == 1 else TransportError
        with pytest.raises(expected) as caught:
            worker.train(4, 8)
        assert torch.equal(worker.theta, held)
        assert worker.loop.error is caught.value
        for again in (worker.loop.sync, worker.loop.step):
            with pytest.raises(expected):
                again()
        return held

    assert all(isinstance(result, Tensor) for result in in_threads(2, job))


def test_what_is_in_flight_when_the_loop_is_detached_is_in_its_state() -> None:
    """It can be saved then, and goes on elsewhere with the same bits."""

    def job(network: Any, rank: int) -> None:
        ends = []
        for detaches in (False, True):
            worker = Rank(network, rank, ALL, preset=STREAMING)
            worker.train(4)
            worker.inner.state.clear()
            if detaches:
                worker.loop.detach()
                worker.loop.drain()
                saved = worker.loop.state_dict()
                assert saved["flight"]["means"]
                worker = Rank(network, rank, ALL, preset=STREAMING)
                worker.loop.load_state_dict(saved)
            worker.train(4, 9)
            worker.loop.sync()
            ends.append(worker.theta)
            worker.loop.detach()
        assert torch.equal(*ends)

    on_ranks(2, job)


def test_a_mean_that_never_came_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    net, goes_on = make_model(), threading.Event()
    loop = grace.outer(net, make_inner(net), "none", every=4, delay=3, automatic=False, transport="alone")
    monkeypatch.setattr(loop, "_exchange", lambda deltas: goes_on.wait() and {})
    loop.step()
    close = loop._lane.close
    monkeypatch.setattr(loop._lane, "close", lambda: close(0.01))  # type: ignore[call-arg]
    loop.detach()
    with pytest.raises(GraceError, match="detached before its exchange in flight had ended"):
        loop.state_dict()
    goes_on.set()


def test_b_is_kept_where_a_step_is_not_made() -> None:
    p = torch.ones(2)
    state = OuterState({"x": p}, OuterSettings(every=1, lr=0.7, momentum=0.9))
    state.begin({"x": p})
    assert state.step("x", torch.ones(2))
    held = [x.clone() for x in state.tensors()]
    assert not state.step("x", torch.tensor([1.0, float("inf")]))
    assert all(torch.equal(x, y) for x, y in zip(state.tensors(), held, strict=True))
