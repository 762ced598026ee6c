"""Devices of workers, as far as a machine without a GPU can show it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from grace.errors import ConfigurationError
from grace_bench import devices
from grace_bench.devices import ON_CPU, Placement, move, place
from grace_bench.runs import training
from grace_bench.runs.config import RunConfig
from grace_bench.runs.plan import check
from grace_bench.runs.record import find_environment

ON_CUDA = RunConfig("digits", "topk", workers=2, steps=1, device="cuda")


def test_without_a_gpu_no_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match=r"device='cuda', and torch .* finds 0 CUDA devices here; legal: cpu"):
        check([ON_CUDA])
    check([dataclasses.replace(ON_CUDA, device="cpu")])


@pytest.mark.parametrize("wrong", [{"device": "cuda:1"}, {"device": "tpu"}, {"device": "cuda", "toolkit": "jax"}])
def test_what_no_run_can_have(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="device"):
        RunConfig("digits", "topk", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rank", "world", "shaped", "index", "backend"),
    [(1, 2, False, 1, "nccl"), (3, 4, False, 1, "gloo"), (1, 2, True, 1, "gloo"), (0, 1, False, 0, "nccl")],
)
def test_workers_share_gpus_over_gloo_or_have_one_each_over_nccl(
    rank: int, world: int, shaped: bool, index: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "count_devices", lambda: 2)
    assert place("cuda", rank, world, shaped) == Placement(torch.device("cuda", index), backend)
    assert place("cpu", rank, world, shaped) == ON_CPU


def test_a_worker_finds_its_number_in_what_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count_devices", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    config = dataclasses.replace(ON_CUDA, workers=8)
    assert training.place_worker(config, 5) == Placement(torch.device("cuda", 1), "nccl")
    assert training.place_worker(dataclasses.replace(config, device="cpu"), 5) == ON_CPU


def test_batches_go_to_the_device_whole() -> None:
    batch = (torch.zeros(2), {"y": torch.ones(3), "name": "a"}, 7)
    there = move(batch, torch.device("meta"))
    assert (there[0].device.type, there[1]["y"].device.type, there[1]["name"], there[2]) == ("meta", "meta", "a", 7)
    assert move(batch, torch.device("cpu")) is batch


def test_documents_say_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    there = find_environment(1, Placement(torch.device("cuda", 1), "nccl"))
    assert (there.device, there.backend) == ("GPU 1", "nccl")
    assert (find_environment(1).device, find_environment(1).backend) == ("cpu", "gloo")
