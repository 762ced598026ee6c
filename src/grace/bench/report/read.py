"""Reads a directory of results: documents that are what they say, and a reason for each file that is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from grace.bench.results import SCHEMA, Document, DocumentError, Failure, Point, decode, decode_as, short
from grace.errors import ConfigurationError

CODECS, COMPARISON = "grace.codecs", "grace.comparison"
_CODECS_VERSION = 1
REMEDY = "make results with: grace bench train --task digits --methods none,topk --out {directory}"


class CodecRow(msgspec.Struct, frozen=True):
    """A timed row of a ``grace.codecs`` document: of a method, or of a kernel, which has none."""

    operation: str
    size: int
    threads: int
    method: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    goal: float | None = None
    microseconds: float | None = None


class _Head(msgspec.Struct):
    schema: Any = None


class _Codecs(msgspec.Struct):
    version: Any
    rows: list[CodecRow]


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
    machine: str = ""
    versions: str = ""
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
    curve: tuple[Point, ...] = ()


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
            _read(path.read_bytes(), name, found)
        except OSError as error:
            found.skipped.append((name, error.strerror or str(error)))
        except DocumentError as error:
            found.skipped.append((name, str(error)))
    if not found.runs and not found.codecs:
        reasons = "".join(f"\n  {name}: {why}" for name, why in found.skipped[:5])
        what = f"{len(found.skipped)} files, none of which can be used:{reasons}\n" if reasons else "no results; "
        raise ConfigurationError(f"{directory} holds {what}{REMEDY.format(directory=directory)}")
    return found


def _read(text: bytes, name: str, found: Found) -> None:
    schema = decode_as(text, _Head).schema
    if schema == SCHEMA:
        found.runs.append(run_of(decode(text), name))
    elif schema == CODECS:
        found.codecs.extend(codec_rows(text))
    elif schema != COMPARISON:  # which repeats what runs/ holds
        raise DocumentError(f"not a document of Grace: its schema is {short(schema)}; legal: {SCHEMA}, {CODECS}")


def run_of(one: Document, file: str) -> Run:
    """The run of a document."""
    shared: dict[str, Any] = {
        "file": file,
        "created": one.created,
        "command": " ".join(one.command),
        "task": one.task,
        "method": one.method,
        "family": one.family,
        "baseline": one.kind == "baseline",
        "workers": one.workers,
        "seed": one.seed,
        "link": one.link.name,
        "bits_per_second": one.link.bits_per_second,
        "latency_seconds": one.link.latency_seconds,
        "transport": one.transport,
        "granularity": one.granularity,
    }
    if isinstance(one, Failure):
        return Run(**shared, error=one.error)
    where, times = one.environment, one.time
    return Run(
        **shared,
        machine=f"{where.system}, {where.cores} cores, {where.threads_per_worker} threads per worker",
        versions=f"grace {where.grace}, python {where.python}, torch {where.torch}",
        steps=one.steps,
        batch=one.batch_per_worker,
        parameters=one.model.parameters,
        metric=one.metric,
        higher=one.better == "higher",
        final=one.final,
        best=one.best,
        agree=one.replicas_agree,
        adjusted=one.optimizer.why or "",
        lr=one.optimizer.peak_lr,
        data="" if one.data is None else one.data.name,
        source="" if one.data is None else one.data.source,
        procedural=one.data is not None and one.data.procedural,
        paper_row=one.paper_row or "",
        target=None if one.target is None else one.target.value,
        target_seconds=None if one.target is None else one.target.seconds,
        step_ms=times.step_ms.median,
        compute_ms=times.compute_ms,
        codec_ms=times.codec_ms,
        exchange_ms=times.exchange_ms,
        exposed_ms=times.exposed_ms,
        throughput=times.samples_per_second,
        total_seconds=times.total_seconds,
        sent=one.traffic.sent_bytes_per_step,
        relative=one.traffic.relative_to_fp32,
        nic_sent=None if one.nic is None else one.nic.sent_bytes_per_step,
        peak_bytes=None if one.memory is None else one.memory.peak_rss_bytes,
        predicted_ms=None if one.prediction is None else one.prediction.step_ms,
        curve=tuple(sorted(one.curve, key=lambda point: point.step)),
    )


def codec_rows(text: bytes | str) -> list[dict[str, Any]]:
    """The rows of a ``grace.codecs`` document that have a time; a kernel's method is empty.

    Raises:
        DocumentError: a field is missing or is of another type.
    """
    document = decode_as(text, _Codecs)
    if document.version != _CODECS_VERSION:
        raise DocumentError(f"{CODECS} of version {short(document.version)}; this Grace reads {_CODECS_VERSION}")
    timed = [row for row in document.rows if row.ratio is not None or row.microseconds is not None]
    return [{**msgspec.structs.asdict(row), "method": row.method or ""} for row in timed]
