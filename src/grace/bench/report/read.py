"""Reads a directory of results: documents that are what they say, and a reason for each file that is not."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grace.errors import ConfigurationError, GraceError
from grace.registry import parse, recipe

RESULT, CODECS, COMPARISON = "grace.result", "grace.codecs", "grace.comparison"
VERSIONS = {RESULT: (1, 2), CODECS: (1,)}
NO_COMMUNICATION = "no-communication"
_LARGEST = 1e300
REMEDY = "make results with: grace bench train --task digits --methods none,topk --out {directory}"


class _Wrong(ValueError):
    """A document that does not have the shape that its schema promises; the message names the field."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run. Times in the unit of their name; a measure that the document does not have is None."""

    file: str
    created: str
    command: str
    task: str
    method: str
    family: str
    baseline: bool
    workers: int
    seed: int
    link: str
    bits_per_second: float | None
    latency_seconds: float | None
    transport: str
    granularity: str
    machine: str
    versions: str
    error: str | None = None
    steps: int = 0
    batch: int = 0
    parameters: int = 0
    metric: str = ""
    higher: bool = True
    final: float | None = None
    best: float | None = None
    agree: bool | None = None
    adjusted: str = ""
    lr: float | None = None
    data: str = ""
    source: str = ""
    procedural: bool = False
    paper_row: str = ""
    target: float | None = None
    target_seconds: float | None = None
    step_ms: float | None = None
    compute_ms: float | None = None
    codec_ms: float | None = None
    exchange_ms: float | None = None
    exposed_ms: float | None = None
    throughput: float | None = None
    total_seconds: float | None = None
    sent: float | None = None
    relative: float | None = None
    nic_sent: float | None = None
    peak_bytes: float | None = None
    predicted_ms: float | None = None
    curve: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What a directory holds."""

    runs: list[Run] = field(default_factory=list)
    codecs: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def read(directory: Path) -> Found:
    """The documents in ``directory`` and in ``directory/runs``. What cannot be used is listed with the reason.

    Raises:
        ConfigurationError: no such directory, or not one document in it that can be used.
    """
    if not directory.is_dir():
        raise ConfigurationError(
            f"{directory} is not a directory; legal: one that holds results (runs/*.json, codecs*.json); "
            + REMEDY.format(directory=directory)
        )
    found = Found()
    for path in sorted([*directory.glob("*.json"), *(directory / "runs").glob("*.json")]):
        name = str(path.relative_to(directory))
        try:
            document = _load(path)
            if document["schema"] == RESULT:
                found.runs.append(run_of(document, name))
            elif document["schema"] == CODECS:
                found.codecs.extend(codec_rows(document))
        except (_Wrong, OSError) as error:
            found.skipped.append((name, str(error)))
    if not found.runs and not found.codecs:
        reasons = "".join(f"\n  {name}: {why}" for name, why in found.skipped[:5])
        what = f"{len(found.skipped)} files, none of which can be used:{reasons}\n" if reasons else "no results; "
        raise ConfigurationError(f"{directory} holds {what}{REMEDY.format(directory=directory)}")
    return found


def _load(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes(), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise _Wrong(f"not text in UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise _Wrong("nested too deeply to be a result") from error
    except json.JSONDecodeError as error:
        raise _Wrong(f"not JSON: {error.msg} in line {error.lineno}") from error
    except _Wrong:
        raise
    except ValueError as error:  # an integer with too many digits
        raise _Wrong(f"not a result: {error}") from error
    if not isinstance(document, dict):
        raise _Wrong(f"not a document of Grace: JSON, but of type {type(document).__name__}")
    schema, version = document.get("schema"), document.get("version")
    if schema == COMPARISON:  # repeats what runs/ holds
        return document
    if schema not in VERSIONS:
        raise _Wrong(f"not a document of Grace: its schema is {_short(schema)}; legal: {', '.join(VERSIONS)}")
    if version not in VERSIONS[schema]:
        legal = " and ".join(map(str, VERSIONS[schema]))
        raise _Wrong(
            f"{schema} of version {_short(version)}; this Grace reads {legal}: read it with the one it is from"
        )
    return document


def _refuse(constant: str) -> float:
    raise _Wrong(f"{constant} is not JSON")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _look(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for key in path.split("."):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _Wrong(f"{path}: {_short(value)} stands where an object should")
        value = value.get(key)
    return value


def _number(document: Mapping[str, Any], path: str) -> float | None:
    value = _look(document, path)
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= _LARGEST:  # inf and NaN too
        raise _Wrong(f"{path}: {_short(value)} is not a number")
    return value


def _text(document: Mapping[str, Any], path: str, default: str | None = None) -> str:
    value = _look(document, path)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise _Wrong(f"{path}: " + ("missing" if value is None else f"{_short(value)} is not text"))
    return value


def _count(document: Mapping[str, Any], path: str) -> int:
    value = _number(document, path)
    if value is None or value != int(value) or value < 0:
        raise _Wrong(f"{path}: " + ("missing" if value is None else f"{value!r} is not a count"))
    return int(value)


def run_of(document: Mapping[str, Any], file: str) -> Run:
    """The run of a ``grace.result`` document, version 1 or 2.

    Raises:
        ValueError: a field is missing or is of another type; the message names it.
    """
    method = _text(document, "method")
    family = _text(document, "family", "") or _family(method)
    cores, threads = _look(document, "environment.cores"), _look(document, "environment.threads_per_worker")
    names = ("grace", "python", "torch")
    command = _look(document, "command")
    seed = _count(document, "seed")
    shared: dict[str, Any] = {
        "file": file,
        "created": _text(document, "created", ""),
        "command": " ".join(map(str, command)) if isinstance(command, list) else str(command or ""),
        "task": _text(document, "task"),
        "method": method,
        "family": family,
        "baseline": _text(document, "kind", "method") == "baseline" or family == "baseline",
        "workers": _count(document, "workers"),
        "seed": seed,
        "link": _text(document, "link.name", "none"),
        "bits_per_second": _number(document, "link.bits_per_second"),
        "latency_seconds": _number(document, "link.latency_seconds"),
        "transport": _text(document, "transport", "gloo"),
        "granularity": _text(document, "granularity", "parameter"),
        "machine": f"{_look(document, 'environment.system')}, {cores} cores, {threads} threads per worker",
        "versions": ", ".join(f"{name} {_look(document, 'environment.' + name)}" for name in names),
    }
    if _text(document, "status", "ok") != "ok":
        return Run(**shared, error=_text(document, "error", "no reason was recorded"))
    return Run(**shared, **_measured(document, shared["workers"]))


def _measured(document: Mapping[str, Any], workers: int) -> dict[str, Any]:
    metric, better = _text(document, "metric"), _text(document, "better")
    if better not in ("higher", "lower"):
        raise _Wrong(f"better: {better!r}; legal: higher, lower")
    agree = _look(document, "replicas_agree")
    batch, step_ms = _count(document, "batch_per_worker"), _number(document, "time.step_ms.median")
    throughput = _number(document, "time.samples_per_second")
    if throughput is None and step_ms:  # version 1 leaves this division to its reader
        throughput = 1000 * batch * workers / step_ms
    return {
        "steps": _count(document, "steps"),
        "batch": batch,
        "parameters": _count(document, "model.parameters"),
        "metric": metric,
        "higher": better == "higher",
        "final": _number(document, "final"),
        "best": _number(document, "best"),
        "agree": agree if isinstance(agree, bool) else None,
        "adjusted": _text(document, "optimizer.why", ""),
        "lr": _number(document, "optimizer.peak_lr"),
        "data": _text(document, "data.name", ""),
        "source": _text(document, "data.source", ""),
        "procedural": bool(_look(document, "data.procedural")),
        "paper_row": _text(document, "paper_row", ""),
        "target": _number(document, "target.value"),
        "target_seconds": _number(document, "target.seconds"),
        "step_ms": step_ms,
        **{name: _number(document, f"time.{name}") for name in ("compute_ms", "codec_ms", "exchange_ms", "exposed_ms")},
        "throughput": throughput,
        "total_seconds": _number(document, "time.total_seconds"),
        "sent": _number(document, "traffic.sent_bytes_per_step"),
        "relative": _number(document, "traffic.relative_to_fp32"),
        "nic_sent": _number(document, "nic.sent_bytes_per_step"),
        "peak_bytes": _number(document, "memory.peak_rss_bytes"),
        "predicted_ms": _number(document, "prediction.step_ms"),
        "curve": _curve(document, metric),
    }


def _curve(document: Mapping[str, Any], metric: str) -> tuple[Mapping[str, Any], ...]:
    points = document.get("curve")
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise _Wrong("curve: not a list of objects")
    for index, point in enumerate(points):
        for key in ("step", "epoch", "seconds", metric):
            try:
                value = _number(point, key)
            except _Wrong as error:
                raise _Wrong(f"curve[{index}].{error}") from error
            if value is None and key != metric:
                raise _Wrong(f"curve[{index}].{key}: missing")
    return tuple(sorted(points, key=lambda point: float(point["step"])))


def codec_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The timed rows of a ``grace.codecs`` document: of methods, and of kernels, whose method is empty.

    Raises:
        ValueError: a field is missing or is of another type.
    """
    rows = document.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _Wrong("rows: not a list of objects")
    out = []
    for index, row in enumerate(rows):
        try:
            numbers = {name: _number(row, name) for name in ("ratio", "low", "high", "goal", "microseconds")}
            names = {"operation": _text(row, "operation"), "method": _text(row, "method", "")}
            counts = {"size": _count(row, "size"), "threads": _count(row, "threads")}
        except _Wrong as error:
            raise _Wrong(f"rows[{index}].{error}") from error
        if numbers["ratio"] is not None or numbers["microseconds"] is not None:
            out.append({**names, **counts, **numbers})
    return out


@functools.cache  # plug-ins are looked for in all installed packages each time
def _family(method: str) -> str:
    """Of a registered method; others, which version 1 does not describe, are ``other``."""
    try:
        return recipe(parse(method)[0]).family
    except GraceError:
        return "other"
