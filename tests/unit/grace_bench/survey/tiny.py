"""A task that trains in a moment, plans of it, and the command."""

import msgspec
import torch
from torch import nn
from typer.testing import CliRunner

from grace.cli.app import app
from grace_bench.tasks import Task, find_task

HERE = "tests.unit.grace_bench.survey.tiny"


PLAN = """
[[runs]]
tasks = ["{here}:Tiny"]
methods = ["none", "topk", "qsgd:bits=4"]
seeds = [0, 1]
workers = 2
steps = 3
evaluations = 1
"""


class Tiny(Task):
    """A layer with dropout and a running mean, whose data are random numbers."""

    metric, better, batch = "loss", "lower", 4
    rate = 0.1

    def load(self, root):
        self.x = torch.randn(64, 80, generator=torch.Generator().manual_seed(1))

    def data_info(self):
        return {"name": "tiny", "procedural": True, "digest": "0123456789abcdef", "source": "embedded"}

    def model(self):
        return nn.Sequential(nn.Linear(80, 20), nn.BatchNorm1d(20), nn.Dropout(0.5), nn.Linear(20, 80))

    def steps_per_epoch(self, world):
        return 64 // world // self.batch

    def batches(self, rank, world, seed):
        while True:
            for start in range(rank * 4, 64, 4 * world):
                yield self.x[start : start + 4]

    def loss(self, model, batch):
        return (model(batch) - batch).square().mean()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.rate, momentum=0.9)

    def lr(self, step):
        return self.rate

    def evaluate(self, model):
        model.eval()
        with torch.no_grad():
            value = self.loss(model, self.x).item()
        model.train()
        return {"loss": value}


class Tall(Tiny):
    """A layer whose two factors have different sizes."""

    def model(self):
        return nn.Linear(80, 20)


class Steep(Tiny):
    """The same, with a learning rate that no method survives."""

    rate = 1e30


def plan(tmp_path, text=PLAN, name="plan.toml"):
    for task in (Tiny, Tall, Steep):
        find_task(f"{HERE}:{task.__name__}")  # named by the user, files may name them
    path = tmp_path / name
    path.write_text(text.replace("{here}", HERE))
    return path


def call(*arguments):
    return CliRunner().invoke(app, ["survey", *map(str, arguments)])


def change(row, **fields):
    return msgspec.structs.replace(row, **fields)


def assert_one_line(done, named):
    """An error of one line, and another that says where to read on."""
    assert done.exit_code == 1
    line, *rest = done.stderr.strip().splitlines()
    assert named in line
    assert all(line.startswith("read on: ") for line in rest)
