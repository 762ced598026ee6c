"""The adapter for DistributedDataParallel beside checkpoints, other methods and other transports: in real processes."""

from __future__ import annotations

import io

import pytest
import torch
import torch.distributed as dist
from torch import nn

import grace
from grace.errors import (
    ConfigurationError,
    GraceError,
    StateError,
    TransportError,
)
from grace.transports.torch_distributed import TorchDistributed
from tests.distributed.ddp_models import Net, assert_replicas_agree, batch, model, train, weights
from tests.distributed.processes import Pool
from tests.patience import PATIENCE
from tests.unit.networks import Loopback


# ---- checkpoints ----------------------------------------------------------------------------------------------------
def checkpoint(rank: int, world: int, spec: str, granularity: str) -> None:
    straight = model()
    handle = grace.attach(straight, spec, granularity=granularity)
    train(straight, rank, range(6))
    handle.detach()

    stopped = model()
    handle = grace.attach(stopped, spec, granularity=granularity)
    train(stopped, rank, range(3))
    file = io.BytesIO()
    torch.save({"model": stopped.state_dict(), "grace": handle.state_dict()}, file)
    handle.detach()

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = model()
    resumed.load_state_dict(saved["model"])
    handle = grace.attach(resumed, spec, granularity=granularity)
    handle.load_state_dict(saved["grace"])
    train(resumed, rank, range(3, 6))
    with pytest.raises(StateError, match="rank"):
        handle.load_state_dict({**saved["grace"], "rank": rank + 1})
    with pytest.raises(StateError, match="granularity"):
        handle.load_state_dict({**saved["grace"], "groups": {}})
    handle.detach()
    assert torch.equal(weights(straight), weights(resumed))


@pytest.mark.parametrize("granularity", ["parameter", "bucket", "model"])
@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "qsgd"])
def test_a_resumed_run_has_the_same_bits(pair: Pool, spec: str, granularity: str) -> None:
    pair.run(checkpoint, spec, granularity)


def test_a_resumed_powersgd_run_has_the_same_bits(pair: Pool) -> None:
    pair.run(checkpoint, "powersgd:rank=2", "parameter")


def boundaries(rank: int, world: int) -> None:
    """States that were saved under another method than the next step's: at a step rule, and after a switch."""
    policy = grace.Policy([grace.Rule("*", "topk:ratio=0.02", until_step=2, min_ndim=2), ("*", "none")])
    for resumed_policy, switches in ((policy, False), (policy, True)):
        net = model()
        handle = grace.attach(net, resumed_policy)
        train(net, rank, range(2))
        if switches:
            handle.switch("efsignsgd")
        saved, weights_then = handle.state_dict(), {k: v.clone() for k, v in net.state_dict().items()}
        train(net, rank, range(2, 4))
        handle.detach()
        resumed = model()
        resumed.load_state_dict(weights_then)
        again = grace.attach(resumed, "efsignsgd" if switches else resumed_policy)
        again.load_state_dict(saved)
        train(resumed, rank, range(2, 4))
        with pytest.raises(StateError, match="switch"):
            again.load_state_dict({**saved, "policy": "Policy('*' -> qsgd)"})
        again.detach()
        assert torch.equal(weights(net), weights(resumed))


def test_a_state_saved_between_two_methods_goes_on_with_what_is_owed(pair: Pool) -> None:
    pair.run(boundaries)


# ---- changes --------------------------------------------------------------------------------------------------------
def switching(rank: int, world: int, granularity: str) -> None:
    """Nothing is lost: the sum of all means is the sum of all mean gradients, once the memories are flushed."""
    net = model()
    handle = grace.attach(net, "topk:ratio=0.02", granularity=granularity)
    truth, applied = torch.zeros_like(weights(net)), torch.zeros_like(weights(net))
    for step, spec in enumerate([None, None, "efsignsgd", None, "none", None]):
        if spec:
            handle.switch(spec)
        net.zero_grad()
        x, y = batch(rank, step)
        with net.no_sync():
            nn.functional.cross_entropy(net(x), y).backward()
        local = torch.cat([p.grad.double().flatten() for p in net.parameters()])
        dist.all_reduce(local)
        truth += local / world
        net.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        applied += torch.cat([p.grad.double().flatten() for p in net.parameters()])
        if step == 3:
            assert not torch.allclose(applied, truth, atol=1e-3), "the memories should owe something here"
    torch.testing.assert_close(applied, truth, atol=1e-5, rtol=1e-5)
    handle.detach()


@pytest.mark.parametrize("granularity", ["parameter", "bucket", "model"])
def test_switching_methods_loses_nothing(pair: Pool, granularity: str) -> None:
    pair.run(switching, granularity)


def detaching(rank: int, world: int) -> None:
    net, plain = model(), model()
    handle = grace.attach(net, "topk")
    with pytest.raises(ConfigurationError, match="attached"):
        grace.attach(net, "topk")
    handle.detach()
    handle.detach()
    with pytest.raises(grace.GraceError, match="detached"):
        handle.switch("none")
    assert torch.equal(weights(train(net, rank, range(5))), weights(train(plain, rank, range(5))))
    again = grace.attach(net, "qsgd")
    train(net, rank, range(2))
    assert again.stats.steps == 2
    assert_replicas_agree(net, world)
    again.detach()


def test_a_detached_model_is_plain_and_can_be_attached_again(pool: Pool) -> None:
    pool.run(detaching)


def count_left_keys(rank: int, world: int, attached: bool) -> int:
    """Keys that ten rounds leave in the job's store: of attaching, or of making and destroying a group of torch's."""
    store, net = dist.distributed_c10d._get_default_store(), model()  # type: ignore[attr-defined]

    def rounds(count: int) -> int:
        for _ in range(count):
            if attached:
                grace.attach(net, "topk").detach()
            else:
                group = dist.new_group(backend="gloo")
                dist.all_reduce(torch.ones(1), group=group)
                dist.destroy_process_group(group)
        dist.barrier()
        keys = store.num_keys()
        dist.barrier()
        return int(keys)

    before = rounds(1)
    return rounds(10) - before


def test_rounds_of_attaching_leave_no_more_than_torchs_own_groups(pool: Pool) -> None:
    assert pool.run(count_left_keys, True) == pool.run(count_left_keys, False)


# ---- transports -----------------------------------------------------------------------------------------------------
def given_transport(rank: int, world: int) -> None:
    net, plain = model(), model()
    handle = grace.attach(net, "none", transport=TorchDistributed(dist.new_group()))
    assert torch.equal(weights(train(net, rank, range(3))), weights(train(plain, rank, range(3))))
    handle.detach()
    if world > 2:
        return
    other = model()
    with pytest.raises(ConfigurationError, match=r"rank and world \(0, 1\) are not those of the model's group"):
        grace.attach(other, "none", transport=Loopback())


def lent_transport(rank: int, world: int) -> None:
    """A user's own transport outlives the handles that use it, whichever door they come from; an error ends it."""
    network = TorchDistributed(dist.new_group())
    net = model()
    handle = grace.attach(net, "topk:ratio=0.1", transport=network)
    assert handle.transport.startswith("gloo")
    train(net, rank, range(2))
    handle.detach()
    plain = Net()
    optimizer = grace.DistributedOptimizer(torch.optim.SGD(plain.parameters(), lr=0.1), "none", transport=network)
    optimizer.handle.detach()
    window = grace.local(plain, torch.optim.SGD(plain.parameters(), lr=0.1), "none", every=2, transport=network)
    window.detach()
    assert network.all_gather_text(str(rank), seconds=PATIENCE) == [str(other) for other in range(world)]
    handle = grace.attach(net, "none", transport=network)
    handle._session.close(GraceError("enough"))
    with pytest.raises(TransportError):
        network.all_gather_text("x", seconds=PATIENCE)
    handle.detach()


def test_a_transport_of_the_users_own_stays_open(pair: Pool) -> None:
    pair.run(lent_transport)


def test_over_a_transport_that_is_given(pool: Pool) -> None:
    pool.run(given_transport)
