"""Measures a plan, and makes the ``grace.codecs`` document."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from grace.compute import backends, resources
from grace.contract.compressor import Compressor
from grace.flags.refusals import Refusals
from grace_bench import machine
from grace_bench.codecs import conversations
from grace_bench.codecs.buffers import COPIES, Buffers
from grace_bench.codecs.cases import cases_of, variants
from grace_bench.codecs.clock import DECODE, ENCODE, Case, CaseSamples, Clock
from grace_bench.codecs.compressors import compressor_of
from grace_bench.codecs.device import bandwidth_share, busy_seconds, count_launches, least_bytes, pass_bytes
from grace_bench.codecs.plan import COLD, YARDSTICKS, CodecPlan, size_text
from grace_bench.devices import clock_of, device_of, name_device
from grace_bench.runs.results import quartiles
from grace_command.text import plural

SCHEMA, VERSION = "grace.codecs", 1
Row = dict[str, Any]
Progress = Callable[[float, float, str], None]  # done, of all, what comes now


class Bench:
    """Times every method of a plan on this machine.

    Args:
        plan: what.
        eviction: bytes that are written to empty the caches; by default what the machine needs.
    """

    def __init__(self, plan: CodecPlan, eviction: int | None = None):
        self.device = device_of(plan.device)
        self.plan = plan
        self.clock = Clock(plan.limit, eviction, plan.budget, self.device, clock_of(self.device))
        self.kernels, self.why = backends.active()
        self.lists: dict[str, list[Row]] = {name: [] for name in ("yardsticks", "rows", "left_out", "failed")}
        self._copies: dict[int, float] = {}  # seconds that a GPU is busy with a copy, by size
        self._slowest: dict[tuple[str, str, str | None], float] = {}  # seconds per element, so far

    def measure(
        self,
        *,
        command: Sequence[str] = (),
        progress: Progress | None = None,
        keep: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """The document.

        Args:
            command: of the document, the command that asked for it.
            progress: is told how much is done and how much there is, both in expected seconds, and what comes next.
            keep: gets the unfinished document after each method at each size, so that an interrupted run leaves it.
        """
        start, plan = time.monotonic(), self.plan
        head = {
            "schema": SCHEMA,
            "version": VERSION,
            "created": machine.now(),
            "command": list(command),
            "environment": {**self._environment(), "load_before": machine.load()},
            "plan": {
                "methods": list(plan.methods), "sizes": list(plan.sizes), "threads": list(plan.threads),
                "samples": plan.samples, "limit_seconds": plan.limit, "budget_seconds": plan.budget,
                "workers": plan.workers, "data": "randn * exp(randn)", "device": plan.device,
            },
        }  # fmt: skip

        def document(complete: bool) -> dict[str, Any]:
            lists = {name: list(entries) for name, entries in self.lists.items()}
            return {**head, "complete": complete, "seconds": round(time.monotonic() - start, 1), **lists, **self.more()}

        total, done = plan.seconds(), 0.0
        with torch.random.fork_rng(devices=[]):  # what is compared may draw from torch's generator
            for count, size in ((count, size) for count in plan.threads for size in plan.sizes):
                jobs = plan.jobs(size, count)
                if self._lacks_memory(None, size, count, COPIES):
                    done += sum(seconds for _, seconds in jobs)
                    continue
                with resources.threads(count):
                    buffers = Buffers(size, workers=plan.workers, device=self.device)
                    for name, seconds in jobs:
                        if progress is not None:
                            label = f"{name}, {size_text(size)}, {plural(count, 'thread')}"
                            progress(done, total, label)
                        self._attempt(name, buffers, count)
                        done += seconds
                        if keep is not None:
                            keep(document(False))
        return document(True)

    # ---- what a bench with goals does differently -------------------------------------------------------------------
    def run_job(self, name: str, buffers: Buffers, count: int) -> None:
        """Runs a job of the plan."""
        if name == YARDSTICKS:
            self._measure_yardsticks(buffers, count)
        else:
            self._measure_method(name, buffers, count)

    def time(
        self, name: str, cases: Sequence[Case], buffers: Buffers, count: int, payloads: int | None
    ) -> list[tuple[Case, Row]]:
        """The rows of those cases of a method that keep to their limit, in one interleaved measurement. ``payloads``: that its
        decoder gets; None: it has a conversation of its own.
        """
        kept = [case for case in cases if self.is_worth_it(name, case, buffers.n, count)]
        measured = self.clock.measure(buffers.add(), kept, self.plan.samples, cold=buffers.n >= COLD)
        timings = [(case, self.note(name, case, measured[case], buffers.n, count)) for case in kept]
        return [(case, summarize(case.operation, timing)) for case, timing in timings if timing is not None]

    def place(self, name: str | None, size: int, count: int) -> Row:
        """The part of a row that says where it was measured."""
        return {
            "operation": None, "method": name, "size": size, "threads": count, "kernels": self.kernels,
            "cold": size >= COLD, "payloads": None,
        }  # fmt: skip

    def more(self) -> dict[str, Any]:
        """Parts of the document besides the timings."""
        return {}

    # ---- one job ----------------------------------------------------------------------------------------------------
    def _attempt(self, name: str, buffers: Buffers, count: int) -> None:
        """A method that fails does not cost the results of the others; the document and the exit status report it."""
        try:
            self.run_job(name, buffers, count)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            self.lists["failed"].append({"method": name, "size": buffers.n, "threads": count, "error": text})

    def _measure_yardsticks(self, buffers: Buffers, count: int) -> None:
        cold = buffers.n >= COLD
        measured = self.clock.measure(
            buffers.add(), [buffers.add(), *buffers.yardsticks()], self.plan.samples, cold=cold
        )
        for case, timing in measured.items():
            if isinstance(timing, CaseSamples):
                where = {"size": buffers.n, "threads": count, "cold": cold}
                self.lists["yardsticks"].append({**summarize(case.operation, timing), **where})

    def _measure_method(self, name: str, buffers: Buffers, count: int) -> None:
        """All operations of one method."""
        plain, feedback = variants(name)
        compressor = compressor_of(plain)
        if compressor is not None and compressor.transparent:
            return self.leave(None, name, buffers.n, count, "the gradient itself travels: nothing is encoded")
        copies = 0 if compressor is not None else conversations.COPIES * buffers.workers
        if self._lacks_memory(name, buffers.n, count, copies):
            return None
        cases, payloads = cases_of(plain, feedback, buffers)
        for case, row in self.time(name, cases, buffers, count, payloads):
            row["payloads"] = payloads if case.operation == DECODE else None
            if self.device.type != "cpu":
                row |= self._of_device(case, compressor, buffers, payloads or buffers.workers)
            self.lists["rows"].append(self.place(name, buffers.n, count) | row)
        return None

    def _of_device(self, case: Case, compressor: Compressor | None, buffers: Buffers, payloads: int) -> Row:
        """Numbers of interest on a GPU: launches, how long it is busy, and shares of a copy's bandwidth."""
        if buffers.n not in self._copies:
            self._copies[buffers.n] = busy_seconds(buffers.yardsticks()[0], self.clock.clear)
        with Refusals():
            case.prepare()
            launches = None if compressor is None else count_launches(case.run)  # a conversation has no run of its own
            seconds = busy_seconds(case, self.clock.clear)
        least = passed = None
        if compressor is not None:
            least = least_bytes(case.operation, compressor, buffers.n, payloads)
        if compressor is not None and backends.runs_triton(self.device):  # plain torch goes through memory more often
            passed = pass_bytes(case.operation, compressor, buffers.n, payloads)
        of_least, of_passed = (
            bandwidth_share(count, seconds, 8 * buffers.n, self._copies[buffers.n]) for count in (least, passed)
        )
        return {
            "launches": launches,
            "busy_microseconds": short(1e6 * seconds),
            "least_bytes": least,
            "bandwidth": None if of_least is None else short(of_least),
            "pass_bytes": passed,
            "pass_bandwidth": None if of_passed is None else short(of_passed),
        }

    def _environment(self) -> dict[str, Any]:
        """The environment of the measurement, as far as it bears on the numbers."""
        return {
            **machine.versions(),
            "processor": machine.processor(),
            "cores": resources.cores(),
            "device": name_device(self.device),
            "kernels": self.kernels,
            "kernels_why": self.why,
            "last_level_cache_bytes": self.clock.cache,
            "eviction_bytes": self.clock.eviction,
        }

    # ---- what is left out -------------------------------------------------------------------------------------------
    def leave(self, operation: str | None, name: str | None, size: int, count: int, why: str) -> None:
        """Notes what is not measured, and why."""
        self.lists["left_out"].append(
            {"operation": operation, "method": name, "size": size, "threads": count, "why": why}
        )

    def leave_slow(
        self, case: Case, name: str | None, size: int, count: int, seconds: float, takes: str = "takes"
    ) -> None:
        """Notes that a run of this case takes longer than its limit."""
        operation = case.operation if case.kernels is None else f"{case.operation} ({case.kernels})"
        shown = f"{seconds:.2g}" if seconds < 10 else f"{math.ceil(seconds):,}"
        limit = self.plan.limit * case.patience
        self.leave(operation, name, size, count, f"a run {takes} {shown} s, more than the limit of {limit:g} s")

    def _lacks_memory(self, name: str | None, size: int, count: int, copies: int) -> bool:
        """True if so many tensors take more than half of the free memory; if so, notes it."""
        on_host = self.device.type == "cpu"
        free = resources.available_memory() if on_host else torch.cuda.mem_get_info(self.device)[0]
        if 4 * size * copies <= free // 2:
            return False
        why = f"{copies} tensors of {4 * size / 1e6:,.0f} MB do not fit into half of the free memory"
        self.leave(None, name, size, count, why)
        return True

    def is_worth_it(self, name: str, case: Case, size: int, count: int) -> bool:
        """True if a case should keep to its limit, judging by smaller sizes and, for decoding, by encoding."""
        limit = self.plan.limit * case.patience
        expected = size * self._slowest.get((name, case.operation, case.kernels), 0.0)
        if case.operation == DECODE and expected <= limit:
            encode = size * self._slowest.get((name, ENCODE, case.kernels), 0.0)
            expected = encode if encode > 2 * limit else expected  # its wires would take too long
        if expected <= 1.5 * limit:
            return True
        self.leave_slow(case, name, size, count, expected, "would take about")
        return False

    def note(self, name: str, case: Case, timing: CaseSamples | float, size: int, count: int) -> CaseSamples | None:
        """The timing, remembered for larger sizes; None, and a note, where a run took longer than the limit."""
        seconds = quartiles(timing.seconds)["median"] if isinstance(timing, CaseSamples) else timing
        if size >= 1 << 16 or seconds > self.plan.limit:  # smaller ones tell of overheads
            self._slowest[name, case.operation, case.kernels] = seconds / size
        if isinstance(timing, CaseSamples):
            return timing
        self.leave_slow(case, name, size, count, timing)
        return None


def summarize(operation: str, timing: CaseSamples) -> Row:
    """The numbers of one case: ``ratio`` with its quartiles ``low`` and ``high``, and its median in microseconds."""
    ratio = quartiles(timing.ratios)
    return {
        "operation": operation,
        "ratio": short(ratio["median"]),
        "low": short(ratio["low"]),
        "high": short(ratio["high"]),
        "microseconds": short(1e6 * quartiles(timing.seconds)["median"]),
        "samples": [short(value) for value in timing.ratios],
    }


def short(value: float) -> float:
    """Rounds to five digits: a clock is not better than that."""
    return float(f"{value:.5g}")
