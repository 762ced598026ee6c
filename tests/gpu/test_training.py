"""Training on a GPU, one worker over NCCL: compiled, scaled, sharded, captured by nobody, and never waiting for the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import grace
from grace.compute import backends
from grace.errors import InputError
from grace.run.session import Session
from grace.transports.alone import Alone
from tests.gpu.here import DEVICE, few, needs_gpu, unsynchronized

pytestmark = needs_gpu
METHODS = (
    "none",
    "bf16",
    "efsignsgd",
    "qsgd:bits=4",
    "topk:ratio=0.1",
    "powersgd:rank=2",
    "randomk",
    "fp8",
    "natural",
    "eden",
)


@pytest.fixture(autouse=True)
def one_worker() -> Iterator[None]:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(DEVICE)


def batch() -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(1)
    return torch.randn(256, 64, generator=made).to(DEVICE), torch.randint(10, (256,), generator=made).to(DEVICE)


def train(forward: Callable[[Tensor], Tensor], model: nn.Module, steps: int = 30) -> list[float]:
    optimizer, losses, (x, y) = torch.optim.SGD(model.parameters(), lr=0.5), [], batch()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def test_kernels_of_triton_serve_without_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    monkeypatch.setattr(backends, "current", backends.UNDECIDED)
    assert backends.runs_triton(DEVICE)
    assert not backends.runs_triton(torch.device("cpu"))


@pytest.mark.parametrize("spec", few(METHODS))
def test_a_step_does_not_wait(spec: str) -> None:
    """Neither the backward pass nor the optimizer: all of a step is submitted while the device is still asleep."""
    model = make()
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    handle = grace.attach(ddp, spec)
    optimizer, (x, y) = torch.optim.SGD(ddp.parameters(), lr=0.1), batch()
    for step in range(10):
        with unsynchronized() if step > 6 else nullcontext():
            if step > 6:
                torch.cuda._sleep(200_000_000)  # 0.1 s
            optimizer.zero_grad(set_to_none=False)
            nn.functional.cross_entropy(ddp(x), y).backward()
            optimizer.step()
            if step == 9:
                assert not torch.cuda.current_stream().query(), "the host has waited"
    assert handle.stats.steps == 10
    handle.detach()


@pytest.mark.filterwarnings("default")  # of what torch.compile itself warns
def test_a_compiled_model_trains_as_it_does_otherwise() -> None:
    losses = []
    for compiled in (False, True):
        ddp = nn.parallel.DistributedDataParallel(make(), device_ids=[0])
        handle = grace.attach(ddp, "qsgd:bits=8")
        losses.append(train(torch.compile(ddp) if compiled else ddp, ddp))
        handle.detach()
    assert losses[1][-1] < 0.5 * losses[1][0]
    assert losses[1][:10] == pytest.approx(losses[0][:10], rel=2e-2)  # then what is rounded otherwise has grown


@pytest.mark.parametrize("spec", ["efsignsgd", "topk:ratio=0.1"])
def test_scaled_losses_and_narrow_gradients(spec: str) -> None:
    """A scale that is far too large at first: steps are left out until it fits."""
    ddp = nn.parallel.DistributedDataParallel(make(), device_ids=[0])
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40, growth_interval=100)
    optimizer, losses, (x, y) = torch.optim.SGD(ddp.parameters(), lr=0.5), [], batch()
    handle = grace.attach(ddp, spec, scaler=scaler)
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.cross_entropy(ddp(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    assert scaler.get_scale() < 2.0**40
    assert losses[-1] < 0.7 * losses[0]
    handle.detach()


def test_a_sharded_model_trains() -> None:
    from torch.distributed.fsdp import fully_shard

    model = make()
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cuda", (1,)))
    handle = grace.attach(model, "qsgd:bits=8")
    losses = train(model, model)
    assert losses[-1] < 0.7 * losses[0]
    handle.detach()


def test_a_model_on_two_devices_is_refused() -> None:
    """DistributedDataParallel itself refuses this one, and takes two GPUs: here what attaches looks at tensors."""
    model = nn.Sequential(nn.Linear(64, 64).to(DEVICE), nn.Linear(64, 64))
    with pytest.raises(InputError, match=r"'0.weight' is on cuda:0 and '1.weight' on cpu"):
        Session(dict(model.named_parameters()), "topk", Alone())


@pytest.mark.parametrize("spec", few(("none", "qsgd:bits=4", "efsignsgd", "topk:ratio=0.1", "randomk")))
def test_a_captured_step_of_training_is_a_step(spec: str) -> None:
    """As the page of GPUs shows it: backward pass, exchange and optimizer in one graph."""
    (x, y), ends = batch(), []
    for captures in (False, True):
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            ddp = nn.parallel.DistributedDataParallel(make(), device_ids=[0])
            handle = grace.attach(ddp, spec)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

            def step(ddp: nn.Module = ddp, optimizer: torch.optim.Optimizer = optimizer) -> None:
                optimizer.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(ddp(x), y).backward()
                optimizer.step()

            for _ in range(12):
                step()
            torch.cuda.synchronize()
            if captures:
                with torch.cuda.graph(graph, stream=side):
                    step()
            for _ in range(5):
                if captures:
                    graph.replay()
                    handle.replayed()
                else:
                    step()
        torch.cuda.synchronize()
        assert handle.stats.steps == 17
        ends.append([p.detach().clone() for p in ddp.parameters()])
        handle.detach()
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)
