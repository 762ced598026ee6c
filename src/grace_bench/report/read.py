"""Reads a directory of results: its valid documents, and a reason for each file that is not one."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from grace.errors import ConfigurationError
from grace_bench.runs.results import SCHEMA, Document, DocumentError, SchemaHeader, decode, decode_as, quoted
from grace_bench.runs.table import line

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


class _Codecs(msgspec.Struct):
    version: Any
    rows: list[CodecRow]


@dataclass(frozen=True)
class Run:
    """A document, and the file that it comes from."""

    file: str
    document: Document

    @functools.cached_property
    def row(self) -> dict[str, Any]:
        """Its line of the table of runs."""
        return line(self.document)


@dataclass(frozen=True, slots=True)
class LoadedRuns:
    """The results in a directory."""

    runs: list[Run] = field(default_factory=list)
    codecs: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def read(directory: Path) -> LoadedRuns:
    """The documents in ``directory`` and in ``directory/runs``. What cannot be used is listed with the reason.

    Raises:
        ConfigurationError: no such directory, or not one document in it that can be used.
    """
    if not directory.is_dir():
        raise ConfigurationError(
            f"{directory} is not a directory; legal: one that holds results (runs/*.json, codecs*.json); "
            + REMEDY.format(directory=directory)
        )
    loaded = LoadedRuns()
    for path in sorted([*directory.glob("*.json"), *(directory / "runs").glob("*.json")]):
        name = str(path.relative_to(directory))
        try:
            _read(path.read_bytes(), name, loaded)
        except OSError as error:
            loaded.skipped.append((name, error.strerror or str(error)))
        except DocumentError as error:
            loaded.skipped.append((name, str(error)))
    if not loaded.runs and not loaded.codecs:
        reasons = "".join(f"\n  {name}: {why}" for name, why in loaded.skipped[:5])
        what = f"{len(loaded.skipped)} files, none of which can be used:{reasons}\n" if reasons else "no results; "
        raise ConfigurationError(f"{directory} holds {what}{REMEDY.format(directory=directory)}")
    return loaded


def _read(text: bytes, name: str, loaded: LoadedRuns) -> None:
    schema = decode_as(text, SchemaHeader).schema
    if schema == SCHEMA:
        loaded.runs.append(Run(name, decode(text)))
    elif schema == CODECS:
        loaded.codecs.extend(codec_rows(text))
    elif schema != COMPARISON:  # which repeats what runs/ holds
        raise DocumentError(f"not a document of Grace: its schema is {quoted(schema)}; legal: {SCHEMA}, {CODECS}")


def codec_rows(text: bytes | str) -> list[dict[str, Any]]:
    """The rows of a ``grace.codecs`` document that have a time; a kernel's method is empty.

    Raises:
        DocumentError: a field is missing or is of another type.
    """
    document = decode_as(text, _Codecs)
    if document.version != _CODECS_VERSION:
        raise DocumentError(f"{CODECS} of version {quoted(document.version)}; this Grace reads {_CODECS_VERSION}")
    timed = [row for row in document.rows if row.ratio is not None or row.microseconds is not None]
    return [{**msgspec.structs.asdict(row), "method": row.method or ""} for row in timed]
