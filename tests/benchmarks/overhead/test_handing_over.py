"""What handing over costs is measured, in small; what it costs is not tested."""

from __future__ import annotations

import pytest

from benchmarks.overhead.handing_over import measure
from benchmarks.overhead.hosts import open_host
from grace.errors import UnknownNameError


@pytest.mark.parametrize(
    ("toolkit", "backend", "against"),
    [("tensorflow", "", "TensorFlow / MultiWorkerMirroredStrategy"), ("keras", "jax", "Keras on jax / psum over gloo")],
)
def test_two_processes_measure_all_rows(
    toolkit: str, backend: str, against: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend or "tensorflow")
    there, back, faults, step = measure(toolkit, 4, numbers=1_000_000, width=32)
    assert there["operation"].startswith("a gradient of 1,000,000 float32, ")
    assert [row["goal"] for row in (there, back, step)] == [1.1, 1.1, 1.1]
    for row in (there, back, step):
        assert 0 < row["low"] <= row["value"] <= row["high"]
        assert row["samples"] == 4
    assert faults["low"] < 500, "fresh memory for a gradient would have 977 pages"
    assert f"step with none in {against}" in step["operation"]


def test_an_unknown_toolkit() -> None:
    with pytest.raises(UnknownNameError, match="mxnet"):
        open_host("mxnet")
