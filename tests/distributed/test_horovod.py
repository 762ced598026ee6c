"""Horovod's scripts with Grace's methods, in two processes: over Horovod, where there is one, and over the stand-in for it."""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grace
import grace.horovod
from grace.errors import ConfigurationError
from tests.distributed.processes import Pool

METHODS = ("none", "fp16", "qsgd:bits=4", "topk:ratio=0.1", "powersgd")


def begin(over: str) -> Any:
    if over == "stand-in":
        import grace_dl

        grace_dl.stand_in()
    hvd = importlib.import_module("horovod.torch")
    hvd.init()
    return hvd


def forget_the_stand_in() -> None:
    sys.modules["horovod.torch"].shutdown()
    sys.meta_path[:] = [finder for finder in sys.meta_path if "grace_dl.horovod" not in type(finder).__module__]
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        del sys.modules[name]


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def step(model: nn.Module, optimizer: Any, rank: int, number: int) -> None:
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(10 * number + rank))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def flatten(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().view(-1) for p in model.parameters()])


def training(rank: int, world: int, over: str) -> None:
    """Scripts for Horovod train, with each of the two ways to give a method."""
    hvd = begin(over)
    for method in METHODS:
        model, optimizer = model_and_optimizer()
        optimizer = grace.horovod.DistributedOptimizer(optimizer, model.named_parameters(), method, op=hvd.Average)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # before there is a state
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for number in range(3):
            step(model, optimizer, rank, number)
            scheduler.step()
        rows = hvd.allgather(flatten(model)[None], name="weights")
        assert bool((rows == rows[0]).all()), method
        handle = optimizer.handle
        assert (handle.world, handle.stats.steps) == (world, 3), method
        assert handle.transport.startswith("gloo" if over == "stand-in" else "horovod"), handle.transport
        handle.detach()
    ways = []
    for method in ("none", "fp16"):
        model, optimizer = model_and_optimizer()
        named = list(model.named_parameters())
        optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=named, compression=grace.horovod.compression(method)
        )
        for number in range(3):
            step(model, optimizer, rank, number)
        ways.append(flatten(model))
    torch.testing.assert_close(ways[1], ways[0], rtol=1e-2, atol=1e-3)
    assert not torch.equal(*ways), "nothing was rounded"


def resuming(rank: int, world: int, over: str) -> None:
    """Rank 0 alone saves, and alone loads; then it broadcasts."""
    hvd = begin(over)
    model, optimizer = model_and_optimizer()
    optimizer = grace.horovod.DistributedOptimizer(optimizer, model.named_parameters(), "topk:ratio=0.1")
    for number in range(2):
        step(model, optimizer, rank, number)
    saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert set(saved["optimizer"]) == {"state", "param_groups"}, "memories are each rank's own"
    optimizer.handle.detach()
    model, optimizer = model_and_optimizer()
    optimizer = grace.horovod.DistributedOptimizer(optimizer, model.named_parameters(), "topk:ratio=0.1")
    if rank == 0:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        optimizer.param_groups[0]["lr"] = 0.01
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.01
    for number in range(2):
        step(model, optimizer, rank, number)
    rows = hvd.allgather(flatten(model)[None], name="weights")
    assert bool((rows == rows[0]).all())
    assert optimizer.handle.stats.steps == 2, "the broadcast does not exchange"
    optimizer.handle.detach()


def refusals(rank: int, world: int, over: str) -> list[str]:
    hvd = begin(over)
    model, optimizer = model_and_optimizer()
    told = []
    for knobs in ({"op": hvd.Sum}, {"gradient_predivide_factor": 2.0}, {"compression": nn.Module}):
        with pytest.raises(ConfigurationError) as caught:
            grace.horovod.DistributedOptimizer(optimizer, model.named_parameters(), **{"compression": "fp16", **knobs})
        told.append(str(caught.value))
    with pytest.raises(ConfigurationError, match=r"Keras use grace\.keras\.attach"):
        grace.horovod.DistributedOptimizer("adam")
    for own, method in ((hvd.Compression.none, "none"), (hvd.Compression.fp16, "fp16")):
        optimizer = grace.horovod.DistributedOptimizer(optimizer, model.named_parameters(), own)
        assert repr(optimizer.handle).endswith(f"-> {method})>"), repr(optimizer.handle)
        optimizer.handle.detach()
    return told


def keras_training(rank: int, world: int, over: str) -> None:
    """A model of Keras, after ``hvd.init()``: its doors are :func:`grace.keras.attach` and Grace's callbacks."""
    hvd = begin(over)
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    import grace.keras

    torch.manual_seed(rank)  # other weights on each rank, until attach
    model = keras.Sequential([keras.layers.Input((32,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    handle = grace.keras.attach(model, "topk:ratio=0.1")
    assert handle.transport.startswith("horovod" if over == "horovod" else "gloo"), handle.transport
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(rank)).numpy()
    callbacks = [grace.keras.AverageMetrics(handle), grace.keras.LogTraffic(handle)]
    history = model.fit(x, x[:, :1], batch_size=16, epochs=3, verbose=0, callbacks=callbacks).history
    assert history["loss"][-1] < history["loss"][0]
    assert handle.stats.steps == 12
    numbers = [torch.tensor(history["loss"]), *(v.value.detach().view(-1) for v in model.trainable_variables)]
    rows = hvd.allgather(torch.cat(numbers)[None], name="keras")
    assert bool((rows == rows[0]).all())
    handle.detach()


CASES = (training, resuming, refusals)


def run_over_the_stand_in(rank: int, world: int) -> Any:
    try:
        return [case(rank, world, "stand-in") for case in CASES][-1]
    finally:
        forget_the_stand_in()


def test_horovods_scripts_over_the_stand_in(pair: Pool) -> None:
    for told in pair.run(run_over_the_stand_in):
        assert "hvd.Average" in told[0]
        assert "legal: 1.0" in told[1]
        assert "compression=Module" in told[2]


@pytest.mark.parametrize("case", [*CASES, keras_training], ids=lambda case: str(case.__name__))
def test_horovods_scripts_over_horovod(case: Any, pools: Callable[[str, int], Any]) -> None:
    pools("horovod", 2).run(case, "horovod")
