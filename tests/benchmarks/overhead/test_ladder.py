import pytest
import torch
from rich.console import Console

from benchmarks.overhead.__main__ import table
from benchmarks.overhead.ladder import WORKERS, list_allocations, machinery
from grace.compute import native
from grace.predict.replay import Echo
from grace.registry.policy import Policy
from grace.run.drive import drive
from grace.run.worker import Worker


def test_allocations_are_counted():
    sizes = list_allocations(lambda: torch.empty(1000) + torch.ones(1000))
    assert sum(size >= 4000 for size in sizes) == 3


def test_an_operation_in_place_allocates_nothing():
    x = torch.zeros(100_000)
    assert not [size for size in list_allocations(lambda: x.mul_(2)) if size >= 4000]


@pytest.mark.parametrize("method", ["none", "topk"])
def test_machinery_is_a_row_with_quartiles(method: str):
    row = machinery(method, 4)
    assert 0 < row["low"] <= row["value"] <= row["high"]
    assert row["goal"] == 10
    assert row["operation"].endswith(f"{method}, 200 tensors of 64 numbers, 4 workers, warm")


def test_rows_are_shown_with_their_spread():
    row = {"operation": "step", "value": 1.05, "unit": "x", "low": 1.0, "high": 1.1, "goal": 1.1}
    console = Console(width=100, record=True)
    console.print(table([row]))
    assert "1 to 1.1" in console.export_text()


def test_machinery_without_batches_says_so():
    assert machinery("none", 4, plans=False)["operation"].endswith("warm, alone")


@pytest.mark.parametrize("method", ["none", "topk", "efsignsgd", "qsgd:bits=4,memory=residual"])
def test_a_bucket_allocates_nothing_large(method: str):
    """Above 4 KB, once the plan is there; each exchange on its own takes a wire or an answer of more than that."""
    if not native.isas():
        pytest.skip("no native kernels")
    worker, network = Worker(Policy([("*", method)]), 0, WORKERS), Echo(WORKERS)
    tensors = {f"layer{i}": torch.randn(40_000) for i in range(3)}

    def exchange() -> None:
        drive(worker.exchange(tensors), network)
        worker.workspace.reset()
        worker.advance()

    for _ in range(4):
        exchange()
    assert [size for size in list_allocations(exchange) if size > 4096] == []
