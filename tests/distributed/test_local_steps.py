"""Local steps, in real processes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.adapters.outer.door import LocalSteps, local
from grace.errors import ConfigurationError, FingerprintMismatch, GraceError, InputError, StateError, TransportError
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.processes import Pool

SIZES = ((48, 30), (48,), (5, 48), (5,))


def model(seed: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(30, 48), nn.Tanh(), nn.Linear(48, 5))


def sgd(net: nn.Module, **knobs: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), **{"lr": 0.05, **knobs})


def step(net: nn.Module, optimizer: torch.optim.Optimizer, rank: int, index: int, poison: str = "") -> None:
    made = torch.Generator().manual_seed(1000 * index + rank)
    x, y = torch.randn(8, 30, generator=made), torch.randint(0, 5, (8,), generator=made)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    if poison:
        net.get_parameter(poison).grad[0, 0] = float("nan")
    optimizer.step()


def train(net: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: range) -> None:
    for index in steps:
        step(net, optimizer, rank, index)


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def of_all(own: Tensor, world: int) -> list[Tensor]:
    rows = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(rows, own)
    return rows


def alike(net: nn.Module, world: int) -> bool:
    own = weights(net)
    return all(torch.equal(own, other) for other in of_all(own, world))


# ---- what it computes -----------------------------------------------------------------------------------------------
def averaging(rank: int, world: int, every: int) -> None:
    """With ``none``: each window ends in the average of the replicas, computed here by hand."""
    net, plain = model(), model()
    optimizer, other = sgd(net), sgd(plain)
    handle = local(net, optimizer, "none", every=every, check=True)
    for index in range(6):
        step(net, optimizer, rank, index)
        step(plain, other, rank, index)
        if (index + 1) % every == 0:
            average = torch.stack(of_all(weights(plain).double(), world)).mean(0)
            nn.utils.vector_to_parameters(average.float(), plain.parameters())
            torch.testing.assert_close(weights(net), weights(plain), atol=2e-7, rtol=1e-6)
        else:
            assert torch.equal(weights(net), weights(plain)) or index >= every
    handle.detach()


@pytest.mark.parametrize("every", [1, 3])
def test_without_compression_a_window_ends_in_the_average_of_the_replicas(pool: Pool, every: int) -> None:
    pool.run(averaging, every)


def windows(rank: int, world: int, spec: str, optimizer_name: str) -> None:
    net = model(rank)  # not the same on all ranks: it starts with rank 0's
    knobs = {"lr": 0.05, "momentum": 0.9} if optimizer_name == "SGD" else {"lr": 0.01}
    optimizer = getattr(torch.optim, optimizer_name)(net.parameters(), **knobs)
    handle = local(net, optimizer, spec, every=3, check=True)
    assert alike(net, world)
    assert torch.equal(weights(net), weights(model(0)))
    for index in range(9):
        step(net, optimizer, rank, index)
        assert handle.synchronized == (index % 3 == 2)
        assert alike(net, world) == handle.synchronized
    assert bool(weights(net).isfinite().all())
    assert not torch.equal(weights(net), weights(model(0)))
    held = [x for s in optimizer.state.values() for x in s.values() if isinstance(x, Tensor) and x.numel() > 1]
    own = torch.cat([x.flatten() for x in held])
    assert not all(torch.equal(own, other) for other in of_all(own, world)), "the optimizer's state should be local"
    handle.detach()


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("spec", ["none", "qsparse:ratio=0.05", "topk:ratio=0.05", "powersgd:rank=1", "qsgd"])
def test_replicas_are_the_same_bits_after_a_window_and_differ_within(pair: Pool, spec: str, optimizer: str) -> None:
    pair.run(windows, spec, optimizer)


def test_three_workers(pools: Callable[[str, int], Any]) -> None:
    pools("gloo", 3).run(windows, "qsparse:ratio=0.05", "SGD")


def conservation(rank: int, world: int, spec: str) -> None:
    """Nothing is lost: what x_ref has moved, plus the average memory, is the sum of the average deltas."""
    net = model()
    optimizer = sgd(net, momentum=0.9)
    handle = local(net, optimizer, spec, every=2)
    start = weights(net).double()
    told, before = torch.zeros_like(start), weights(net)
    for index in range(10):
        step(net, optimizer, rank, index) if index % 2 == 0 else _unsynchronized(net, optimizer, rank, index, handle)
        if index % 2 == 1:
            told += torch.stack(of_all((before - weights(net)).double(), world)).mean(0)
            handle.step()
            assert handle.synchronized
            before = weights(net)
    states = handle.state_dict()["states"]
    memory = [
        states[name][0] if isinstance(states[name], tuple) else torch.zeros_like(p)
        for name, p in net.named_parameters()
    ]
    owed = torch.stack(of_all(torch.cat([m.flatten() for m in memory]).double(), world)).mean(0)
    assert float(owed.abs().sum()) > 0.01 * float(told.abs().sum()), "the memories should owe something here"
    torch.testing.assert_close(start - weights(net).double() + owed, told, atol=1e-6, rtol=1e-5)
    handle.detach()


def _unsynchronized(net: nn.Module, optimizer: Any, rank: int, index: int, handle: LocalSteps) -> None:
    """The last step of a window, without its synchronization."""
    assert handle._hook is not None
    handle._hook.remove()
    step(net, optimizer, rank, index)
    handle._hook = optimizer.register_step_post_hook(lambda *_: handle.step())


@pytest.mark.parametrize("spec", ["qsparse:ratio=0.02", "qsparse:ratio=0.05,quant=4", "topk:ratio=0.02", "efsignsgd"])
def test_nothing_is_lost(pool: Pool, spec: str) -> None:
    pool.run(conservation, spec)


def following(rank: int, world: int) -> None:
    """delta is in units of the parameters: a memory that follows the learning rate finds none to follow."""
    made = []
    for spec in ("topk:ratio=0.05", "topk:ratio=0.05,follow_lr=true"):
        net = model()
        optimizer = sgd(net)
        handle = local(net, optimizer, spec, every=2)
        for index in range(6):
            optimizer.param_groups[0]["lr"] = 0.05 / (index + 1)
            step(net, optimizer, rank, index)
        handle.detach()
        made.append(weights(net))
    assert torch.equal(*made)


def test_a_memory_is_not_rescaled_with_the_learning_rate(pair: Pool) -> None:
    pair.run(following)


def traffic(rank: int, world: int, spec: str) -> list[dict[str, Any]]:
    made = []
    for every, warmup in ((1, 0), (4, 0), (4, 4)):
        net = model()
        optimizer = sgd(net)
        handle = local(net, optimizer, spec, every=every, warmup_steps=warmup)
        train(net, optimizer, rank, range(8))
        assert handle.synchronized
        made.append(handle.stats.as_dict())
        handle.detach()
    return made


@pytest.mark.parametrize("spec", ["none", "qsparse:ratio=0.02"])
def test_the_bytes_of_a_step_drop_by_h(pair: Pool, spec: str) -> None:
    each, fourth, late = pair.run(traffic, spec)[0]
    assert each["steps"] == fourth["steps"] == late["steps"] == 8
    assert each["sent_bytes_per_step"] == 4 * fourth["sent_bytes_per_step"] > 0
    assert fourth["ratio"] == pytest.approx(4 * each["ratio"])
    assert each["rounds_per_step"] == 4 * fourth["rounds_per_step"]
    assert late["rounds_per_step"] * 8 == 4 + each["rounds_per_step"]  # four all-reduces in the warm-up, one window
    assert late["exchange_seconds_per_step"] > 0 < late["codec_seconds_per_step"]
    if spec == "none":
        assert each["ratio"] == pytest.approx(1, abs=1e-3)


# ---- checkpoints and the end ----------------------------------------------------------------------------------------
def checkpoint(rank: int, world: int, spec: str, stop: int) -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, LocalSteps]:
        net = model()
        optimizer = sgd(net, momentum=0.9)
        return net, optimizer, local(net, optimizer, spec, every=3)

    straight, optimizer, handle = fresh()
    train(straight, optimizer, rank, range(9))
    handle.detach()

    stopped, optimizer, handle = fresh()
    train(stopped, optimizer, rank, range(stop))
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "grace": handle.state_dict()}, file)
    handle.detach()

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed, optimizer, handle = fresh()
    optimizer.load_state_dict(saved["optimizer"])
    handle.load_state_dict(saved["grace"])
    assert torch.equal(weights(resumed), weights(stopped))
    assert handle.synchronized == (stop % 3 == 0)
    before = handle.state_dict()
    wrong = {
        "rank": {**saved["grace"], "rank": rank + 1},
        "steps into a window": {**saved["grace"], "taken": 3},
        "other parameters": {**saved["grace"], "reference": {}},
        "lacks taken": {key: value for key, value in saved["grace"].items() if key != "taken"},
        "'0.bias' should be": {
            **saved["grace"],
            "reference": {**saved["grace"]["reference"], "0.bias": torch.zeros(3)},
        },
    }
    for message, state in wrong.items():
        with pytest.raises(StateError, match=message):
            handle.load_state_dict(state)
    after = handle.state_dict()
    assert after["taken"] == before["taken"]
    assert all(torch.equal(x, after["reference"][name]) for name, x in before["reference"].items())
    train(resumed, optimizer, rank, range(stop, 9))
    handle.detach()
    assert torch.equal(weights(straight), weights(resumed))


@pytest.mark.parametrize("stop", [3, 5])
@pytest.mark.parametrize("spec", ["qsparse:ratio=0.05", "qsgd"])
def test_a_resumed_run_has_the_same_bits(pair: Pool, spec: str, stop: int) -> None:
    pair.run(checkpoint, spec, stop)


def between(rank: int, world: int) -> None:
    net = model()
    optimizer = sgd(net)
    handle = local(net, optimizer, "topk:ratio=0.1", every=4)
    assert handle.model is net
    train(net, optimizer, rank, range(2))
    with pytest.raises(StateError, match=r"step 2 of a window of 4; call handle.sync\(\)"):
        _ = handle.model
    handle.sync()
    assert handle.model is net
    assert alike(net, world)
    rounds = handle.stats.traffic.rounds
    handle.sync()  # nothing to do
    assert handle.stats.traffic.rounds == rounds
    train(net, optimizer, rank, range(4))  # a whole window again
    assert handle.synchronized
    assert "every 4 steps" in repr(handle)

    handle.detach()
    handle.detach()
    with pytest.raises(GraceError, match="detached"):
        handle.sync()
    train(net, optimizer, rank, range(4))
    assert not alike(net, world)
    assert handle.stats.steps == 6
    again = local(net, optimizer, "none", every=1)  # starts with rank 0's parameters
    train(net, optimizer, rank, range(1))
    assert alike(net, world)
    again.detach()


def test_between_windows_only_and_detached(pool: Pool) -> None:
    pool.run(between)


def by_hand(rank: int, world: int) -> None:
    """A step that is skipped on one rank alone, as a gradient scaler does."""
    net = model()
    optimizer = sgd(net)
    handle = local(net, optimizer, "none", every=2, automatic=False)
    for index in range(4):
        if not (rank == 0 and index == 2):
            step(net, optimizer, rank, index)
        handle.step()
        assert alike(net, world) == handle.synchronized == (index % 2 == 1)
    handle.detach()


def test_steps_counted_by_hand(pair: Pool) -> None:
    pair.run(by_hand)


# ---- what goes wrong ------------------------------------------------------------------------------------------------
def nonfinite(rank: int, world: int, spec: str, name: str) -> None:
    net = model()
    optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.01, **({"momentum": 0.9} if name == "SGD" else {}))
    handle = local(net, optimizer, spec, every=2)
    train(net, optimizer, rank, range(2))
    before, reference = handle.state_dict()["states"], {n: p.detach().clone() for n, p in net.named_parameters()}
    train(net, optimizer, rank, range(2, 3))
    step(net, optimizer, rank, 3, poison="0.weight" if rank == world - 1 else "")
    assert alike(net, world)
    after = handle.state_dict()["states"]
    for other, p in net.named_parameters():
        assert torch.equal(p, reference[other]) == (other == "0.weight"), other
    if isinstance(before["0.weight"], tuple):
        assert torch.equal(before["0.weight"][0], after["0.weight"][0]), "the memory has changed"
    assert handle.stats.nonfinite == 1
    train(net, optimizer, rank, range(4, 6))
    assert handle.stats.nonfinite == 1, "the optimizer's state should have been healed"
    assert not torch.equal(net.get_parameter("0.weight"), reference["0.weight"])
    assert alike(net, world)
    assert bool(weights(net).isfinite().all())
    handle.detach()


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adagrad"])
@pytest.mark.parametrize("spec", ["none", "qsparse:ratio=0.05", "topk:ratio=0.05"])
def test_a_nan_on_one_rank_sends_all_back_to_the_reference(pair: Pool, spec: str, optimizer: str) -> None:
    pair.run(nonfinite, spec, optimizer)


def differing(rank: int, world: int) -> list[str]:
    messages = []
    knobs: tuple[list[dict[str, Any]], ...] = (
        [{"every": 2}, {"every": 4}], [{"every": 2, "spec": "topk"}, {"every": 2, "spec": "qsparse"}],
        [{"every": 2, "warmup_steps": 5}, {"every": 2}],
    )  # fmt: skip
    for options in knobs:
        chosen = options[rank % 2]
        net = model()
        with pytest.raises(FingerprintMismatch) as caught:
            local(net, sgd(net), chosen.pop("spec", "topk"), **chosen)
        messages.append(str(caught.value))
    wide = nn.Linear(4 + rank, 6)
    with pytest.raises(FingerprintMismatch) as caught:
        local(wide, sgd(wide), "topk", every=2)
    return [*messages, str(caught.value)]


def test_ranks_that_differ_are_told_in_what(pair: Pool) -> None:
    for messages in pair.run(differing):
        assert "every: 2 on ranks [0], 4 on ranks [1]" in messages[0]
        assert "method: topk on ranks [0], qsparse on ranks [1]" in messages[1]
        assert "warmup_steps: 5 on ranks [0], 0 on ranks [1]" in messages[2]
        assert "parameter weight: (6, 4) torch.float32 on ranks [0], (6, 5) torch.float32 on ranks [1]" in messages[3]


def refused(rank: int, world: int) -> None:
    net = model()
    with pytest.raises(ConfigurationError, match=r"DistributedDataParallel.*before it is wrapped"):
        local(DistributedDataParallel(net), sgd(net), "topk", every=2)
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ConfigurationError, match="every"):
            local(net, sgd(net), "topk", every=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="warmup_steps"):
        local(net, sgd(net), "topk", every=2, warmup_steps=-1)
    with pytest.raises(ConfigurationError, match="4 parameters that are not the model's"):
        local(net, sgd(model()), "topk", every=2)
    with pytest.raises(ConfigurationError, match="no parameter"):
        local(net.requires_grad_(False), sgd(net), "topk", every=2)
    spectrum = nn.Module()
    spectrum.register_parameter("waves", nn.Parameter(torch.zeros(3, dtype=torch.complex64)))
    with pytest.raises(InputError, match=r"'waves' is complex64"):
        local(spectrum, sgd(spectrum), "topk", every=2)

    net = model()
    net[0].requires_grad_(False)
    optimizer = sgd(net)
    handle = local(net, optimizer, "topk", every=2)
    with pytest.raises(ConfigurationError, match="already"):
        local(net, optimizer, "topk", every=2)
    train(net, optimizer, rank, range(2))
    assert alike(net, world)
    net[0].requires_grad_(True)
    with pytest.raises(ConfigurationError, match=r"trains '0.bias', '0.weight', which it did not"):
        train(net, optimizer, rank, range(2))
    handle.detach()


def test_what_cannot_take_local_steps_is_refused_by_name(pair: Pool) -> None:
    pair.run(refused)


class Faulty(grace.TopK):
    """Fails on rank 1 in the second window."""

    def encode_(self, rows: Tensor, rng: Any, memory: Any = None, rest: Any = None) -> tuple[Tensor, bool]:
        if rng.rank == 1 and rng.step == 1:
            raise KeyError("an error of the codec")
        return grace.TopK.encode_(self, rows, rng, memory, rest)


def failing(rank: int, world: int) -> None:
    net, plain = model(), model()
    optimizer, other = sgd(net), sgd(plain)
    handle = local(net, optimizer, grace.ErrorFeedback(grace.Allgather(Faulty(0.05))), every=2)
    train(net, optimizer, rank, range(2))
    nn.utils.vector_to_parameters(weights(net), plain.parameters())
    before = handle.state_dict()
    expected: type[Exception] = KeyError if rank == 1 else TransportError
    for _ in range(2):  # again, and the same
        with pytest.raises(expected):
            train(net, optimizer, rank, range(2, 4)) if handle.synchronized else handle.sync()
    train(plain, other, rank, range(2, 4))
    assert torch.equal(weights(net), weights(plain)), "the replica should be as its own steps left it"
    after = handle.state_dict()
    assert torch.equal(before["states"]["0.weight"][0], after["states"]["0.weight"][0])
    assert torch.equal(before["reference"]["0.weight"], after["reference"]["0.weight"])
    handle.detach()


def test_a_failed_exchange_changes_nothing(pair: Pool) -> None:
    pair.run(failing)


# ---- what is exchanged, and what is not -----------------------------------------------------------------------------
def buffers(rank: int, world: int) -> None:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(30, 48), nn.BatchNorm1d(48), nn.Linear(48, 5))
    optimizer = sgd(net)
    handle = local(net, optimizer, "topk:ratio=0.1", every=2)
    train(net, optimizer, rank, range(4))
    assert alike(net, world)
    rows = of_all(net[1].running_mean, world)
    assert not torch.equal(rows[0], rows[1])
    handle.detach()


def test_buffers_stay_local(pair: Pool) -> None:
    pair.run(buffers)


def dtypes(rank: int, world: int, name: str, spec: str) -> None:
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Conv2d(3, 24, 3), nn.Flatten(), nn.Linear(24 * 16, 5))
    net = net.to(getattr(torch, name)).to(memory_format=torch.channels_last)
    optimizer = sgd(net)
    handle = local(net, optimizer, grace.Policy([("*", spec)]), every=2)
    made = torch.Generator().manual_seed(rank)
    for index in range(4):
        optimizer.zero_grad()
        net(torch.randn(4, 3, 6, 6, generator=made).to(getattr(torch, name))).float().square().mean().backward()
        optimizer.step()
        assert alike(net, world) == (index % 2 == 1)
    assert all(p.dtype == getattr(torch, name) for p in net.parameters())
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
    handle.detach()


@pytest.mark.parametrize("spec", ["none", "qsparse:ratio=0.1", "powersgd"])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
def test_dtypes_and_strides(pair: Pool, name: str, spec: str) -> None:
    pair.run(dtypes, name, spec)


def small_moves(rank: int, world: int, spec: str) -> None:
    """Rank 0 moves by one unit in the last place of bfloat16 in each window, the others stay: the average moves by less."""
    net = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        net.weight.fill_(1.0)
    optimizer = sgd(net)
    handle = local(net, optimizer, grace.Policy([("*", spec)]), every=1, automatic=False)
    unit = 2.0**-8  # between bfloat16's numbers just below 1
    for _ in range(64):
        if rank == 0:
            net.weight.data.sub_(unit)
        handle.step()
        assert alike(net, world)
    assert float(net.weight) == pytest.approx(1 - 64 * unit / world, abs=unit)
    assert handle.state_dict()["reference"]["weight"].dtype == torch.float32
    handle.detach()


@pytest.mark.parametrize("spec", ["none", "topk:ratio=1"])
def test_moves_that_are_too_small_for_one_rounding_add_up(pair: Pool, spec: str) -> None:
    pair.run(small_moves, spec)


def other_transport(rank: int, world: int) -> None:
    """Any transport does: here one over a group of the user's."""
    net = model(rank)
    optimizer = sgd(net)
    transport = TorchDistributed(dist.new_group())
    handle = local(net, optimizer, "topk:ratio=0.1", every=2, transport=transport)
    train(net, optimizer, rank, range(4))
    assert alike(net, world)
    handle.detach()
    with pytest.raises(ConfigurationError, match="give one of them"):
        local(net, optimizer, "topk", every=2, group=dist.group.WORLD, transport=transport)


def test_over_a_transport_that_is_given(pool: Pool) -> None:
    pool.run(other_transport)


def part_of_the_ranks(rank: int, world: int) -> None:
    group = dist.new_group([0, 2])
    if rank != 1:
        net = model(rank)
        optimizer = sgd(net)
        handle = local(net, optimizer, "qsparse:ratio=0.1", every=2, group=group)
        assert handle.world == 2
        train(net, optimizer, rank, range(4))
        rows = [torch.empty_like(weights(net)) for _ in range(2)]
        dist.all_gather(rows, weights(net), group=group)
        assert torch.equal(*rows)
        handle.detach()
        dist.destroy_process_group(group)
    net = model(rank)
    optimizer = sgd(net)
    handle = local(net, optimizer, "none", every=1)  # all together, after something that rank 1 was not in
    train(net, optimizer, rank, range(1))
    assert alike(net, world)
    handle.detach()


def test_a_group_of_some_ranks(pools: Callable[[str, int], Any]) -> None:
    pools("gloo", 3).run(part_of_the_ranks)
