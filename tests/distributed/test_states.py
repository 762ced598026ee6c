"""States that are loaded: all ranks or none, and only states that belong together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.errors import StateError
from grace.transports import agreement
from tests.distributed.ddp_models import assert_replicas_agree, model, train, weights
from tests.distributed.processes import Pool
from tests.distributed.test_local_steps import model as plain_model
from tests.distributed.test_local_steps import sgd
from tests.distributed.test_local_steps import train as train_locally

RANDOM = "randomk:ratio=0.1,memory=none"  # its streams are shared: ranks at different steps send different positions
STARTING = "topk:ratio=0.1,start=3"  # ranks before and after that step send messages of different kinds


def belonging(rank: int, world: int, spec: str) -> list[str]:
    """States of different steps, seeds, methods; one that is damaged; a rank that does not load."""
    net = model()
    handle = grace.attach(net, spec)
    train(net, rank, range(2))
    early = handle.state_dict()
    train(net, rank, range(2, 4))
    late = handle.state_dict()
    messages = []

    def refused(saved: Any, loads: bool = True) -> None:
        before = handle.state_dict()
        if loads:
            with pytest.raises(StateError) as caught:
                handle.load_state_dict(saved)
            messages.append(str(caught.value))
        after = handle.state_dict()
        assert after["step"] == before["step"]
        assert after["checksum"] == before["checksum"], "nothing should have changed"

    refused(early if rank == 0 else late)
    refused(None if rank == 0 else late)
    agreement.SECONDS = 1.0
    try:
        refused(early, loads=rank == 0)
    finally:
        agreement.SECONDS = 45.0
    train(net, rank, range(4, 6))
    assert_replicas_agree(net, world)
    handle.load_state_dict(early)
    train(net, rank, range(2))
    assert_replicas_agree(net, world)
    handle.detach()
    return messages


@pytest.mark.parametrize("spec", [RANDOM, STARTING])
def test_either_all_ranks_load_or_none(pair: Pool, spec: str) -> None:
    first, second = pair.run(belonging, spec)
    for messages in (first, second):
        assert (
            "the states do not belong together, so no rank loads. step: 2 on ranks [0], 4 on ranks [1]" in messages[0]
        )
    assert "a dictionary is needed, got NoneType" in first[1]
    assert "rank 0 cannot load its state, so no rank does" in second[1]
    assert "ranks [1] did not load a state within 1 s" in first[2]
    assert len(second) == 2


def of_local_steps(rank: int, world: int) -> str:
    net = plain_model()
    optimizer = sgd(net)
    handle = grace.local(net, optimizer, "topk:ratio=0.1", every=3)
    train_locally(net, optimizer, rank, range(1))
    first = handle.state_dict()
    train_locally(net, optimizer, rank, range(1, 2))
    second = handle.state_dict()
    for wrong, message in (
        ({**second, "taken": "1"}, "steps into a window"), ({**second, "steps": -1}, "legal: a whole number"),
        ({**second, "reference": None}, "should be tensors by name"), ([], "a dictionary is needed, got list"),
    ):  # fmt: skip
        with pytest.raises(StateError, match=message):
            handle.load_state_dict(wrong)
    with pytest.raises(StateError) as caught:
        handle.load_state_dict(first if rank == 0 else second)
    assert handle.state_dict()["taken"] == 2
    handle.detach()
    return str(caught.value)


def test_windows_belong_together(pair: Pool) -> None:
    for message in pair.run(of_local_steps):
        assert "steps: 1 on ranks [0], 2 on ranks [1]; steps into the window: 1 on ranks [0], 2 on ranks [1]" in message


def mixed(rank: int, world: int) -> None:
    """A state from a file that keeps one rank's tensors for all, as torch.distributed.checkpoint does with equal keys."""
    net = model()
    handle = grace.attach(net, "topk:ratio=0.05")
    train(net, rank, range(2))
    own = handle.state_dict()
    states: list[Any] = [None] * world
    torch.distributed.all_gather_object(states, own)
    with pytest.raises(StateError, match=r"handle.checkpoint\(\)" if rank else "rank 1 cannot load"):
        handle.load_state_dict({**own, "states": states[0]["states"]})
    with pytest.raises(StateError, match="each rank loads its own" if rank else "rank 1 cannot load"):
        handle.load_state_dict(states[0])
    before = weights(net)
    handle.load_state_dict(own)
    assert torch.equal(weights(net), before)
    handle.detach()


def test_a_state_of_another_rank_is_never_loaded_silently(pair: Pool) -> None:
    pair.run(mixed)


# ---- four workers: addition does not commute ------------------------------------------------------------------------
@pytest.fixture(scope="module")
def four() -> Iterator[Pool]:
    pool = Pool(4)
    yield pool
    pool.close()


def resumed(rank: int, world: int, spec: str, settles: bool) -> bool:
    """True if a resumed run has the bits of one without a stop; ``settles``: with a backward pass before attaching."""

    def fresh() -> DistributedDataParallel:
        net = model()
        if settles:
            train(net, rank, range(1))  # DistributedDataParallel now arranges its buckets for good
            net.zero_grad()
        return net

    start = {k: v.clone() for k, v in model().state_dict().items()}
    straight = fresh()
    straight.load_state_dict(start)
    handle = grace.attach(straight, spec)
    train(straight, rank, range(3))
    saved, then = handle.state_dict(), {k: v.clone() for k, v in straight.state_dict().items()}
    train(straight, rank, range(3, 6))
    handle.detach()
    again = fresh()
    again.load_state_dict(then)
    handle = grace.attach(again, spec)
    handle.load_state_dict(saved)
    train(again, rank, range(3, 6))
    handle.detach()
    return torch.equal(weights(straight), weights(again))


@pytest.mark.parametrize("spec", ["none", "powersgd:rank=2", "topk:ratio=0.05", "efsignsgd"])
def test_a_resumed_run_has_the_same_bits_once_the_buckets_are_arranged(four: Pool, spec: str) -> None:
    assert all(four.run(resumed, spec, True))


def test_what_the_network_adds_up_depends_on_the_buckets_of_the_first_step(four: Pool) -> None:
    """Not a wish, a fact of DistributedDataParallel that docs/concepts/ddp.md states; plain training has it too."""
    assert not all(four.run(resumed, "none", False))
