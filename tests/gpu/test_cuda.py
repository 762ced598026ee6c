"""Facts that only a GPU can show: methods on CUDA tensors do what they do on the CPU, and nothing waits for the stream."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import grace
from benchmarks.overhead import buckets
from grace.compute import backends
from grace.contract.method import Exchanged, Method
from grace.errors import ConfigurationError
from grace.flags.refusals import Refusals
from grace.registry.policy import Policy
from grace.run import simulate
from grace.run.lane import lane_for
from grace.run.session import Session
from grace.run.worker import Worker
from grace.transports.alone import Alone
from grace.verify import laws
from tests.gpu.here import DEVICE, few, kernels, needs_gpu, unsynchronized
from tests.laws import test_many
from tests.laws.bucket_runs import gradients, in_dtype
from tests.laws.cases import CASES
from tests.laws.launches import LAUNCHES
from tests.laws.test_no_sync import LARGE, QUIET, SPOILED, STEPS

__all__ = ["kernels"]

pytestmark = needs_gpu
# Of whose buckets the host is asked nothing, once the first step has been made.
SILENT = [
    spec for spec, (_, asked) in LAUNCHES.items() if not asked and not spec.startswith(("acpsgd", "atomosvd"))
]  # which may ask, of larger matrices; and whose decomposition waits there


def go(method: Method[Any], steps: list[list[Tensor]], device: str) -> list[list[Exchanged[Any]]]:
    """The results of all steps and ranks."""
    there = [[x.to(device) for x in xs] for xs in steps]
    states, out = [method.init(x) for x in there[0]], []
    for step, xs in enumerate(there):
        outs = laws.run(
            method, xs, states, step=step, runner=lambda runs: simulate([Refusals().watch(run) for run in runs])
        )
        states = [out.state for out in outs]
        out.append([Exchanged(out.mean.clone(), None, None, out.finite) for out in outs])
    return out


@pytest.mark.parametrize("spec", few(CASES))
def test_means_are_those_of_the_cpu(spec: str, kernels: str) -> None:
    """To rounding: sums have another order. Random numbers are the same, so that choices are."""
    for step, (here, there) in enumerate(
        zip(go(CASES[spec], STEPS, "cpu"), go(CASES[spec], STEPS, "cuda"), strict=True)
    ):
        for out in there[1:]:
            assert laws.same_bits(out.mean, there[0].mean), f"step {step}: ranks differ"
        torch.testing.assert_close(there[0].mean.cpu(), here[0].mean, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("steps", [SPOILED, *LARGE.values()], ids=["91", *map(str, LARGE)])
@pytest.mark.parametrize("spec", few(QUIET))
def test_nothing_waits_for_the_stream(spec: str, steps: list[list[Tensor]], kernels: str) -> None:
    """And the host hears later of the same steps as on the CPU that they were not finite; of sums without a check of none."""
    method = QUIET[spec]
    there = [[x.cuda() for x in xs] for xs in steps]
    states = [method.init(x) for x in there[0]]
    laws.run(method, there[0], states)  # what is made once and kept, such as tables, may be copied from the host
    states, flags = [method.init(x) for x in there[0]], []
    with unsynchronized():
        for step, xs in enumerate(there):
            outs = laws.run(
                method, xs, states, step=step, runner=lambda runs: simulate([Refusals().watch(run) for run in runs])
            )
            states = [out.state for out in outs]
            flags.append(outs[0].finite)
    assert [bool(flag) for flag in flags] == [bool(outs[0].finite) for outs in go(method, steps, "cpu")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", few(SILENT))
def test_a_bucket_waits_for_nothing(spec: str, dtype: torch.dtype) -> None:
    with backends.using("triton"):
        worker = Worker(Policy([("*", spec)]), 0, 1)
        worker.lr = 0.1
        given = in_dtype(gradients(0, 0, test_many.SHAPES), dtype, DEVICE)
        for step in range(7):
            worker._read_pending()
            with unsynchronized() if step > 4 else nullcontext():
                test_many._run(worker, given)
            worker.workspace.reset()
            worker.advance()


@pytest.fixture
def one_worker() -> Iterator[None]:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_lane_submits_to_a_stream_of_its_own() -> None:
    device = torch.device("cuda", 0)
    lane, x, streams = lane_for(device), torch.zeros(1 << 20, device=device), []
    for _ in range(50):
        torch.cuda._sleep(100_000)
        x.add_(1.0)

        def job() -> None:
            streams.append(torch.cuda.current_stream())
            x.mul_(2.0)

        lane.submit(job)
        lane.drain()
        x.sub_(1.0)
    assert len(set(streams)) == 1
    assert streams[0] != torch.cuda.current_stream()
    expected = 0.0
    for _ in range(50):
        expected = float(torch.tensor((expected + 1) * 2).sub(1.0))
    assert torch.equal(x.cpu(), torch.full((1 << 20,), expected))
    lane.close()


def test_the_host_does_not_wait_for_a_lane() -> None:
    device = torch.device("cuda", 0)
    lane = lane_for(device)
    torch.cuda._sleep(2_000_000_000)
    lane.submit(lambda: torch.cuda._sleep(1))
    lane.drain()
    assert not torch.cuda.current_stream().query(), "the device is still asleep"
    torch.cuda.synchronize()
    lane.close()


@pytest.mark.parametrize("spec", ["topk:ratio=0.2", "efsignsgd", "powersgd:rank=2,min_rate=0.1", "bf16"])
def test_a_captured_step_is_a_step(spec: str, kernels: str) -> None:
    xs = [torch.randn(40, 30, generator=torch.Generator().manual_seed(t)).cuda() for t in range(6)]
    policy = grace.Policy([("*", spec)])
    plain, session = (Session({"w": xs[0]}, policy, Alone()) for _ in range(2))
    expected = []
    for x in xs:
        expected.append(plain.exchange({"w": x.clone()})["w"].clone())
        plain.advance()
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    given, mean = xs[0].clone(), torch.empty_like(xs[0])
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        session.exchange({"w": given.clone()}, into={"w": mean})
        session.advance()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        session.exchange({"w": given.clone()}, into={"w": mean})
        session.advance()
    for x, other in zip(xs[1:], expected[1:], strict=True):
        given.copy_(x)
        graph.replay()
        session.replayed()
        assert torch.equal(mean, other)
    assert session.worker.step == len(xs)


def test_a_capture_of_what_depends_on_the_data_is_refused() -> None:
    session = Session({"w": torch.empty(50, device="cuda")}, grace.Policy([("*", "threshold:v=0.5")]), Alone())
    x = torch.randn(50, device="cuda")
    session.exchange({"w": x.clone()})
    session.advance()
    with pytest.raises(ConfigurationError, match="depends on the data"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        session.exchange({"w": x})


@pytest.mark.parametrize("spec", ["none", "bf16", "topk:ratio=0.1", "qsgd:bits=4", "powersgd:rank=2", "randomk"])
def test_a_model_trains_over_nccl(spec: str, one_worker: None, kernels: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).cuda()
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    handle = grace.attach(ddp, spec)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    x, y, losses = torch.randn(256, 64, device="cuda"), torch.randint(10, (256,), device="cuda"), []
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert handle.stats.steps == 40
    handle.detach()


def test_buckets_are_measured_with_their_launches() -> None:
    rows = list(buckets.measure(["qsgd:bits=4"], 4, DEVICE, [(300, 4), (7,)]))
    values = {row["operation"].rpartition(": ")[2]: row["value"] for row in rows}
    assert values["the host submits it"] > 0
    assert LAUNCHES["qsgd"][0] <= values["launches of kernels, Triton's and torch's"] < 40


@pytest.mark.parametrize("workers", [1, 2])
def test_the_bench_trains_there(workers: int, tmp_path: Path) -> None:
    """Two workers share a GPU over gloo, or have one each over NCCL."""
    command = ["--task", "digits", "--methods", "efsignsgd", "--baselines", "", "--steps", "20", "--device", "cuda"]
    command += ["--workers", str(workers), "--out", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "grace.cli", "bench", "train", *command], check=True, timeout=300)
    (file,) = (tmp_path / "runs").glob("*.json")
    environment = json.loads(file.read_text())["environment"]
    assert environment["device"] == torch.cuda.get_device_name(0)
    assert environment["backend"] == ("nccl" if torch.cuda.device_count() >= workers else "gloo")
