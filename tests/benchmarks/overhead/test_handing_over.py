"""The cost of handing over is measured, in small; how much it is, is not tested."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.overhead.handing_over import measure
from benchmarks.overhead.hosts import open_host
from grace.errors import UnknownNameError

Rows = list[dict[str, Any]]
KERAS, TENSORFLOW = "Keras on jax / psum over gloo", "TensorFlow / MultiWorkerMirroredStrategy"


def run(toolkit: str, backend: str) -> Rows:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", backend)
        return measure(toolkit, 4, numbers=1_000_000, width=32)


@pytest.fixture(scope="module")
def rows() -> Rows:
    return run("keras", "jax")


def check(rows: Rows, against: str) -> None:
    there, back, faults, step = rows
    assert there["operation"].startswith("a gradient of 1,000,000 float32, ")
    assert [row["goal"] for row in (there, back, step)] == [1.1, 1.1, 1.1]
    for row in (there, back, step):
        assert 0 < row["low"] <= row["value"] <= row["high"]
        assert row["samples"] == 4
    assert faults["low"] < 500, "fresh memory for a gradient would have 977 pages"
    assert f"step with none in {against}" in step["operation"]


def test_two_processes_measure_all_rows(rows: Rows) -> None:
    check(rows, KERAS)


@pytest.mark.night("a gradient in fresh memory")
def test_two_processes_of_tensorflow_do() -> None:
    check(run("tensorflow", "tensorflow"), TENSORFLOW)


def add_faults(rows: Rows) -> None:
    rows[2]["low"] += 977.0


def leave_out_a_sample(rows: Rows) -> None:
    rows[3]["samples"] -= 1


@pytest.mark.parametrize(
    "defect", [add_faults, leave_out_a_sample], ids=["a gradient in fresh memory", "a sample less"]
)
def test_rows_with_a_defect_are_caught(defect: Callable[[Rows], None], rows: Rows) -> None:
    broken = copy.deepcopy(rows)
    defect(broken)
    with pytest.raises(AssertionError):
        check(broken, KERAS)


def test_an_unknown_toolkit() -> None:
    with pytest.raises(UnknownNameError, match="mxnet"):
        open_host("mxnet")
