"""Gossip of small models, between threads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grace
from grace.errors import ConfigurationError, FingerprintMismatch, GraceError, NonFiniteError, StateError
from grace.gossip import GossipHandle, Graph
from tests.unit.adapters.outer.training import flat, make_inner, make_model, on_ranks, train
from tests.unit.networks import in_threads

W = 4


class Rank:
    """A rank with its model and its optimizer."""

    def __init__(self, network: Any, rank: int, compressor: Any = None, net: nn.Module | None = None, **knobs: Any):
        self.rank, self.net = (
            rank,
            make_model(1 + rank) if net is None else net,
        )  # not the same: all begin with rank 0's
        self.inner = make_inner(self.net)
        self.handle: GossipHandle = grace.gossip(self.net, self.inner, compressor, transport=network, **knobs)

    def train(self, *steps: int) -> None:
        train(self.net, self.inner, self.rank, range(*steps))

    @property
    def own(self) -> Tensor:
        return flat(self.net.parameters()).clone()


def test_it_is_dpsgd_by_hand() -> None:
    """After each step ``x_i = sum_j w_ij x_j``; with overlap the paper's ``x_i = sum_j w_ij x_j - lr g_i``."""

    def job(network: Any, rank: int, overlap: bool) -> tuple[list[Tensor], list[Tensor]]:
        worker, updates, xs = Rank(network, rank, graph="ring", overlap=overlap), [], []
        xs.append(worker.own)
        for step in range(4):
            plain = copy.deepcopy(worker.net)
            inner = make_inner(plain)
            inner.load_state_dict(copy.deepcopy(worker.inner.state_dict()))
            train(plain, inner, rank, range(step, step + 1))
            updates.append(flat(plain.parameters()) - xs[-1])
            worker.train(step, step + 1)
            xs.append(worker.own)
        worker.handle.detach()
        return xs, updates

    w = Graph.read("ring", W).matrix().float()
    for overlap in (False, True):
        ranks = on_ranks(W, lambda network, rank, overlap=overlap: job(network, rank, overlap))
        for t in range(4):
            before = torch.stack([xs[t] for xs, _ in ranks])
            update = torch.stack([updates[t] for _, updates in ranks])
            after = torch.stack([xs[t + 1] for xs, _ in ranks])
            if overlap:  # what was sent after the step before; in the first step there was nothing
                expected = (w @ before if t else before) + update
            else:
                expected = w @ (before + update)
            torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", [
    "dpsgd:graph=one_peer_exponential", "choco:method=(topk:ratio=0.2)", "choco:method=(topk:ratio=0.2),overlap=true",
    "deepsqueeze:method=(qsgd:bits=4),gamma=0.3,average_every=3",
])  # fmt: skip
def test_it_goes_on_with_the_same_bits(spec: str) -> None:
    def job(network: Any, rank: int) -> bool:
        worker = Rank(network, rank, spec)
        worker.train(0, 4)
        saved = copy.deepcopy((worker.handle.state_dict(), worker.inner.state_dict()))
        worker.train(4, 8)
        end = worker.own
        worker.handle.load_state_dict(saved[0])
        worker.inner.load_state_dict(copy.deepcopy(saved[1]))
        worker.train(4, 8)
        again = torch.equal(worker.own, end)
        worker.handle.detach()
        fresh = Rank(network, rank, spec)
        fresh.handle.load_state_dict(saved[0])
        fresh.inner.load_state_dict(copy.deepcopy(saved[1]))
        fresh.train(4, 8)
        again = again and torch.equal(fresh.own, end)
        lost = {**saved[0], "flight": {}}
        if saved[0]["flight"]:  # the mutant: what was on its way is lost
            fresh.handle.load_state_dict(lost)
            fresh.inner.load_state_dict(copy.deepcopy(saved[1]))
            fresh.train(4, 8)
            again = again and not torch.equal(fresh.own, end)
        fresh.handle.detach()
        return again

    assert on_ranks(W, job) == [True] * W


def test_average_and_disagreement() -> None:
    def job(network: Any, rank: int) -> tuple[Any, ...]:
        worker = Rank(network, rank, "topk:ratio=0.2")
        assert worker.handle.disagreement is None
        worker.train(0, 5)
        own = worker.own
        apart = worker.handle.measure()
        assert torch.equal(worker.own, own)
        with worker.handle.averaged_model() as net:
            mean = flat(net.parameters()).clone()
        assert torch.equal(worker.own, own)
        worker.handle.average()
        end, stats = worker.own, worker.handle.stats
        assert stats.disagreement == worker.handle.disagreement
        assert stats.as_dict()["disagreement"] == pytest.approx(apart, rel=1e-6)
        assert worker.handle.measure() == 0
        for p in worker.net.parameters():
            p.grad = None
        worker.inner.step()  # who agrees, and learns nothing, goes on agreeing
        assert worker.handle.measure() < 1e-6
        worker.train(5, 6)
        assert worker.handle.measure() > 0
        assert "ring (spectral gap 0.667)" in repr(worker.handle)
        worker.handle.detach()
        return own, apart, mean, end, stats.traffic.sent

    ranks = on_ranks(W, job)
    owns = torch.stack([own for own, *_ in ranks])
    mean = owns.mean(0)
    apart = float((owns - mean).square().sum(1).mean().sqrt() / mean.norm())
    for _, told, average, end, sent in ranks:
        assert told == pytest.approx(apart, rel=1e-4)
        torch.testing.assert_close(average, mean)
        assert torch.equal(end, ranks[0][3])
        torch.testing.assert_close(end, mean)
        assert sent == ranks[0][4] > 0
    assert apart > 1e-3


@pytest.mark.parametrize("overlap", [False, True])
def test_parameters_that_are_not_finite_on_one_rank(overlap: bool) -> None:
    """Nobody mixes them; where they are they go back to what they were, and the others keep theirs."""

    def job(network: Any, rank: int) -> tuple[Tensor, int]:
        worker = Rank(network, rank, "topk:ratio=0.2", overlap=overlap)
        worker.train(0, 3)
        if rank == 2:
            with torch.no_grad():
                worker.net.get_parameter("0.weight")[3, 3] = torch.nan
                worker.inner.state[worker.net.get_parameter("0.weight")]["momentum_buffer"][0, 0] = torch.inf
        for p in worker.net.parameters():
            p.grad = torch.zeros_like(p)
        for group in worker.inner.param_groups:
            group["lr"] = 0.0
        worker.inner.step()
        worker.inner.step()
        for group in worker.inner.param_groups:
            group["lr"] = 0.1
        worker.train(4, 8)
        worker.handle.average()
        out = worker.own, worker.handle.stats.nonfinite
        worker.handle.detach()
        return out

    ranks = on_ranks(W, job)
    for own, nonfinite in ranks:
        assert bool(own.isfinite().all())
        assert torch.equal(own, ranks[0][0])
        assert nonfinite == ranks[0][1] >= 1


@pytest.mark.parametrize("nonfinite", ["agree", "error"])
def test_a_state_knows_of_them_too(nonfinite: str) -> None:
    """They are told after a state was saved, as without that, and where the state is loaded."""

    def job(network: Any, rank: int, saves: str) -> tuple[Tensor, int, str]:
        worker = Rank(network, rank, "topk:ratio=0.2", overlap=True, nonfinite=nonfinite)
        worker.train(0, 3)
        if rank == 2:
            with torch.no_grad():
                worker.net.get_parameter("0.weight")[3, 3] = torch.nan
        for group in worker.inner.param_groups:
            group["lr"] = 0.0
        told = ""
        for step in range(3):
            if step == 1 and saves:
                saved = copy.deepcopy(worker.handle.state_dict())
                if saves == "load":
                    worker.handle.load_state_dict(saved)
            try:
                worker.inner.step()
            except NonFiniteError as error:
                told += f"step {step}: {error}"
        out = worker.own, worker.handle.stats.nonfinite, told
        worker.handle.detach()
        return out

    ranks = [on_ranks(W, lambda network, rank, how=how: job(network, rank, how)) for how in ("", "save", "load")]
    for plain, after_save, after_load in zip(*ranks, strict=True):
        for other in (after_save, after_load):
            assert torch.equal(plain[0].nan_to_num(7.0), other[0].nan_to_num(7.0))
            assert plain[1:] == other[1:]
        assert bool(plain[2]) == (nonfinite == "error")


def test_a_checkpoint_goes_on_with_other_workers_and_another_graph() -> None:
    def save(network: Any, rank: int) -> tuple[Any, Tensor]:
        worker = Rank(network, rank, "deepsqueeze:method=(qsgd:bits=4),gamma=0.3", average_every=4)
        assert worker.handle.checkpoint().state_dict()["reference"]
        worker.train(0, 3)
        with pytest.raises(StateError, match=r"the replicas differ; call handle\.average\(\)"):
            worker.handle.checkpoint()
        worker.train(3, 4)  # a step that averages
        given = copy.deepcopy(worker.handle.checkpoint().state_dict())
        worker.train(4, 5)
        worker.handle.average()
        mean = worker.own
        out = worker.handle.checkpoint().state_dict(), mean
        worker.handle.checkpoint().load_state_dict(given)
        assert not torch.equal(worker.own, mean)
        worker.handle.detach()
        return out

    saved, mean = on_ranks(W, save)[0]

    def load(network: Any, rank: int) -> Tensor:
        worker = Rank(network, rank, "choco:method=(topk:ratio=0.2),graph=exponential")
        worker.train(0, 2)
        worker.handle.average()
        with pytest.raises(StateError, match="lacks reference"):
            worker.handle.checkpoint().load_state_dict({key: x for key, x in saved.items() if key != "reference"})
        worker.handle.checkpoint().load_state_dict(saved)
        assert torch.equal(worker.own, mean)
        assert worker.handle.measure() == 0
        worker.train(5, 7)
        assert worker.handle.state_dict()["steps"] == 7
        assert 0 < worker.handle.measure() < 1
        end = worker.own
        worker.handle.detach()
        return end

    first, other = on_ranks(2, load)
    assert not torch.equal(first, other)
    assert bool(first.isfinite().all())


def test_or_they_are_an_error_on_all_ranks() -> None:
    def job(network: Any, rank: int) -> str:
        worker = Rank(network, rank, "topk:ratio=0.2", nonfinite="error")
        worker.train(0, 2)
        if rank == 1:
            with torch.no_grad():
                worker.net.get_parameter("2.bias")[0] = torch.inf
        with pytest.raises(NonFiniteError, match=r"2\.bias") as raised:
            worker.train(2, 3)
        with pytest.raises(NonFiniteError):
            worker.handle.average()
        worker.handle.detach()
        return str(raised.value)

    assert len(set(on_ranks(W, job))) == 1


def test_narrow_parameters_do_not_stand_still() -> None:
    """Moves that are smaller than a rounding add up: 64 steps of 2^-10 of the numbers, which have 8 bits."""

    def job(network: Any, rank: int) -> float:
        net = nn.Linear(40, 40, bias=False, dtype=torch.bfloat16)
        with torch.no_grad():
            net.weight.fill_(1.0)
        inner = torch.optim.SGD(net.parameters(), lr=1.0)
        handle = grace.gossip(net, inner, None, transport=network)
        for _ in range(64):
            net.weight.grad = torch.full_like(net.weight, 2.0**-7 if rank == 0 else 0.0)
            inner.step()  # rank 0 moves by one unit of its last place, an average by a quarter
        handle.average()
        end = float(net.weight.detach()[0, 0])
        handle.detach()
        return end

    assert on_ranks(W, job) == [1 - 64 * 2.0**-7 / W] * W


def test_ranks_that_differ_are_refused() -> None:
    def job(network: Any, rank: int) -> None:
        Rank(network, rank, "topk:ratio=0.2", gamma=0.1 if rank else 0.2)

    for error in in_threads(2, job):
        assert isinstance(error, FingerprintMismatch)
        assert "gamma" in str(error)


def test_bad_input() -> None:
    def job(network: Any, rank: int) -> None:
        net = make_model()
        inner = make_inner(net)
        with pytest.raises(ConfigurationError, match="is of 4 workers, and there are 2"):
            grace.gossip(net, inner, graph=Graph.read("ring", 4), transport=network)
        with pytest.raises(ConfigurationError, match="not the model's"):
            grace.gossip(make_model(), inner, transport=network)

    on_ranks(2, job)


def test_detached_and_again() -> None:
    def job(network: Any, rank: int) -> None:
        worker = Rank(network, rank, "topk:ratio=0.2")
        worker.train(0, 2)
        with pytest.raises(ConfigurationError, match="already gossips"):
            grace.gossip(worker.net, worker.inner, transport=network)
        with pytest.raises(ConfigurationError, match="keeps its compressor"):
            worker.handle.switch("qsgd")
        saved = worker.handle.state_dict()
        worker.handle.detach()
        worker.train(2, 3)  # alone
        with pytest.raises(GraceError, match="detached"):
            worker.handle.average()
        other = Rank(network, rank, "topk:ratio=0.1")
        with pytest.raises(StateError, match="saved by gossip with"):
            other.handle.load_state_dict(saved)
        other.handle.detach()

    on_ranks(2, job)


def test_its_parameters_have_one_owner() -> None:
    def job(network: Any, rank: int) -> None:
        worker = Rank(network, rank, "topk:ratio=0.2")
        again = make_inner(worker.net)
        for refused in (
            lambda: grace.gossip(worker.net, again, transport=network),
            lambda: grace.local(worker.net, again, "none", every=2, transport=network),
            lambda: grace.optim.OneBitAdam(worker.net.named_parameters(), transport=network),
            lambda: grace.DistributedOptimizer(again, "topk", worker.net.named_parameters(), transport=network),
        ):
            with pytest.raises(ConfigurationError, match=r"'0\.weight' already gossips.*handle\.detach\(\)"):
                refused()
        worker.handle.detach()
        loop = grace.local(worker.net, again, "none", every=2, transport=network)
        with pytest.raises(ConfigurationError, match="already trained in an outer loop"):
            grace.gossip(worker.net, again, transport=network)
        loop.detach()

    on_ranks(2, job)


class DTensor(torch.Tensor):
    """Known by its name, as fully_shard's is."""


def test_parameters_under_fully_shard_are_refused() -> None:
    net = nn.Linear(3, 2)
    net.weight = nn.Parameter(torch.ones(2, 3).as_subclass(DTensor))
    with pytest.raises(ConfigurationError, match=r"'weight' is a DTensor.*each rank has the whole"):
        grace.gossip(net, make_inner(net), transport="alone")
