"""Measures a plan, and makes the document."""

from __future__ import annotations

import datetime
import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import grace
from grace import backends
from grace.bench.codecs import compressors, conversations, naive, parts, rows
from grace.bench.codecs.clock import Case, Clock, Timing, available_memory, threads
from grace.bench.codecs.compressors import compressor_of
from grace.bench.codecs.goals import DECODE, ENCODE, goals_of
from grace.bench.codecs.plan import COLD, PARTS, YARDSTICKS, Plan, size_text
from grace.bench.codecs.room import COPIES, WORKERS, Room
from grace.bench.results import quartiles
from grace.errors import CompositionError
from grace.method import Method
from grace.registry import method as make_method
from grace.registry import parse

SCHEMA, VERSION = "grace.codecs", 1
_PATIENCE = {
    None: 10.0,
    "native-base": 10.0,
    "torch": 5.0,
    "reference": 1.0,
}  # what has a goal, and its rival, is told even if it is slow
Progress = Callable[[float, float, str], None]  # done, of all, what comes now


@dataclass(slots=True)
class _Bench:
    plan: Plan
    clock: Clock
    kernels: str
    backends: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    yardsticks: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    slowest: dict[tuple[str, str, str | None], float] = field(default_factory=dict)  # seconds per element, so far


def measure(
    plan: Plan,
    *,
    command: list[str] | None = None,
    eviction: int | None = None,
    progress: Progress | None = None,
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Times everything in the plan on this machine; the ``grace.codecs`` document.

    Args:
        plan: what.
        command: of the document, the command that asked for it.
        eviction: bytes that are written to empty the caches; by default as the machine needs.
        progress: is told how much is done, of how much, both in seconds as they were expected, and what comes next.
        keep: gets the document as far as it is, after each method at each size: what interrupts a run leaves that.
    """
    start = time.monotonic()
    bench = _Bench(plan, Clock(plan.limit, eviction, plan.budget), backends.active()[0], backends.available())
    head = {
        "schema": SCHEMA,
        "version": VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command or [],
        "environment": {
            **environment(bench.clock), "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        },
        "plan": {
            "methods": list(plan.methods), "sizes": list(plan.sizes), "threads": list(plan.threads),
            "samples": plan.samples, "limit_seconds": plan.limit, "budget_seconds": plan.budget, "workers": WORKERS,
            "data": "randn * exp(randn)",
        },
    }  # fmt: skip

    def document(complete: bool) -> dict[str, Any]:
        lists = {name: list(getattr(bench, name)) for name in ("yardsticks", "rows", "left_out", "failed")}
        return {**head, "complete": complete, "seconds": round(time.monotonic() - start, 1), **lists}

    total, done = plan.seconds(), 0.0
    with torch.random.fork_rng(devices=[]):  # naive code draws from torch's generator
        for count, size in ((count, size) for count in plan.threads for size in plan.sizes):
            jobs = plan.jobs(size, count)
            if 4 * size * COPIES > available_memory() // 2:
                _leave(bench, None, None, size, count, _too_large(size, COPIES))
                done += sum(seconds for _, seconds in jobs)
                continue
            with threads(count):
                room = Room(size)
                for name, seconds in jobs:
                    if progress is not None:
                        label = f"{name}, {size_text(size)}, {count} thread" + ("s" if count > 1 else "")
                        progress(done, total, label)
                    _guarded(bench, name, room, count)
                    done += seconds
                    if keep is not None:
                        keep(document(False))
    return document(True)


def environment(clock: Clock) -> dict[str, Any]:
    """Where the measurement took place, as far as it bears on the numbers."""
    active, why = backends.active()
    return {
        "grace": grace.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "kernels": active,
        "kernels_why": why,
        "last_level_cache_bytes": clock.cache,
        "eviction_bytes": clock.eviction,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")


# ---- what is done at one size ---------------------------------------------------------------------------------------
def _guarded(bench: _Bench, name: str, room: Room, count: int) -> None:
    """One method that fails does not take hours of others with it; the document tells, and so does the exit status."""
    try:
        if name == YARDSTICKS:
            _yardsticks(bench, room, count)
        elif name == PARTS:
            _parts(bench, room, count)
        else:
            _method(bench, name, room, count)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        bench.failed.append({"method": name, "size": room.n, "threads": count, "error": text})


def _yardsticks(bench: _Bench, room: Room, count: int) -> None:
    cold = room.n >= COLD
    yard = room.add()
    found = bench.clock.measure(yard, [room.add(), *room.yardsticks()], bench.plan.samples, cold=cold)
    for case, timing in found.items():
        if isinstance(timing, Timing):
            out = rows.timed(case.operation, timing)
            bench.yardsticks.append({**out, "size": room.n, "threads": count, "cold": cold})


def _parts(bench: _Bench, room: Room, count: int) -> None:
    if room.n < COLD:
        return
    coded = dict(parts.elias_fano(room))
    cases = [*parts.degenerate(room), *coded]
    for case in cases:
        case.patience = _PATIENCE[None]
    found = bench.clock.measure(room.add(), cases, bench.plan.samples, cold=True)
    for case, timing in found.items():
        if isinstance(timing, Timing):
            goals = goals_of(case.operation, None, room.n)
            one = rows.row(case.operation, None, room.n, count, timing, goals, kernels=bench.kernels, cold=True,
                           coded=coded.get(case))  # fmt: skip
            bench.rows.append(one)
        else:
            _leave(bench, case.operation, None, room.n, count, _too_slow(timing, bench.plan.limit * case.patience))
    if room.n == max(bench.plan.sizes):
        _powersgd(bench, count)


def _powersgd(bench: _Bench, count: int) -> None:
    step, copy, size = parts.powersgd()
    room = Room(size)
    samples = bench.plan.samples
    step.patience = _PATIENCE[None]
    by_sum = bench.clock.measure(room.add(), [step], samples, cold=True)[step]
    by_copy = bench.clock.measure(copy, [step], samples, cold=True)[step]
    if isinstance(by_sum, Timing) and isinstance(by_copy, Timing):
        goals = goals_of(step.operation, None, size)
        bench.rows.append(
            rows.row(step.operation, None, size, count, by_sum, goals, kernels=bench.kernels, cold=True, copies=by_copy)
        )
    else:
        _leave(
            bench,
            step.operation,
            None,
            size,
            count,
            f"a run takes more than the limit of {bench.plan.limit * step.patience:g} s",
        )


def _method(bench: _Bench, name: str, room: Room, count: int) -> None:
    """All operations of one method, with what they are compared with, in one interleaved measurement."""
    plain, feedback = variants(name)
    compressor = compressor_of(plain)
    if compressor is not None and compressor.transparent:
        return _leave(bench, None, name, room.n, count, "the gradient itself travels: nothing is encoded")
    if compressor is None:
        if 4 * room.n * conversations.COPIES > available_memory() // 2:
            return _leave(bench, None, name, room.n, count, _too_large(room.n, conversations.COPIES))
        ours, payloads = conversations.cases(plain, feedback, room), None
    else:
        ours, payloads = compressors.cases(plain, feedback, room), compressors.payloads(plain)
    chosen: list[Case] = []
    others: dict[Case, list[Case]] = {}
    for case in ours:
        if goals_of(case.operation, name, room.n):
            case.patience = _PATIENCE[None]
        if not _worth(bench, name, case, room.n, count):
            continue
        chosen.append(case)
        compared = _compared(bench, case, name, room, payloads) if compressor is not None else []
        others[case] = [other for other in compared if _worth(bench, name, other, room.n, count)]
    cold = room.n >= COLD
    found = bench.clock.measure(
        room.add(), [*chosen, *(other for group in others.values() for other in group)], bench.plan.samples, cold=cold
    )
    for case in chosen:
        timing = found[case]
        _remember(bench, name, case, timing, room.n)
        if not isinstance(timing, Timing):
            _leave(bench, case.operation, name, room.n, count, _too_slow(timing, bench.plan.limit * case.patience))
            continue
        goals = goals_of(case.operation, name, room.n)
        wires = payloads if case.operation == DECODE else None
        one = rows.row(
            case.operation, name, room.n, count, timing, goals, kernels=bench.kernels, cold=cold, payloads=wires
        )
        for other in others[case]:
            theirs = found[other]
            _remember(bench, name, other, theirs, room.n)
            if isinstance(theirs, Timing):
                assert other.kernels is not None
                one["others"].append(rows.other(other.kernels, theirs, timing, goals, count, other.what))
            else:
                operation = f"{case.operation} ({other.kernels})"
                _leave(bench, operation, name, room.n, count, _too_slow(theirs, bench.plan.limit * other.patience))
        bench.rows.append(one)
    return None


def _compared(bench: _Bench, case: Case, name: str, room: Room, payloads: int | None) -> list[Case]:
    """Where there is a goal: the reference kernels, the baseline instruction set, and naive torch code."""
    goals = [goal for size in (room.n, COLD) for goal in goals_of(case.operation, name, size)]
    if not goals:
        return []
    backends = ["reference"] if bench.kernels != "reference" else []
    if any(goal.kernels in bench.backends and goal.kernels != bench.kernels for goal in goals):
        backends.append("native-base")
    out = [compressors.on(case, backend) for backend in backends]
    plain_torch = naive.case(case.operation, name, room, payloads or WORKERS)
    if plain_torch is not None:
        out.append(plain_torch)
    for other in out:
        other.patience = _PATIENCE[other.kernels]
    return out


def variants(name: str) -> tuple[Method[Any], Method[Any] | None]:
    """A method without a memory, and with error feedback; None where it refuses that."""
    word, knobs = parse(name)
    knobs.pop("memory", None)
    plain = make_method(word, **knobs, memory="none")
    try:
        return plain, make_method(word, **knobs, memory="residual")
    except CompositionError:
        return plain, None


# ---- what is left out -----------------------------------------------------------------------------------------------
def _worth(bench: _Bench, name: str, case: Case, size: int, count: int) -> bool:
    """Whether a case can be expected to keep to its limit, from smaller sizes and, for decoding, from encoding."""
    limit = bench.plan.limit * case.patience
    expected = size * bench.slowest.get((name, case.operation, case.kernels), 0.0)
    if case.operation == DECODE and expected <= limit:
        encode = size * bench.slowest.get((name, ENCODE, case.kernels), 0.0)
        expected = encode if encode > 2 * limit else expected  # its wires would take too long
    if expected <= 1.5 * limit:
        return True
    operation = case.operation if case.kernels is None else f"{case.operation} ({case.kernels})"
    _leave(bench, operation, name, size, count, _too_slow(expected, limit, "would take about"))
    return False


def _remember(bench: _Bench, name: str, case: Case, timing: Timing | float, size: int) -> None:
    seconds = quartiles(timing.seconds)["median"] if isinstance(timing, Timing) else timing
    if size >= 1 << 16 or seconds > bench.plan.limit:  # smaller ones tell of overheads
        bench.slowest[name, case.operation, case.kernels] = seconds / size


def _leave(bench: _Bench, operation: str | None, name: str | None, size: int, count: int, why: str) -> None:
    bench.left_out.append({"operation": operation, "method": name, "size": size, "threads": count, "why": why})


def _too_slow(seconds: float, limit: float, takes: str = "takes") -> str:
    shown = f"{seconds:.2g}" if seconds < 10 else f"{math.ceil(seconds):,}"
    return f"a run {takes} {shown} s, more than the limit of {limit:g} s"


def _too_large(size: int, copies: int) -> str:
    return f"{copies} tensors of {4 * size / 1e6:,.0f} MB do not fit into half of the free memory"
