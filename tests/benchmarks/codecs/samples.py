"""A document without measuring one."""

from __future__ import annotations

import copy


def goal(row="top-k exact 1 %", value=1.0, unit="x add_", limit=1.1, stretch=0.8):
    return {
        "row": row, "unit": unit, "goal": limit, "stretch": stretch, "value": value, "low": 0.9 * value,
        "high": 1.1 * value, "met": value <= limit,
    }  # fmt: skip


def make_times(ratio):
    spread = [0.95 * ratio, ratio, 1.05 * ratio]
    return {"ratio": ratio, "low": spread[0], "high": spread[2], "microseconds": 100 * ratio, "samples": spread}


def row(method="topk", operation="encode", ratio=1.0, size=1_000_000, threads=1, goals=(), others=()):
    first = next((goal["goal"] for goal in goals if goal["unit"] == "x add_"), None)
    return {
        "operation": operation, "method": method, "size": size, "threads": threads, "kernels": "native-avx512",
        "cold": size >= 1_000_000, "payloads": 8 if operation == "decode and sum" else None, **make_times(ratio),
        "goal": first, "goals": list(goals), "others": list(others),
    }  # fmt: skip


def other(kernels, ratio, goals=()):
    return {"kernels": kernels, "what": "the same", **make_times(ratio), "times": ratio, "goals": list(goals)}


def document(*rows, **changes):
    out = {
        "schema": "grace.codecs", "version": 1, "created": "2026-01-01T00:00:00+00:00", "command": ["grace"],
        "environment": {"processor": "a processor", "cores": 2, "kernels": "native-avx512", "torch": "2.13.0",
                        "python": "3.12.1", "system": "Linux x86_64"},
        "plan": {"threads": sorted({r["threads"] for r in rows}), "limit_seconds": 1.0}, "seconds": 12.0,
        "yardsticks": [{"operation": "memcpy", "size": 4096, "threads": 1, **make_times(0.6)}],
        "rows": list(rows), "left_out": [], "failed": [], **changes,
    }  # fmt: skip
    return copy.deepcopy(out)
