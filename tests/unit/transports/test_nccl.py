"""Needs of NCCL that differ from gloo's, as far as a machine without a GPU can show it: stand-ins for the group record
calls.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

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
