"""Bad gradients, ranks that differ, and what the adapter for DistributedDataParallel refuses: in real processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.errors import (
    CompositionError,
    ConfigurationError,
    FingerprintMismatch,
    InputError,
    NonFiniteError,
)
from tests.distributed.ddp_models import assert_replicas_agree, batch, model, train
from tests.distributed.processes import Pool


def nonfinite(rank: int, world: int, spec: str, value: float) -> None:
    net = model()
    handle = grace.attach(net, spec)
    train(net, rank, range(2))
    name = "module.hidden.weight"
    target = dict(net.named_parameters())[name]
    poison = target.register_hook(lambda g: torch.full_like(g, value) if rank == world - 1 else g)
    before = handle.state_dict()["states"]
    net.zero_grad()
    nn.functional.cross_entropy(net(batch(rank, 2)[0]), batch(rank, 2)[1]).backward()
    for other, p in net.named_parameters():
        assert bool(p.grad.isfinite().all()) == (other != name), other
    after = handle.state_dict()["states"]
    short = name.removeprefix("module.")
    if isinstance(before[short], tuple):
        assert torch.equal(before[short][0], after[short][0]), "the memory of the poisoned tensor has changed"
        assert not torch.equal(before["extra.weight"][0], after["extra.weight"][0]), "the others' memories have not"
    poison.remove()
    train(net, rank, range(3, 5))
    assert_replicas_agree(net, world)
    handle.detach()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "spec",
    [
        "none",
        "topk",
        "randomk",
        "efsignsgd",
        "signsgd",
        "qsgd",
        "fp16",
        "threshold",
        "efsignsgd:communicator=scatterreduce",
        "powersgd:rank=1,min_rate=1",
    ],
)
def test_an_inf_or_nan_on_one_rank_is_agreed_on_and_forgotten(pool: Pool, spec: str, value: float) -> None:
    pool.run(nonfinite, spec, value)


def nonfinite_options(rank: int, world: int) -> None:
    for option in ("skip", "error"):
        net = model()
        handle = grace.attach(net, "none", nonfinite=option)
        net.module.head.weight.register_hook(lambda g: g * float("nan") if rank == 0 else g)
        x, y = batch(rank, 0)
        if option == "skip":
            nn.functional.cross_entropy(net(x), y).backward()
            assert (
                int(net.module.head.weight.grad.count_nonzero()) == 0 < int(net.module.conv.weight.grad.count_nonzero())
            )
        else:
            with pytest.raises(NonFiniteError, match=r"step 0.*'head.weight'"):
                nn.functional.cross_entropy(net(x), y).backward()
            assert handle.stats.nonfinite == 1
            assert handle.error is None, "the next step may go on"
        handle.detach()


def test_non_finite_gradients_can_be_skipped_or_be_an_error(pair: Pool) -> None:
    pair.run(nonfinite_options)


def differing(rank: int, world: int) -> list[str]:
    messages = []
    for options in (
        [("topk", {}), ("qsgd", {})], [("topk", {}), ("topk:ratio=0.02", {})], [("topk", {"seed": 1}), ("topk", {"seed": 2})],
        [(grace.Policy([("*.bias", "none"), ("*", "qsgd")]), {}), ("qsgd", {})],
    ):  # fmt: skip
        spec, knobs = options[rank % 2]
        with pytest.raises(FingerprintMismatch) as caught:
            grace.attach(model(), spec, **knobs)
        messages.append(str(caught.value))
    net = model()
    handle = grace.attach(net, "topk")
    with pytest.raises(FingerprintMismatch) as caught:
        handle.switch(["none", "qsgd"][rank % 2])
    messages.append(str(caught.value))
    train(net, rank, range(2))  # goes on as before
    assert_replicas_agree(net, world)
    handle.detach()
    return messages


def test_ranks_that_differ_are_told_in_what(pair: Pool) -> None:
    for messages in pair.run(differing):
        assert "method: topk on ranks [0], qsgd:bits=4 on ranks [1]" in messages[0]
        assert "topk:ratio=0.02 on ranks [1]" in messages[1]
        assert "seed: 1 on ranks [0], 2 on ranks [1]" in messages[2]
        assert "method: absent on ranks [0], qsgd:bits=4 on ranks [1]" in messages[3]
        assert "method: none on ranks [0], qsgd:bits=4 on ranks [1]" in messages[4]


def other_shapes(rank: int, world: int) -> str:
    net = DistributedDataParallel(nn.Linear(4, 6))
    net.module.weight = nn.Parameter(torch.zeros(6, 4 + rank))  # behind DistributedDataParallel's back
    with pytest.raises(FingerprintMismatch) as caught:
        grace.attach(net, "topk")
    return str(caught.value)


def test_models_that_differ_are_named(pair: Pool) -> None:
    for message in pair.run(other_shapes):
        assert "parameter weight: (6, 4) torch.float32 on ranks [0], (6, 5) torch.float32 on ranks [1]" in message


def refused(rank: int, world: int) -> None:
    with pytest.raises(ConfigurationError, match="DistributedDataParallel"):
        grace.attach(nn.Linear(2, 2), "topk")  # type: ignore[arg-type]
    spectrum = nn.Module()
    spectrum.register_parameter("waves", nn.Parameter(torch.zeros(3, dtype=torch.complex64)))
    spectrum.register_parameter("plain", nn.Parameter(torch.zeros(3)))
    # DistributedDataParallel itself says this where its gloo broadcasts no complex numbers: until torch 2.6
    with pytest.raises((InputError, RuntimeError), match=r"'waves' is complex64.*view_as_real|^Invalid scalar type$"):
        grace.attach(DistributedDataParallel(spectrum), "topk")
    hooked = model()
    hooked.register_comm_hook(None, _other_hook)
    with pytest.raises(ConfigurationError, match="hook of its own"):
        grace.attach(hooked, "topk")
    mixed = DistributedDataParallel(nn.Linear(2, 2))
    mixed.mixed_precision = object()  # what torch keeps of its argument
    with pytest.raises(ConfigurationError, match=r"mixed_precision=\.\.\..*torch\.autocast"):
        grace.attach(mixed, "topk")
    with pytest.raises(CompositionError, match="granularity='parameter'"):
        grace.attach(model(), "powersgd", granularity="model")
    with pytest.raises(ConfigurationError, match="granularity='layer'"):
        grace.attach(model(), "topk", granularity="layer")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="nonfinite='ignore'"):
        grace.attach(model(), "topk", nonfinite="ignore")  # type: ignore[arg-type]


def _other_hook(state: object, bucket: Any) -> Any:
    raise NotImplementedError


_other_hook.__annotations__ = {}


def test_what_cannot_be_attached_is_refused_by_name(pair: Pool) -> None:
    pair.run(refused)


def sparse_gradient(rank: int, world: int) -> str:
    net = DistributedDataParallel(nn.Sequential(nn.Embedding(2000, 4, sparse=True), nn.Linear(4, 2)))
    handle = grace.attach(net, "topk")
    with pytest.raises(InputError) as caught:
        net(torch.arange(5)).sum().backward()
    handle.detach()
    return str(caught.value)


def test_a_sparse_gradient_is_refused_by_name(pair: Pool) -> None:
    for message in pair.run(sparse_gradient):
        assert "'0.weight'" in message
        assert "sparse=False" in message
