"""Two handles, two captures, and replays on another stream: facts about streams and graphs that only a GPU can show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.auto.device import find_facts
from grace.compute.launching import count_compiled
from grace.errors import GraceError
from grace.predict.probe import DeviceMeter
from grace.predict.rates import Rate, Rater
from grace.run.session import Session
from grace.run.streams import CudaStreams
from grace.transports.alone import Alone
from tests.gpu.here import DEVICE, needs_gpu

pytestmark = needs_gpu
STEPS = 8


@pytest.fixture
def one_worker() -> Iterator[None]:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Trained:
    """A model that is trained with Grace; its numbers depend on nothing but the seed."""

    def __init__(self, seed: int, spec: str):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(
            DEVICE
        )
        self.ddp = DistributedDataParallel(model, device_ids=[0])
        self.handle = grace.attach(self.ddp, spec)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.1)
        self.x = torch.randn(128, 64, generator=torch.Generator().manual_seed(seed)).to(DEVICE)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.ddp(self.x).square().mean().backward()

    def end(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.ddp.parameters()]


def alone(seed: int, spec: str) -> list[Tensor]:
    model = Trained(seed, spec)
    for _ in range(STEPS):
        model.backward()
        model.optimizer.step()
    ends = model.end()
    model.handle.detach()
    return ends


@pytest.mark.parametrize("specs", [("topk:ratio=0.1", "qsgd:bits=4"), ("efsignsgd", "efsignsgd")])
def test_two_handles_beside_each_other_train_as_alone(specs: tuple[str, str], one_worker: None) -> None:
    """Each with its own thread, stream and communicator; both backward passes are under way before any optimizer steps."""
    expected = [alone(seed, spec) for seed, spec in enumerate(specs)]
    models = [Trained(seed, spec) for seed, spec in enumerate(specs)]
    for _ in range(STEPS):
        for model in models:
            model.backward()
        for model in models:
            model.optimizer.step()
    for model, ends in zip(models, expected, strict=True):
        for a, b in zip(model.end(), ends, strict=True):
            assert torch.equal(a, b)
        model.handle.detach()


class Captured:
    """A session whose step is captured on a stream of its own."""

    def __init__(self, spec: str, x: Tensor):
        self.session = Session({"w": x}, grace.Policy([("*", spec)]), Alone())
        self.given, self.mean = x.clone(), torch.empty_like(x)
        self.side = torch.cuda.Stream()

    def step(self) -> None:
        self.session.exchange({"w": self.given.clone()}, into={"w": self.mean})
        self.session.advance()

    def eager(self, x: Tensor) -> Tensor:
        self.given.copy_(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(self.side):
            self.step()
        torch.cuda.synchronize()
        return self.mean.clone()

    def capture(self) -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.side):
            self.step()
        return graph

    def replay(self, graph: Any, x: Tensor, stream: Any) -> Tensor:
        self.given.copy_(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            graph.replay()
            self.session.replayed()
            mean = self.mean.clone()
        torch.cuda.synchronize()
        return mean


def numbers() -> list[Tensor]:
    return [torch.randn(40, 30, generator=torch.Generator().manual_seed(t)).to(DEVICE) for t in range(9)]


def plain(spec: str, xs: list[Tensor]) -> list[Tensor]:
    session, out = Session({"w": xs[0]}, grace.Policy([("*", spec)]), Alone()), []
    for x in xs:
        out.append(session.exchange({"w": x.clone()})["w"].clone())
        session.advance()
    return out


@pytest.mark.parametrize("spec", ["topk:ratio=0.2", "qsgd:bits=4,memory=residual", "efsignsgd", "signsgd:memory=none"])
def test_a_second_capture_after_a_step_is_right_and_the_first_is_stale(spec: str) -> None:
    xs, side = numbers(), torch.cuda.Stream()
    expected, captured = plain(spec, xs), Captured(spec, xs[0])
    means = [captured.eager(xs[0])]
    graphs = []
    for first in (1, 5):
        graphs.append(captured.capture())
        means += [captured.replay(graphs[-1], x, side) for x in xs[first : first + 3]]
        if first == 1:
            means.append(captured.eager(xs[4]))
    for step, (mean, want) in enumerate(zip(means, expected, strict=False)):
        assert torch.equal(mean, want), f"step {step}"
    captured.eager(xs[0])
    if "memory=none" not in spec:
        with pytest.raises(GraceError, match="capture again"):
            captured.replay(graphs[-1], xs[0], side)


def test_a_capture_straight_after_another_is_refused_in_words() -> None:
    """Tables that a step needs are copied from the host, which a capture cannot."""
    captured = Captured("topk:ratio=0.2", numbers()[0])
    captured.eager(numbers()[0])
    captured.capture()
    with pytest.raises(grace.GraceError, match="step"):
        captured.capture()


def test_auto_has_the_time_of_the_device_and_the_host_does_not_wait_for_it() -> None:
    streams = CudaStreams(DEVICE)
    first = streams.mark(streams.current())
    torch.cuda._sleep(200_000_000)  # a tenth of a second, about
    last = streams.mark(streams.current())
    assert streams.between(first, last) is None
    streams.wait_here(last)
    took = streams.between(first, last)
    assert took is not None
    assert 20_000_000 < took < 2_000_000_000
    streams.hold(20_000_000)
    assert streams.between(last, streams.mark(streams.current())) is None
    assert find_facts(DEVICE).free > 0
    assert count_compiled() == count_compiled()


@pytest.mark.parametrize("method", ["none", "bf16", "qsgd:bits=4", "topk"])
def test_codecs_are_measured_on_the_device_and_the_host_beside_it(method: str) -> None:
    rater = Rater(meter=DeviceMeter(CudaStreams(DEVICE), DEVICE))
    small, large = (rater.run(method, 4, numbers) for numbers in rater.numbers)
    bucket = rater.run(method, 4, rater.numbers[0], tensors=8)
    assert small.host > 0
    assert bucket.tensors == 8
    assert all(nanoseconds >= 0 for nanoseconds in (*small.codec, *large.codec))
    assert method == "none" or large.seconds > small.seconds > 0
    rate = Rate.through(4, [small, large], bucket=bucket)
    assert rate.host is not None
    assert large.seconds < 0.1, "8 million numbers"
