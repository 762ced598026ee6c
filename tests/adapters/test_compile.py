"""torch.compile: a compiled step of a DistributedDataParallel model breaks its graph no more often with Grace than without,
and Grace's functions are operators in compiled functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.utils import counters

import grace
from grace.errors import PayloadError
from grace.random import Stream


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def one_worker() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(method: str | None, compiled: bool, spoil: bool = False) -> tuple[list[Tensor], dict[str, int]]:
    """Three steps; the parameters, and which breaks of the graph there were."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 40), torch.nn.ReLU(), torch.nn.Linear(40, 10))
    if spoil:
        net[1].register_forward_hook(lambda module, given, out: torch._dynamo.graph_break())
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    handle = None if method is None else grace.attach(ddp, method)
    torch._dynamo.reset()
    counters.clear()
    forward: Any = torch.compile(ddp, backend="aot_eager") if compiled else ddp
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    x, y = torch.randn(16, 64), torch.arange(16) % 10
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(forward(x), y).backward()
        optimizer.step()
    if handle is not None:
        assert handle.stats.steps == 3
        handle.detach()
    return [p.detach().clone() for p in ddp.parameters()], dict(counters["graph_break"])


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_breaks_no_more_often_with_grace(one_worker: None):
    _, of_ddp = train(None, True)
    for method in ("qsgd:bits=4", "topk:ratio=0.1"):
        parameters, breaks = train(method, True)
        assert breaks == of_ddp, f"{method} breaks the graph"
        plain, _ = train(method, False)
        assert all(torch.equal(a, b) for a, b in zip(parameters, plain, strict=True))
    assert train("qsgd:bits=4", True, spoil=True)[1] != of_ddp, "a break would be seen"


def there_and_back(x: Tensor, rng: Stream | None = None) -> Tensor:
    codes, scale = grace.quantize(x * 2, 4, rng)
    again = grace.unpack(grace.pack(codes, 4), 4, codes.numel()).view(x.shape)
    numbers = grace.dequantize(again, scale, 4)
    values, index = grace.sparsify(numbers, ratio=0.25)
    more, places = grace.sparsify(numbers, threshold=0.5)
    return grace.desparsify(values, index, x.shape) + 3 * grace.desparsify(more, places, x.shape)


@pytest.mark.parametrize("dynamic", [False, True])
def test_functions_are_operators_in_a_compiled_function(dynamic: bool):
    compiled = torch.compile(there_and_back, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for shape in ((4, 10), (3, 7)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(5))
        assert torch.equal(compiled(x), there_and_back(x))


def test_a_compiled_function_draws_anew_in_each_step():
    compiled = torch.compile(there_and_back, backend="aot_eager", fullgraph=True)
    x, seen = torch.randn(4, 10), set()
    for step in range(12):
        rng = Stream(1, "mine", "w", 0, step)
        result = compiled(x, rng)
        assert torch.equal(result, there_and_back(x, rng))
        seen.add(result.sum().item())
    assert len(seen) > 1


def test_operators_are_what_they_say():
    codes, scale = grace.quantize(torch.randn(5, 3), 4)
    ops: Any = torch.ops.grace
    for op, given in (
        (ops.quantize, (torch.randn(5, 3), 4, "m", "t", 1, 0, 2, 0)),
        (ops.dequantize, (codes, scale, 4)),
        (ops.sparsify, (torch.randn(9), 0.3, None)),
        (ops.sparsify, (torch.randn(9), None, 0.5)),
        (ops.desparsify, (torch.randn(2), torch.tensor([1, 3]), [2, 2])),
        (ops.pack, (codes, 4)),
        (ops.unpack, (grace.pack(codes, 4), 4, 15)),
    ):
        torch.library.opcheck(op, given, test_utils=("test_schema", "test_faketensor"))


def test_errors_come_through():
    compiled = torch.compile(lambda x: grace.unpack(x, 4, 9), backend="aot_eager", fullgraph=True)
    with pytest.raises(PayloadError):
        compiled(torch.zeros(2, dtype=torch.uint8))
