"""The optimizer that needs no DistributedDataParallel, in real processes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import grace
from grace.collectives import Collective
from grace.errors import ConfigurationError, FingerprintMismatch, GraceError, InputError, StateError
from grace.registry.policy import Policy
from grace.run.simulator import Simulator
from grace.transports.base import Wrapper
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.processes import Pool
from tests.laws.mutants import OnlyMine
from tests.patience import PATIENCE

SPECS = ["topk:ratio=0.05", "qsgd:bits=4", "powersgd:rank=2", "none"]


class Net(nn.Module):
    """A branch that is not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(40, 48)
        self.extra = nn.Linear(48, 48)
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor, use_extra: bool = True) -> Tensor:
        x = torch.relu(self.first(x))
        return self.head(self.extra(x) if use_extra else x)


def make(spec: str = "topk:ratio=0.05", lr: float = 0.05, **options: Any) -> tuple[Net, Any]:
    torch.manual_seed(7)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.5)
    options = {"bucket_mb": 0.005, **options}
    return net, grace.DistributedOptimizer(optimizer, spec, net.named_parameters(), **options)


def loss_of(net: nn.Module, rank: int, step: int, **inputs: Any) -> Tensor:
    made = torch.Generator().manual_seed(100 * step + rank)
    x, y = torch.randn(8, 40, generator=made), torch.randint(0, 5, (8,), generator=made)
    return nn.functional.cross_entropy(net(x, **inputs), y)


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def alone(net: nn.Module, rank: int, step: int, **inputs: Any) -> dict[str, Tensor]:
    """Gradients of a rank without an exchange."""
    twin = copy.deepcopy(net)  # without hooks
    twin.zero_grad()
    loss_of(twin, rank, step, **inputs).backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in twin.named_parameters()}


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in net.parameters()])


def gather(x: Tensor) -> list[Tensor]:
    """Everyone's, over another network than Grace's."""
    if dist.is_initialized():
        all_of_them: list[Any] = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(all_of_them, x)
    else:
        from mpi4py import MPI

        all_of_them = MPI.COMM_WORLD.allgather(x)
    return all_of_them


def assert_replicas_agree(net: nn.Module, world: int) -> None:
    own = weights(net)
    all_of_them = gather(own)
    assert len(all_of_them) == world
    assert all(torch.equal(own, other) for other in all_of_them), "replicas differ"
    assert bool(own.isfinite().all())


# ---- means ----------------------------------------------------------------------------------------------------------
def same_as_simulated(rank: int, world: int, spec: str, granularity: str, unused: str = "none") -> int:
    net, optimizer = make(spec, granularity=granularity, check=True, unused=unused)
    simulator = None if granularity != "parameter" else Simulator(Policy.of(spec), world)
    for worker in [] if simulator is None or unused == "zeros" else simulator.workers:
        worker.keep_unapplied()
    dropped: set[str] = set()
    for step in range(4):
        optimizer.zero_grad()
        use_extra = step != 2 and (step != 1 or rank == 0)  # by no rank, by one rank
        given = [alone(net, r, step, use_extra=step != 2 and (step != 1 or r == 0)) for r in range(world)]
        loss_of(net, rank, step, use_extra=use_extra).backward()
        optimizer.synchronize()
        left = {"extra.weight", "extra.bias"} if step == 2 and unused == "none" else set()
        assert gradients(net).keys() == given[0].keys() - left
        if simulator is not None:
            for worker in simulator.workers:
                worker.settle(dropped)
            dropped = left
            expected = simulator.step({name: [part[name] for part in given] for name in given[0]})
            for name, mean in gradients(net).items():
                if world == 2 or spec != "none":
                    assert torch.equal(mean, expected[name]), (step, name)
        optimizer.step()
    assert_replicas_agree(net, world)
    steps: int = optimizer.handle.stats.steps
    optimizer.handle.detach()
    assert type(optimizer) is torch.optim.SGD
    return steps


@pytest.mark.tier("test")
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("unused", ["none", "zeros"])
def test_means_are_those_of_the_simulator_to_the_bit(pair: Pool, spec: str, unused: str) -> None:
    assert pair.run(same_as_simulated, spec, "parameter", unused) == [4, 4]


def test_all_in_one_tensor_too(pools: Callable[[str, int], Any]) -> None:
    assert pools("gloo", 3).run(same_as_simulated, "topk:ratio=0.05", "model") == [4, 4, 4]


class Recorded(Wrapper):
    """Notes when collectives start, and can change places."""

    def __init__(self, events: list[str]):
        super().__init__(TorchDistributed.of_same_ranks())
        self.events, self.begun = events, threading.Event()

    def run(self, op: Collective) -> Tensor:
        self.events.append("exchange")
        self.begun.set()
        return super().run(op)


def overlaps(rank: int, world: int) -> list[str]:
    events: list[str] = []
    network = Recorded(events)
    net, optimizer = make(transport=network)

    def first_layer_waits(_: Tensor) -> None:
        assert network.begun.wait(PATIENCE), "nothing was exchanged while the backward pass went on"
        events.append("the first layer's gradient")

    net.first.weight.register_hook(first_layer_waits)
    loss_of(net, rank, 0).backward()
    events.append("backward has ended")
    optimizer.step()
    assert_replicas_agree(net, world)
    optimizer.handle.detach()
    return events


def test_exchanges_begin_before_the_backward_pass_ends(pair: Pool) -> None:
    for events in pair.run(overlaps):
        assert (
            events.index("exchange") < events.index("the first layer's gradient") < events.index("backward has ended")
        )


def any_order(rank: int, world: int) -> None:
    """The gradients of one rank become ready in another order: the exchanges keep theirs."""
    torch.manual_seed(3)
    a, b = nn.Parameter(torch.randn(40, 40)), nn.Parameter(torch.randn(40, 40))
    optimizer = torch.optim.SGD([a, b], lr=0.1)
    grace.DistributedOptimizer(optimizer, "none", [("a", a), ("b", b)], bucket_mb=0.001, check=True)
    for p in (a, b) if rank else (b, a):
        (p * (rank + 1)).sum().backward()
    optimizer.step()
    both = torch.cat([a, b]).detach()
    expected = torch.cat([p.grad for p in (a, b) if p.grad is not None])
    assert bool((expected == 1.5).all()), both
    optimizer.handle.detach()


def swapped(rank: int, world: int) -> str:
    """A mutant: one rank sends its buckets in another order."""
    net, optimizer = make("none", check=True)
    if rank == 1:
        optimizer.handle._buckets[0], optimizer.handle._buckets[1] = optimizer.handle._buckets[1::-1]
        places = {name: place for place, names in enumerate(optimizer.handle._buckets) for name in names}
        optimizer.handle._place.update(places)
        optimizer.handle._missing = [set(names) for names in optimizer.handle._buckets]
    loss_of(net, rank, 0).backward()
    return raised(optimizer.step)


def raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_the_order_of_gradients_is_free_and_that_of_exchanges_is_not(pair: Pool) -> None:
    pair.run(any_order)
    assert all("RoundMismatch" in text or "TransportError" in text for text in pair.run(swapped))


# ---- what training scripts do ---------------------------------------------------------------------------------------
def accumulation(rank: int, world: int) -> None:
    net, optimizer = make("none", backward_passes_per_step=2)
    for step in range(3):
        optimizer.zero_grad()
        given = [[alone(net, r, 2 * step + half) for half in range(2 if step < 2 else 1)] for r in range(world)]
        for half in range(2 if step < 2 else 1):  # the last is short
            loss_of(net, rank, 2 * step + half).backward()
        optimizer.synchronize()
        for name, mean in gradients(net).items():
            sums = [sum(part[name] for part in halves) for halves in given]
            torch.testing.assert_close(mean, sum(sums) / world)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert optimizer.handle.stats.steps == 3
    assert_replicas_agree(net, world)
    optimizer.handle.detach()


def clipping(rank: int, world: int) -> None:
    """Clipping takes the mean; before that, whoever looks at a gradient hears what to do."""
    net, optimizer = make()
    loss_of(net, rank, 0).backward()
    for look in (
        lambda: nn.utils.clip_grad_norm_(net.parameters(), 0.1),
        lambda: repr(net.head.weight.grad),
        lambda: net.zero_grad(set_to_none=False),
    ):
        with pytest.raises(GraceError, match=r"call optimizer\.synchronize\(\) before"):
            look()
    optimizer.synchronize()
    optimizer.synchronize()  # once more changes nothing
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()
    assert all(torch.equal(part, norm) for part in gather(norm))
    assert optimizer.handle.stats.steps == 1
    copy.deepcopy(net)
    optimizer.handle.detach()


def closures(rank: int, world: int) -> None:
    """Evaluations of a closure depend on its loss: all ranks see the mean."""
    torch.manual_seed(7)
    net = Net()
    lbfgs: Any = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
    grace.DistributedOptimizer(lbfgs, "topk:ratio=0.3", net.named_parameters(), check=True)
    evaluated = 0
    for step in range(2):

        def closure(step: int = step) -> Tensor:
            nonlocal evaluated
            evaluated += 1
            lbfgs.zero_grad()
            loss = loss_of(net, rank, step)
            loss.backward()
            return loss

        lbfgs.step(closure)
    assert lbfgs.handle.stats.steps == evaluated > 4
    assert_replicas_agree(net, world)
    lbfgs.handle.detach()
    net, optimizer = make()
    assert optimizer.step(closure=lambda: loss_and_backward(net, rank)) > 0
    assert_replicas_agree(net, world)
    optimizer.handle.detach()


def loss_and_backward(net: nn.Module, rank: int) -> float:
    loss = loss_of(net, rank, 0)
    loss.backward()
    return loss.item()


def schedulers(rank: int, world: int) -> None:
    """Also one that knew the optimizer before, and has wrapped its step; groups; frozen parameters."""
    torch.manual_seed(7)
    net = Net()
    groups = [{"params": list(net.first.parameters()), "lr": 0.1}, {"params": list(net.head.parameters())}]
    optimizer: Any = torch.optim.AdamW([*groups, {"params": list(net.extra.parameters())}], lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    given = optimizer
    assert grace.DistributedOptimizer(optimizer, "topk:ratio=0.1,follow_lr=true", net.named_parameters()) is given
    assert isinstance(optimizer, torch.optim.AdamW)
    after = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    rates = []
    for step in range(4):
        if step == 2:
            net.extra.requires_grad_(False)
        optimizer.zero_grad()
        loss_of(net, rank, step).backward()
        frozen = net.extra.weight.clone()
        optimizer.step()
        rates.append(optimizer.handle.lr)
        assert torch.equal(net.extra.weight, frozen) == (step >= 2)
        schedule.step()
        after.step()
    assert rates == pytest.approx([0.1, 0.05, 0.0125, 0.00625])
    assert_replicas_agree(net, world)
    optimizer.handle.detach()


def no_data(rank: int, world: int) -> None:
    """A rank without a batch counts zeros."""
    net, optimizer = make("none")
    given = alone(net, 0, 0)
    if rank == 0:
        loss_of(net, rank, 0).backward()
    optimizer.synchronize()
    for name, mean in gradients(net).items():
        torch.testing.assert_close(mean, given[name] / world)
    optimizer.step()
    assert_replicas_agree(net, world)
    optimizer.handle.detach()


def scaled(rank: int, world: int) -> None:
    """Scales change no bit; an inf on one rank makes all skip, and changes no memory."""
    nets = []
    for scale in (1.0, 2.0**10):
        net, optimizer = make(scaler=(scaler := torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)))
        for step in range(5):
            optimizer.zero_grad()
            loss = loss_of(net, rank, step)
            if step == 3 and rank == world - 1:
                loss = loss * float("inf")
            before, memories = weights(net), None
            if step == 3:
                memories = copy.deepcopy(optimizer.handle.state_dict()["states"])
            scaler.scale(loss).backward()
            optimizer.synchronize()
            if step % 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            if memories is not None:
                assert torch.equal(weights(net), before)
                now = optimizer.handle.state_dict()["states"]
                assert torch.equal(now["first.weight"][0], memories["first.weight"][0])
        assert scaler.get_scale() == scale  # doubled once, halved once
        assert_replicas_agree(net, world)
        nets.append(weights(net))
        optimizer.handle.detach()
    assert torch.equal(*nets)


def other_passes(rank: int, world: int) -> None:
    """Their number changes between steps, on all ranks alike."""
    net, optimizer = make("none")
    for step, passes in enumerate((1, 3, 2)):
        optimizer.zero_grad()
        if passes > 1:
            optimizer.set_backward_passes_per_step(passes)
        given = [[alone(net, r, 3 * step + part) for part in range(passes)] for r in range(world)]
        for part in range(passes):
            loss_of(net, rank, 3 * step + part).backward()
            assert optimizer.handle._next == 0 or part == passes - 1, "it was exchanged before the last pass"
        if passes == 3:
            with pytest.raises(GraceError, match="between steps"):
                optimizer.set_backward_passes_per_step(1)
        optimizer.synchronize()
        for name, mean in gradients(net).items():
            sums = [sum(part[name] for part in parts) for parts in given]
            torch.testing.assert_close(mean, sum(sums) / world)
        optimizer.step()
    with pytest.raises(FingerprintMismatch, match=r"backward_passes_per_step: 1 on ranks \[0\], 2 on ranks \[1\]"):
        optimizer.set_backward_passes_per_step(1 + rank)
    optimizer.zero_grad()
    for part in range(2):  # as before
        loss_of(net, rank, part).backward()
    optimizer.step()
    assert optimizer.handle.stats.steps == 4
    assert_replicas_agree(net, world)
    optimizer.handle.detach()


CASES = [accumulation, other_passes, clipping, closures, schedulers, no_data, scaled]


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_training_scripts(pair: Pool, case: Callable[[int, int], None]) -> None:
    pair.run(case)


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_training_scripts_over_mpi(pools: Callable[[str, int], Any], case: Callable[[int, int], None]) -> None:
    pools("mpi", 2).run(case)


# ---- mutants: ranks that decide alone whether all numbers are finite -----------------------------------------------
def overflow_on_one_rank(spec: Any, rank: int, world: int, spoil: Callable[[Any], None] = lambda handle: None) -> None:
    """The promise: all ranks skip that step, and go on alike."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    net, optimizer = make(spec, scaler=scaler)
    spoil(optimizer.handle)
    try:
        for step in range(4):
            optimizer.zero_grad()
            loss = loss_of(net, rank, step)
            scaler.scale(loss * float("inf") if step == 1 and rank == 1 else loss).backward()
            optimizer.synchronize()
            scaler.step(optimizer)
            scaler.update()
        assert_replicas_agree(net, world)
        assert scaler.get_scale() == 2.0
    finally:
        optimizer.handle.detach()


def leave_out_the_exchange(handle: Any) -> None:
    """Leaves the exchange out where this rank's own gradients are not finite; the step counts."""
    own = handle._exchange

    def exchange(given: dict[str, Tensor], last: bool, flags: Tensor | None) -> None:
        handle.finite = getattr(handle, "finite", True) and all(bool(x.isfinite().all()) for x in given.values())
        if handle.finite:
            own(given, last, flags)
        elif last:
            handle._session.worker.advance()
            handle.finite = True

    handle._exchange = exchange


def finite_alone(rank: int, world: int) -> list[str]:
    overflow_on_one_rank("topk:ratio=0.05", rank, world)
    believes_itself = Policy([("*", OnlyMine(grace.method("topk:ratio=0.05")))])
    return [
        raised(lambda: overflow_on_one_rank(believes_itself, rank, world)),
        raised(lambda: overflow_on_one_rank("topk:ratio=0.05", rank, world, leave_out_the_exchange)),
    ]


def test_ranks_that_do_not_agree_on_what_is_finite_are_caught(pools: Callable[[str, int], Any]) -> None:
    for parted, apart in pools("mpi", 2).run(finite_alone):
        assert parted.startswith("AssertionError: replicas differ"), parted
        assert apart.startswith(("StepMismatch", "TransportError")), apart


# ---- states ---------------------------------------------------------------------------------------------------------
def resumed(rank: int, world: int) -> None:
    net, optimizer = make()

    def train(net: nn.Module, optimizer: Any, steps: range) -> nn.Module:
        for step in steps:
            optimizer.zero_grad()
            loss_of(net, rank, step).backward()
            optimizer.step()
        return net

    train(net, optimizer, range(3))
    saved = copy.deepcopy({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    expected = weights(train(net, optimizer, range(3, 6)))
    optimizer.handle.switch("qsgd")
    train(net, optimizer, range(6, 7))
    optimizer.handle.detach()
    net, optimizer = make()
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    assert torch.equal(weights(train(net, optimizer, range(3, 6))), expected)
    # a plain optimizer, without Grace
    plain = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5)
    plain.load_state_dict(saved["optimizer"])
    # what one rank has saved, on all ranks: memories are lost, and that is said
    box = [saved["optimizer"]]
    dist.broadcast_object_list(box)
    with pytest.warns(UserWarning, match="what rank 0 saved.*start empty"):
        optimizer.load_state_dict(box[0])
    assert optimizer.handle.state_dict()["step"] == 3
    train(net, optimizer, range(1))
    # of different steps
    mixed = copy.deepcopy(saved["optimizer"])
    mixed["grace"]["step"] += rank
    with pytest.raises(StateError, match=r"no rank does|not those that rank 1 saved"):
        optimizer.load_state_dict(mixed)
    with pytest.raises(GraceError, match="neither copied nor pickled"):
        copy.deepcopy(optimizer)
    optimizer.handle.detach()


@pytest.mark.tier("test")
def test_memories_are_in_the_state(pair: Pool) -> None:
    pair.run(resumed)


# ---- broadcasts -----------------------------------------------------------------------------------------------------
def broadcasts(rank: int, world: int) -> None:
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(torch.float64)
    net[1].num_batches_tracked.fill_(rank)
    root = world - 1
    grace.broadcast_parameters(net.state_dict(), root_rank=root)
    assert int(net[1].num_batches_tracked) == root
    assert_replicas_agree(net, world)
    for make_it in (torch.optim.AdamW, torch.optim.SGD):
        optimizer = make_it(net.parameters(), lr=0.1 * (rank + 1))
        if rank == root:  # it alone has a state, of a checkpoint
            for _ in range(2):
                net(torch.randn(8, 3, dtype=torch.float64)).sum().backward()
                optimizer.step()
        grace.broadcast_parameters(net.named_parameters(), root_rank=root)
        grace.broadcast_optimizer_state(optimizer, root_rank=root)
        assert optimizer.param_groups[0]["lr"] == 0.1 * (root + 1)
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        assert_replicas_agree(net, world)
    _, distributed = make()
    grace.broadcast_optimizer_state(distributed)
    distributed.handle.detach()
    given = {"epoch": 3, "best": [0.5, None], "x": torch.ones(2)} if rank == 0 else None
    told = grace.broadcast_object(given)
    assert told["epoch"] == 3
    assert torch.equal(told["x"], torch.ones(2))
    with pytest.raises(ConfigurationError, match="plain containers"):
        grace.broadcast_object(Net())
    with pytest.raises(ConfigurationError, match="root_rank=2"):
        grace.broadcast_object(1, root_rank=2)
    with pytest.raises(FingerprintMismatch, match="tensor 0"):
        grace.broadcast_parameters([("0", torch.zeros(2 + rank))])
    with pytest.raises(FingerprintMismatch, match="group 0"):
        grace.broadcast_optimizer_state(torch.optim.SGD([torch.zeros(2 + rank)]))
    with pytest.raises(InputError, match="legal"):
        grace.broadcast_parameters({"a": 1})


def test_broadcasts(pair: Pool) -> None:
    pair.run(broadcasts)
