"""True if a row of another's can be: its data, its model and its bytes beside those that this Grace has."""

from __future__ import annotations

import functools
from math import prod

import torch

import grace
from grace.contract.peer import Peer
from grace.run.simulator import Simulator
from grace_bench.runs.results import DocumentError
from grace_bench.survey.row import SurveyRow, is_algorithm
from grace_bench.tasks import find_task

NEAR = 0.02  # of the bytes: a method whose bytes do not depend on the data sends as many
LEAST = 0.25  # of them: a method may collect gradients first, and send less later


def check_plausible(row: SurveyRow, name: str) -> None:
    """Checks the digest and the parameters of a run on embedded data, and the bytes of a method that declares them.

    Args:
        row: whose task and method exist.
        name: of the row, for errors.

    Raises:
        DocumentError: they are not those of this Grace.
    """
    if row.source != "embedded":
        return
    digest, shapes = _task(row.task, row.workers)
    if digest != row.digest:
        raise DocumentError(f"{name}: it has data {row.digest}, where this Grace has {digest}; run it with this Grace")
    size = sum(map(prod, shapes.values()))
    if size != row.parameters:
        raise DocumentError(f"{name}: {row.parameters} parameters, where the task has {size}; run it with this Grace")
    if is_algorithm(row.method):  # its bytes come at some steps, and differ between them
        return
    first, later = _bytes(row.task, row.method, row.workers) or (0, 0)
    steps = row.at[-1]
    most = round(first + (steps - 1) * later)
    if later and steps and not LEAST * most <= row.sent[-1] <= (1 + NEAR) * most:
        raise DocumentError(
            f"{name}: {row.sent[-1]} bytes sent in {steps} steps, where this Grace sends {most}; run it with this Grace"
        )


@functools.cache
def _task(name: str, workers: int) -> tuple[str, dict[str, tuple[int, ...]]]:
    """The digest of the embedded data, and the shapes of the model."""
    task = find_task(name)
    task.workers = workers
    task.load(None)
    shapes = {key: tuple(p.shape) for key, p in task.model().named_parameters() if p.requires_grad}
    return task.data_info()["digest"], shapes


@functools.cache
def _bytes(task: str, method: str, workers: int) -> tuple[int, float] | None:
    """Bytes that a worker sends in the first step, and on average in the two after it (a method such as ACP-SGD sends one
    factor in one step and the other in the next); None: that depends on the gradients.
    """
    shapes, made = _task(task, workers)[1], grace.method(method)
    if any(made.traffic(torch.empty(shape, device="meta"), Peer(0, workers)) is None for shape in shapes.values()):
        return None
    exchange, random = Simulator(method, workers, seed=0), torch.Generator().manual_seed(0)
    sent = [0]
    for _ in range(3):
        exchange.step(
            {key: [torch.randn(shape, generator=random) for _ in range(workers)] for key, shape in shapes.items()}
        )
        sent.append(exchange.traffic[0].sent)
    return sent[1], (sent[3] - sent[1]) / 2
