"""Two machines of two workers each, in real processes: as simulated, through the doors, with memories that survive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import grace
from grace.errors import ConfigurationError, FingerprintMismatch, TransportError
from grace.run.simulator import Simulator
from tests.distributed.processes import Pool

SPECS = (
    "topk:ratio=0.1,machine=2",
    "qsgd:bits=4,machine=2",
    "powersgd:rank=2,machine=2",
    "threshold:v=0.001,machine=2",
)
SHAPES = {"a": (40, 32), "b": (33, 32)}


@pytest.fixture
def four(pools: Callable[[str, int], Any]) -> Pool:
    ready: Pool = pools("gloo", 4)
    return ready


class Net(nn.Module):
    """Its gradients are what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.zeros(shape)) for shape in SHAPES.values())

    def forward(self, given: dict[str, Tensor]) -> Tensor:
        return (self.a * given["a"]).sum() + (self.b * given["b"]).sum()


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(100 * step + rank)
    return {name: torch.randn(shape, generator=made) for name, shape in SHAPES.items()}


def train(rank: int, world: int, spec: str, door: str, check: bool) -> tuple[list[Tensor], dict[str, int], int]:
    net = Net()
    model: nn.Module = net
    if door == "ddp":
        model = DistributedDataParallel(net)
        handle = grace.attach(model, spec, check=check)
    else:
        optimizer = grace.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.0), spec, net.named_parameters(), check=check
        )
        handle = optimizer.handle
    means = []
    for step in range(3):
        net.zero_grad()
        model(gradients(rank, step)).backward()
        if door == "optimizer":
            optimizer.step()  # what nobody applies owes nothing
        means += [net.a.grad.clone(), net.b.grad.clone()]
    sent = {axis: traffic.sent for axis, traffic in handle.stats.by_axis.items()}
    planned = handle.plan().sent_bytes
    handle.detach()
    return means, sent, planned


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("door", "check"), [("ddp", False), ("ddp", True), ("optimizer", False)])
def test_real_processes_do_what_is_simulated(four: Pool, spec: str, door: str, check: bool) -> None:
    sim = Simulator(spec, 4)
    simulated = []
    for step in range(3):
        means = sim.step({name: [gradients(rank, step)[name] for rank in range(4)] for name in SHAPES})
        simulated += [means["a"], means["b"]]
    for rank, (means, sent, _) in enumerate(four.run(train, spec, door, check)):
        for own, expected in zip(means, simulated, strict=True):
            torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)
        assert sent["machines"] > 0, rank
        assert set(sent) == {"", "machine", "machines"}


def test_between_machines_a_worker_sends_its_part_only(four: Pool) -> None:
    whole = 3 * sum(grace.method("qsgd:bits=4").traffic(torch.empty(s), grace.Peer(0, 2)).sent for s in SHAPES.values())
    for _, sent, _ in four.run(train, "qsgd:bits=4,machine=2", "ddp", False):
        assert whole / 2 <= sent["machines"] <= 0.6 * whole


def goes_on(rank: int, world: int) -> tuple[Tensor, Tensor]:
    """Truth and what was applied, of a run that is stopped and goes on under another method."""
    net = Net()
    model = DistributedDataParallel(net)
    handle = grace.attach(model, "topk:ratio=0.05,machine=2")
    applied, truth = torch.zeros(SHAPES["a"]), torch.zeros(SHAPES["a"])
    for step in range(6):
        if step == 2:
            saved = handle.state_dict()
            handle.detach()
            handle = grace.attach(model, "topk:ratio=0.05,machine=2")
            handle.load_state_dict(saved)
        if step == 4:
            handle.switch("none")
        net.zero_grad()
        model(gradients(rank, step)).backward()
        applied += net.a.grad
        truth += sum(gradients(r, step)["a"] for r in range(world)) / world
    handle.detach()
    return applied, truth


def test_memories_survive_a_stop_and_a_switch(four: Pool) -> None:
    for applied, truth in four.run(goes_on):
        torch.testing.assert_close(applied, truth, atol=1e-4, rtol=0)


def refuses(rank: int, world: int) -> list[str]:
    messages = []
    model = DistributedDataParallel(Net())
    for spec in ("topk:machine=3", "topk:machine=2" if rank else "topk:machine=4"):
        with pytest.raises((ConfigurationError, FingerprintMismatch, TransportError)) as refused:
            grace.attach(model, spec)
        messages.append(str(refused.value))
    handle = grace.attach(model, "topk")
    with pytest.raises(ConfigurationError) as refused:
        handle.switch("topk:machine=2")
    messages.append(str(refused.value))
    model(gradients(rank, 0)).backward()  # it goes on as before
    handle.detach()
    return messages


def test_what_cannot_be_is_refused(four: Pool) -> None:
    for odd, differs, late in four.run(refuses):
        assert "4 workers are no whole number of machines with 3 each; legal: 1, 2, 4" in odd
        assert "machine=" in differs
        assert "where the method takes {'machines': 2, 'machine': 2}" in late
    four.retire()


def from_mesh(rank: int, world: int) -> None:
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("machines", "machine"))
    ends = []
    for spec, given in (("topk:ratio=0.1,machine=2", {}), ("topk:ratio=0.1", {"mesh": mesh})):
        model = DistributedDataParallel(Net())
        handle = grace.attach(model, spec, **given)
        for step in range(3):
            model(gradients(rank, step)).backward()
        ends.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        assert set(handle.stats.by_axis) == {"", "machine", "machines"}
        handle.detach()
    assert torch.equal(*ends)

    def says(text: str, spec: Any = "topk", **given: Any) -> None:
        with pytest.raises(ConfigurationError, match=text):
            grace.attach(DistributedDataParallel(Net()), spec, **given)

    says("mesh of one dimension; legal", mesh=init_device_mesh("cpu", (4,)))
    says("mesh=3; legal", mesh=3)
    says(r"ranks \[0, 2, 1, 3\], the model of \[0, 1, 2, 3\]", mesh=DeviceMesh("cpu", torch.tensor([[0, 2], [1, 3]])))
    says("mesh= and machine= both", "topk:machine=2", mesh=mesh)
    says("auto with mesh=", "auto", mesh=mesh)


def test_a_mesh_of_two_dimensions_says_which_ranks_are_of_a_machine(four: Pool) -> None:
    four.run(from_mesh)
