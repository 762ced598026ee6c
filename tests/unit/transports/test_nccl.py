"""Needs of NCCL that differ from gloo's, as far as a machine without a GPU can show it: stand-ins for the group record
calls.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import grace
from grace.collectives import AllGather, AllReduce, AllToAll, Broadcast, Permute, ReduceScatter
from grace.errors import ConfigurationError, EnvironmentWarning, TransportError
from grace.transports import torch_distributed
from grace.transports.refusing import DEVICES
from grace.transports.torch_distributed import TorchDistributed, abort, through_host


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A transport of one rank over gloo that takes itself for rank 1 of 3 over NCCL, whose tensors may be on the CPU."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    made = TorchDistributed()
    made.rank, made.world, made._backend = 1, 3, "nccl"
    monkeypatch.setitem(DEVICES, "nccl", ("cpu",))
    yield made
    dist.destroy_process_group()


def test_a_tensor_on_the_host_is_refused_before_anything_is_sent(transport: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEVICES, "nccl", ("cuda",))
    with pytest.raises(TransportError, match="the tensor is on cpu; legal: cuda; nothing was sent"):
        transport.run(AllReduce(torch.zeros(3)))


@pytest.mark.parametrize("dtype", [torch.int16, torch.complex64, torch.float8_e4m3fn])
def test_what_is_in_no_table_is_refused(transport: Any, dtype: torch.dtype):
    for op in (AllReduce(torch.zeros(3, dtype=dtype)), AllGather(torch.zeros(3, dtype=dtype))):
        with pytest.raises(TransportError, match="legal dtypes: float16, bfloat16, float32, float64"):
            transport.run(op)


def test_a_permutation_is_one_batch(transport: Any, monkeypatch: pytest.MonkeyPatch):
    batches: list[list[tuple[str, int]]] = []

    def batch(messages: list[Any]) -> list[Any]:
        batches.append([(message.op.__name__, message.peer) for message in messages])
        return []

    monkeypatch.setattr(dist, "get_global_rank", lambda group, rank: rank)
    monkeypatch.setattr(dist, "batch_isend_irecv", batch)
    monkeypatch.setattr(dist, "P2POp", lambda op, tensor, peer, group: type("Message", (), {"op": op, "peer": peer}))
    for name in ("isend", "irecv"):
        monkeypatch.setattr(dist, name, type(name, (), {}))
    transport.run(Permute(torch.zeros(2), ((0, 1), (1, 2), (2, 0))))
    assert batches == [[("irecv", 0), ("isend", 2)]]
    assert torch.equal(transport.run(Permute(torch.ones(2), ((1, 1),))), torch.ones(2))
    assert len(batches) == 1, "nothing to send"


def test_booleans_travel_as_bytes(transport: Any, monkeypatch: pytest.MonkeyPatch):
    seen: list[torch.dtype] = []

    def broadcast(x: Tensor, src: int, group: Any) -> None:
        seen.append(x.dtype)

    monkeypatch.setattr(dist, "broadcast", broadcast)
    monkeypatch.setattr(dist, "get_global_rank", lambda group, rank: rank)
    x = torch.tensor([True, False])
    assert torch.equal(transport.run(Broadcast(x, 1)), x)
    assert seen == [torch.uint8]


@pytest.mark.parametrize("op", [
    AllReduce(torch.ones(3)), AllReduce(torch.ones(3), "mean", donate=True), AllGather(torch.ones(3)),
    AllGather(torch.ones(3), into=torch.empty(2, 3)), AllToAll(torch.ones(2, 3)), Broadcast(torch.ones(3), 0),
    ReduceScatter(torch.ones(2, 3), "sum"),
])  # fmt: skip
def test_through_the_host_nothing_of_the_device_is_touched(op: Any):
    asked: list[Any] = []

    def run(staged: Any) -> Tensor:
        asked.append(staged)
        assert getattr(staged, "into", None) is None, "the answer is made on the host"
        return torch.full((2, 3) if isinstance(op, AllGather) else (3,), 7.0)

    answer = through_host(op, run)
    assert type(asked[0]) is type(op)
    assert getattr(asked[0], "op", None) == getattr(op, "op", None)
    assert (answer == 7).all()
    if getattr(op, "into", None) is not None:
        assert answer.data_ptr() == op.into.data_ptr()


def test_a_rank_that_leaves_after_an_error_aborts(transport: Any, monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []
    monkeypatch.setattr(torch_distributed, "abort", lambda group: calls.append("abort"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda group: calls.append("destroy"))
    transport.close(RuntimeError("a worker has died"))
    assert calls == ["abort", "destroy"]
    monkeypatch.undo()


def test_a_group_that_cannot_be_aborted_is_left_alone():
    class Group:
        def abort(self) -> None:
            raise RuntimeError("no")

    abort(Group())


@pytest.mark.parametrize(
    ("devices", "workers", "problem"),
    [
        (0, "1", "needs a CUDA device"),
        (1, "2", "refuses two workers on one device, and this machine has 2 workers and 1"),
    ],
)
def test_nccl_needs_a_device_for_each_worker(devices: int, workers: str, problem: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", workers)
    with pytest.raises(ConfigurationError, match=problem):
        grace.init_process_group("nccl")


def test_the_place_on_the_machine_is_the_device(monkeypatch: pytest.MonkeyPatch):
    from grace.transports.meeting import _take_device

    chosen: list[int] = []
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    _take_device()
    monkeypatch.delenv("LOCAL_RANK")
    _take_device()
    assert chosen == [3]


@pytest.mark.parametrize(
    ("backend", "queues", "warns"), [("nccl", "1", True), ("nccl", "8", False), ("gloo", "1", False)]
)
def test_a_second_communicator_on_one_queue_is_warned_of(
    backend: str, queues: str, warns: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues)
    monkeypatch.setattr(dist, "get_backend", lambda group: backend)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "new_group", lambda *args, **kwargs: "made")
    if warns:
        with pytest.warns(EnvironmentWarning, match=r"CUDA_DEVICE_MAX_CONNECTIONS=1 gives.*; unset it"):
            assert torch_distributed._make_group(None, [0], "model") == "made"
    else:
        assert torch_distributed._make_group(None, [0], "model") == "made"


class Group:
    """Stands in for torch's ProcessGroupNCCL."""

    class Options:
        def __init__(self, is_high_priority_stream: bool = False):
            self.is_high_priority_stream, self._timeout = is_high_priority_stream, timedelta(minutes=10)


@pytest.mark.parametrize("seconds", [None, 7])
def test_streams_of_nccl_have_a_high_priority(seconds: int | None, monkeypatch: pytest.MonkeyPatch):
    asked: list[dict[str, Any]] = []
    timeout = None if seconds is None else timedelta(seconds=seconds)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "new_group", lambda *args, **kwargs: asked.append(kwargs))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setattr(torch_distributed, "_get_timeout", lambda group: timeout)
    for backend in ("nccl", "gloo"):
        monkeypatch.setattr(dist, "get_backend", lambda group, backend=backend: backend)
        torch_distributed._make_group(None, [0], "model")
    options = asked[0]["pg_options"]
    assert options.is_high_priority_stream
    assert options._timeout == (timeout or timedelta(minutes=10)), "torch warns of another one"
    assert "pg_options" not in asked[1]


@pytest.mark.parametrize(("world", "splits"), [(2, True), (3, False)])
def test_a_group_of_some_ranks_splits_no_communicator_of_all(world: int, splits: bool, monkeypatch: pytest.MonkeyPatch):
    """If the default group is bound to a device, torch splits NCCL's communicator, which all its ranks must enter: the others
    make no group at that moment, and this one would wait for ever.
    """
    module: Any = dist.distributed_c10d
    assert "_get_split_source" in module._new_process_group_helper.__code__.co_names, "what torch asks then"
    sources: list[Any] = []
    monkeypatch.setattr(module, "_get_split_source", lambda group: "the communicator of all")
    monkeypatch.setattr(
        dist, "new_group", lambda *_args, **_kwargs: sources.append(module._get_split_source("default"))
    )
    monkeypatch.setattr(dist, "get_world_size", lambda: world)
    monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")
    torch_distributed._make_group(None, [0, 1], "model")
    assert sources == ["the communicator of all" if splits else None]
    assert module._get_split_source("default") == "the communicator of all"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_it", [True, False])
def test_a_mean_is_multiplied_by_nccl_where_it_rounds_alike(
    has_it: bool, dtype: torch.dtype, transport: Any, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise the factor goes before the sum here: three ranks that give the same."""
    calls: list[Any] = []

    def reduce(x: Tensor, op: Any) -> None:
        calls.append(op)
        x.mul_(3 * (op if isinstance(op, float) else 1))

    monkeypatch.setattr(torch_distributed, "_multiplied_sum", (lambda factor: factor) if has_it else None)
    monkeypatch.setattr(dist, "all_reduce", lambda x, op, group: reduce(x, op))
    monkeypatch.setattr(
        torch_distributed, "_reduce_scatter", lambda out, rows, op, group: reduce(out.copy_(rows[: len(out)]), op)
    )
    x = torch.arange(6, dtype=dtype).view(3, 2)
    torch.testing.assert_close(transport.run(AllReduce(x, "mean")), x)
    torch.testing.assert_close(transport.run(ReduceScatter(x, "mean")), x[0])
    torch.testing.assert_close(transport.run(AllReduce(x, "sum")), 3 * x)
    nccls = has_it and dtype in (torch.float32, torch.float64)
    assert calls == [1 / 3 if nccls else dist.ReduceOp.SUM] * 2 + [dist.ReduceOp.SUM]


def test_a_worker_alone_multiplies_nothing(transport: Any):
    transport.world, transport._backend = 1, "gloo"
    with Operations() as operations:
        x = torch.ones(3)
        assert transport.run(AllReduce(x, "mean", donate=True)).data_ptr() == x.data_ptr()
    assert not any("mul" in name for name in operations.names)


class Operations(TorchDispatchMode):  # type: ignore[misc]
    """Notes the names of operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))
