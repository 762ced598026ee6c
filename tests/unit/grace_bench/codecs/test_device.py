"""Measuring on a GPU, as far as a machine without one can show it."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest
import torch
from rich.console import Console

import grace
from grace.errors import ConfigurationError
from grace_bench.codecs import device, table
from grace_bench.codecs.bench import Bench
from grace_bench.codecs.buffers import Buffers
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK, Case
from grace_bench.codecs.compressors import compressor_of
from grace_bench.codecs.device import bandwidth_share, least_bytes, pass_bytes
from grace_bench.codecs.plan import plan_of
from grace_bench.devices import device_of

PAGE = Path(__file__).parents[4] / "docs/data/gpu.md"


@pytest.mark.parametrize("text", ["gpu", "cuda:x", "cpu:1", "", "tpu"])
def test_what_is_no_device(text: str):
    with pytest.raises(ConfigurationError, match="legal: cpu, cuda, cuda:0"):
        device_of(text)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ConfigurationError, match=r"device='cuda', and torch .* finds 0 CUDA devices here; legal: cpu\n"
    ):
        Bench(plan_of("qsgd", "4K", device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_of("cuda") == torch.device("cuda", 0)
    with pytest.raises(ConfigurationError, match="finds 1 CUDA devices here; legal: cpu, cuda:0"):
        device_of("cuda:1")


def test_bytes_that_must_be_moved():
    qsgd = grace.QSGD(bits=4)
    payload = qsgd.facts(1000).payload
    assert least_bytes(ENCODE, qsgd, 1000, 8) == 4000 + payload
    assert least_bytes(FEEDBACK, qsgd, 1000, 8) == 12000 + payload
    assert least_bytes(DECODE, qsgd, 1000, 8) == 4000 + 8 * payload
    assert least_bytes(ENCODE, grace.Threshold(v=1.0), 1000, 8) is None
    assert bandwidth_share(500, 2.0, 1000, 1.0) == 0.25
    assert bandwidth_share(None, 2.0, 1000, 1.0) is None


def test_bytes_that_passes_move():
    """A mean of each block is known before its first sign: gradient and memory are read twice."""
    two, n = grace.EFSignSGD(), 10_000
    assert two.passes(n) == 2
    payload = two.facts(n).payload
    assert pass_bytes(ENCODE, two, n, 8) == 8 * n + payload
    assert pass_bytes(FEEDBACK, two, n, 8) == 20 * n + payload
    assert pass_bytes(DECODE, two, n, 8) == least_bytes(DECODE, two, n, 8)
    for operation in (ENCODE, FEEDBACK, DECODE):
        qsgd = grace.QSGD(bits=4)
        assert pass_bytes(operation, qsgd, n, 8) == least_bytes(operation, qsgd, n, 8)
        assert pass_bytes(operation, grace.EDEN(), n, 8) is None
        assert pass_bytes(operation, grace.Threshold(v=1.0), n, 8) is None


def test_the_shares_of_the_page_follow_from_its_times():
    text, n = PAGE.read_text(encoding="utf-8"), 25_000_000
    copy = 1e6 * float(re.search(r"a\s+copy\s+moved\s+([\d.]+)\s+TB/s", text)[1])  # type: ignore[index]  # bytes in a microsecond
    rows = re.findall(r"\| `(\S+)` \| (\d+) us \| (\d+) us \| (\d+) % \| (\d+) % \| (one|two)", text)
    assert len(rows) == 7
    for spec, _, micros, needed, moved, passes in rows:
        compressor = compressor_of(grace.method(spec, memory="none"))
        assert compressor is not None
        assert compressor.passes(n) == {"one": 1, "two": 2}[passes]
        for count, share in ((least_bytes, needed), (pass_bytes, moved)):
            assert round(100 * count(FEEDBACK, compressor, n, 1) / int(micros) / copy) == int(share), spec


def test_launches_are_counted_by_their_calls(monkeypatch: pytest.MonkeyPatch):
    events = [("cudaLaunchKernel", 5), ("cuLaunchKernelEx", 2), ("cudaMemcpyAsync", 9), ("aten::add", 4)]

    class Profile:
        def __init__(self, **_: object): ...
        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *_: object) -> None: ...
        def key_averages(self) -> list[object]:
            return [types.SimpleNamespace(key=key, count=count) for key, count in events]

    runs: list[int] = []
    monkeypatch.setattr(torch.profiler, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert device.count_launches(lambda: runs.append(1)) == 7
    assert len(runs) == 2, "once before, so that what is made once does not count"


@pytest.mark.parametrize("triton", [True, False])
def test_the_row_and_the_table_of_a_device(triton: bool, monkeypatch: pytest.MonkeyPatch):
    """A bench on the CPU that believes it is on a GPU."""
    monkeypatch.setattr("grace_bench.codecs.bench.count_launches", lambda run: (run(), 3)[1])
    monkeypatch.setattr("grace_bench.codecs.bench.busy_seconds", lambda case, clear: 2e-3)
    bench = Bench(plan_of("efsignsgd", "4K", samples=3, workers=2), eviction=1 << 20)
    bench.device = types.SimpleNamespace(type="imagined")  # type: ignore[assignment]
    monkeypatch.setattr("grace_bench.codecs.bench.backends.runs_triton", lambda device: triton)
    buffers = Buffers(4096, workers=2)
    bench._measure_yardsticks(buffers, 1)
    monkeypatch.setattr(bench, "_lacks_memory", lambda *_: False)
    bench._measure_method("efsignsgd", buffers, 1)
    rows = bench.lists["rows"]
    assert [row["launches"] for row in rows] == [3, 3, 3]
    assert [row["busy_microseconds"] for row in rows] == [2000.0] * 3
    assert all(row["bandwidth"] > 0 for row in rows)
    payload = 4 + 512
    assert [row["least_bytes"] for row in rows] == [4 * 4096 + payload, 12 * 4096 + payload, 4 * 4096 + 2 * payload]
    if triton:
        assert [row["pass_bytes"] - row["least_bytes"] for row in rows] == [4 * 4096, 8 * 4096, 0]
        for row in rows:
            assert row["pass_bandwidth"] == pytest.approx(
                row["bandwidth"] * row["pass_bytes"] / row["least_bytes"], rel=1e-3
            )
    else:
        assert all(row["pass_bytes"] is row["pass_bandwidth"] is None for row in rows)
    console = Console(width=400)
    with console.capture() as capture:
        console.print(table._table(rows, {}, 2))
    assert "encode: launches, busy, of a copy's bandwidth what is needed, what passes move" in capture.get()
    assert "3, 2, " in capture.get()
    assert (", -" in capture.get()) is not triton


def test_a_device_is_held_back_until_all_is_submitted(monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool):
            assert enable_timing

        def record(self) -> None:
            calls.append("mark")

        def synchronize(self) -> None:
            calls.append("wait")

        def elapsed_time(self, other: Event) -> float:
            return 2.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("drain"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: calls.append("hold") if cycles >= 1e6 else None)
    case = Case("x", lambda: calls.append("run"), lambda: calls.append("prepare"))
    assert device.busy_seconds(case, lambda: calls.append("clear")) == 2.5e-3
    assert calls[:8] == ["prepare", "clear", "drain", "hold", "mark", "run", "mark", "wait"]


def test_a_run_that_compiled_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    """The stream is held back for as long as the last runs took to submit: one of seconds does not delay all others."""
    now, held = [0.0], list[float]()
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: types.SimpleNamespace(record=lambda: None))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: held.append(cycles / 2e9))
    monkeypatch.setattr(device.time, "perf_counter", lambda: now[0])
    clock = device.BusyClock()
    for took in (5.0, 0.001, 0.002, 0.001, 0.001, 0.001):
        clock()
        now[0] += took
        clock()
    assert held == pytest.approx([0.001, 0.151, 0.151, 0.151, 0.151, 0.007])


def test_the_clock_of_a_case_is_the_devices():
    ticks = iter([1.0, 4.5])
    assert Case("x", lambda: None).seconds(lambda: None, lambda: next(ticks)) == 3.5
