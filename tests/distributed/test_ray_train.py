"""Ray Train starts all workers again when one has died. Minutes long, so it runs where GRACE_TEST_RAY is 1."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, tempfile

import ray, ray.train, ray.train.torch, torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def make(rank):
    import grace

    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, grace.attach(model, "topk:ratio=0.01", optimizer=optimizer)


def train(model, optimizer, rank, epoch):
    numbers = torch.Generator().manual_seed(1000 * epoch + rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 64, generator=numbers)).square().mean().backward()
        optimizer.step()


def loop(config):
    rank, first = ray.train.get_context().get_world_rank(), 0
    undisturbed, plain, handle = make(rank)
    for epoch in range(4):
        train(undisturbed, plain, rank, epoch)
    handle.detach()
    model, optimizer, handle = make(rank)
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(f"{folder}/worker-{rank}.pt", weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        handle.load_state_dict(saved["grace"])
        first = saved["epoch"]
    for epoch in range(first, 4):
        train(model, optimizer, rank, epoch)
        if epoch == 2 and rank == 1 and not first:
            os._exit(1)
        same = all(torch.equal(*both) for both in zip(model.parameters(), undisturbed.parameters()))
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "grace": handle.state_dict()}
            torch.save({**state, "epoch": epoch + 1}, f"{folder}/worker-{rank}.pt")
            metrics = {"first": first, "epoch": epoch + 1, "same": same}
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    run = RunConfig(storage_path=os.path.abspath("results"), failure_config=FailureConfig(max_failures=1))
    found = TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2), run_config=run).fit().metrics
    print(found["first"] > 0, found["epoch"], found["same"])
    ray.shutdown()
"""


@pytest.mark.skipif(os.environ.get("GRACE_TEST_RAY") != "1", reason="set GRACE_TEST_RAY=1: it takes minutes")
@pytest.mark.timeout(600)
def test_after_a_workers_death_memories_go_on_to_the_same_bits(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("pip install 'ray[train]'")
    script = tmp_path / "loop.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env={**os.environ, "RAY_TRAIN_V2_ENABLED": "1"},
        capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.stdout.split()[-3:] == ["True", "4", "True"], done.stdout + done.stderr
